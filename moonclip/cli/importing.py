"""``moonclip import``: checkpoints of other tools as a commit."""

import threading
from pathlib import Path

import click

from store.disk.files import Files
from store.ids import short

from ..exchange.importing import Source, Wanted, import_files, items_of, telling, tensor_bytes
from ..exchange.ranges import Ranges
from .location import open_store
from .output import echo_json, json_option
from .progress import Progress, progress_bar
from .refs import complete_branch
from .text import printable, size


class _Source(click.ParamType[Source]):
    """``PATH`` or ``ITEM=PATH``."""

    name = "path"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Source:
        text = str(value)
        item, equals, rest = text.partition("=")
        has_item = item and equals and not Path(text).exists()
        source = Source(Path(rest), item) if has_item else Source(Path(text))
        if not source.path.exists():
            self.fail(f"{source.path} does not exist", param, ctx)
        return source


@click.command("import")
@click.argument("sources", nargs=-1, required=True, type=_Source(), metavar="[ITEM=]PATH...")
@click.option(
    "--branch", metavar="NAME", shell_complete=complete_branch, help="Commit there, not on the current branch."
)
@click.option("-m", "--message", default="", help="What to say of the commit.")
@click.option("--step", type=click.IntRange(min=0), metavar="N", help="Training step of the state.")
@json_option
@click.pass_context
def import_(
    ctx: click.Context,
    sources: tuple[Source, ...],
    *,
    branch: str | None,
    message: str,
    step: int | None,
    as_json: bool,
) -> None:
    """Commit what files of other tools hold.

    A PATH is a directory of torch.distributed.checkpoint, a .safetensors file or a directory of them as model hubs have
    it, or a file of torch.save. All of them become one commit, read while it is stored, so that they need not fit into
    memory. Nothing in them is run: what would have to be is refused.

    What is one thing becomes the item "model" or, if it is an optimizer's state, "optimizer"; ITEM= says otherwise.
    """
    repo = open_store(ctx, writable=True)
    items = items_of(sources, Ranges(Files()))
    size_bytes = tensor_bytes(items)
    wanted = Wanted(sources, repo.refs.head() if branch is None else branch, message, step)
    with progress_bar(in_bytes=True) as progress:
        given = items if progress is None else telling(items, _Counter(progress, size_bytes).add)
        commit = import_files(repo, given, wanted)
    names = [item.name for item in items]
    if as_json:
        echo_json({"commit": commit.hex(), "branch": wanted.branch, "step": step, "items": names, "bytes": size_bytes})
        return
    what = ", ".join(map(printable, names))
    click.echo(f"{short(commit)} on branch {printable(wanted.branch)}: {what} ({size(size_bytes)} of tensors)")


class _Counter:
    """How much of the tensors was read, told to a progress bar."""

    def __init__(self, progress: Progress, total_bytes: int) -> None:
        self._progress = progress
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._lock = threading.Lock()

    def add(self, size_bytes: int) -> None:
        with self._lock:
            self._done_bytes += size_bytes
            self._progress("reading", min(self._done_bytes, self._total_bytes), self._total_bytes)
