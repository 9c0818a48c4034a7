"""``moonclip import``: checkpoints of other tools as a commit."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from store.disk.files import Files
from store.ids import short
from store.repository import DEFAULT_BRANCH

from ..exchange.directories import Given
from ..exchange.importing import Imported, Searching, Wanted, import_files, named_base
from ..exchange.ranges import Ranges
from ..exchange.sources import Source, directory_bytes, given_in, telling, tensor_bytes
from ..families import SEARCH, How
from ..families.folders import require_one_model
from .location import open_or_make_store
from .output import echo_json, json_option
from .progress import Progress, progress_bar
from .refs import complete_branch, complete_revision
from .text import counted, inline, size


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
@click.option(
    "--base",
    metavar="REV",
    default=SEARCH,
    shell_complete=complete_revision,
    help="The commit that it comes from: tensors are stored as what differs. Without it, or with search, the nearest of"
    " the store's; with none, none.",
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
    base: str,
    message: str,
    step: int | None,
    as_json: bool,
) -> None:
    """Commit what files of other tools hold.

    A PATH is a model directory, a directory of torch.distributed.checkpoint, a .safetensors or .gguf file, or a file of
    torch.save. All of them become one commit, read while it is stored, so that they need not fit into memory. Nothing
    in them is run: what would have to be is refused, or kept as the file it is.

    Of a model directory every file is kept, and `moonclip export REV -o DIR` writes all of them again, byte for byte.
    Its tensors become the item "model", or "adapter" if they are one, or are called as their file.

    What else is one thing becomes "model" or, if it is an optimizer's state, "optimizer"; ITEM= says otherwise, and
    takes the tensors of a directory alone. The store is made if there is none.
    """
    require_one_model(source.path for source in sources if source.item is None)
    repo = open_or_make_store(ctx, branch or DEFAULT_BRANCH)
    named = named_base(repo, base)
    wanted = Wanted(sources, repo.refs.head() if branch is None else branch, message, step, named)
    with progress_bar(in_bytes=True) as progress:
        searching = Searching(repo, wanted)
        counter = None if progress is None else _Counter(progress, directory_bytes(sources))
        told = (lambda _: None) if counter is None else counter.add
        given = given_in(sources, Ranges(Files()), repo.threads, told, searching)
        size_bytes = tensor_bytes(given.items)
        if counter is not None:
            counter.expect(size_bytes)
        items = given.items if counter is None else telling(given.items, counter.add)
        imported = import_files(repo, items, wanted, given.files, searching.found)
    if as_json:
        echo_json(_document(imported, wanted, given, size_bytes))
        return
    for line in _lines(imported, wanted, given, size_bytes):
        click.echo(line)
    for each in given.kept:
        click.echo(f"kept {inline(each.name)} as it is: {inline(each.why)}", err=True)
    for each in given.skipped:
        click.echo(f"left out {inline(each.name)}: {inline(each.why)}", err=True)


def _document(imported: Imported, wanted: Wanted, given: Given, size_bytes: int) -> dict[str, Any]:
    base = imported.base
    return {
        "commit": imported.commit.hex(),
        "branch": wanted.branch,
        "step": wanted.step,
        "items": [item.name for item in given.items],
        "bytes": size_bytes,
        "stored_bytes": imported.counts.stored_bytes,
        "base": None if base.commit is None else base.commit.hex(),
        "base_found_by": str(base.how),
        "base_saves_bytes": base.saved_bytes,
        "files": len(given.files),
        "kept": [each._asdict() for each in given.kept],
        "left_out": [each._asdict() for each in given.skipped],
    }


def _lines(imported: Imported, wanted: Wanted, given: Given, size_bytes: int) -> Iterator[str]:
    what = ", ".join(inline(item.name) for item in given.items)
    base, branch = imported.base, inline(wanted.branch)
    yield f"{short(imported.commit)} on branch {branch}: {what} ({size(size_bytes)} of tensors)"
    if base.commit is not None:
        found = "nearest of the store's" if base.how is How.SEARCHED else "as named"
        share = f", which saves an estimated {size(base.saved_bytes)} of {size(base.alone_bytes)}"
        yield f"base {short(base.commit)} ({found}){share if base.alone_bytes else ''}"
    if given.files:
        file_bytes = sum(file.found.size_bytes for file in given.files)
        yield f"{counted(len(given.files), 'file')} of {size(file_bytes)} can be exported as they were"


class _Counter:
    """How much was read, told to a progress bar: files for their hashes, and their tensors to be stored."""

    def __init__(self, progress: Progress, total_bytes: int) -> None:
        self._progress = progress
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._lock = threading.Lock()

    def expect(self, size_bytes: int) -> None:
        """So many more are going to be read."""
        self._total_bytes += size_bytes

    def add(self, size_bytes: int) -> None:
        """So many more were read."""
        with self._lock:
            self._done_bytes += size_bytes
            self._progress("reading", min(self._done_bytes, self._total_bytes), self._total_bytes)
