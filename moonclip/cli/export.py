"""``moonclip export``: checkpoints as files that other tools read."""

from pathlib import Path
from typing import Any

import click

from store.errors import Incompatible

from ..capture.budget import parse_bytes
from ..exchange.exporting import FORMATS, SUFFIXES, Exported, Format, Wanted, format_of
from ..exchange.exporting import export as write
from ..exchange.hub import MAX_SHARD_BYTES
from ..specs import Layout
from .location import open_store
from .output import echo_json, json_option
from .refs import complete_revision
from .text import counted, inline, size

_FILES = frozenset(SUFFIXES.values())


class _Bytes(click.ParamType[int]):
    """A size, as people write it."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_bytes(value)
        except Incompatible as error:
            self.fail(str(error), param, ctx)


class _Layout(click.ParamType[tuple[str, Layout]]):
    """``ITEM=KIND`` or ``ITEM=KIND:PATH``."""

    name = "layout"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Layout]:
        item, equals, text = str(value).partition("=")
        kind, _, path = text.partition(":")
        if not item or not equals:
            self.fail(f"{value!r} is no layout like model=safetensors:parts/model.safetensors", param, ctx)
        try:
            return item, Layout(kind, path or None)  # type: ignore[arg-type]
        except Incompatible as error:
            self.fail(str(error), param, ctx)


@click.command()
@click.argument("revision", shell_complete=complete_revision)
@click.option("--item", "items", multiple=True, metavar="NAME", help="Export this item only; may be repeated.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    help="pt or safetensors: one file; hf: a directory as model hubs have it; dcp: one of torch.distributed.checkpoint;"
    " dir: a plain file for each item; files: the files that were imported, byte for byte. Without it the output's"
    " suffix says, or else it is files where the commit has any.",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="File or directory to write. A .pt file is made in memory; what is streamed takes little.",
)
@click.option(
    "--max-shard-size",
    "max_shard_bytes",
    type=_Bytes(),
    metavar="SIZE",
    default=MAX_SHARD_BYTES,
    help="hf: of tensors in one file, as in 500MB; 5GB if it is not given.",
)
@click.option(
    "--layout",
    "layouts",
    type=_Layout(),
    multiple=True,
    metavar="ITEM=KIND[:PATH]",
    help="dir: write the item as torch (if nothing is said), json, raw or safetensors; may be repeated.",
)
@click.option(
    "--file", "files", multiple=True, metavar="GLOB", help="files: only these, as in '*.json'; may be repeated."
)
@click.option("-f", "--force", is_flag=True, help="Replace what is there already.")
@json_option
@click.pass_context
def export(
    ctx: click.Context,
    revision: str,
    *,
    items: tuple[str, ...],
    format_: Format | None,
    output: Path,
    max_shard_bytes: int,
    layouts: tuple[tuple[str, Layout], ...],
    files: tuple[str, ...],
    force: bool,
    as_json: bool,
) -> None:
    """Write a commit as files of other tools.

    With one --item a file holds that item itself, a model's state dict for instance; otherwise a .pt file holds a dict
    of items, and tensors in a .safetensors file are named item::name. A directory may hold other files, which stay.
    """
    is_file = (format_ or SUFFIXES.get(output.suffix)) in _FILES
    if is_file and output.is_dir():
        raise click.BadParameter(f"{output} is a directory", ctx, param_hint="-o")
    if is_file and output.exists() and not force:
        raise click.UsageError(f"{output} exists; --force replaces it")
    repo = open_store(ctx)
    commit = repo.commit(repo.resolve(revision))
    try:
        found = format_of(output, format_, commit)
    except Incompatible as error:
        raise click.BadParameter(str(error), ctx, param_hint="-o") from error
    wanted = Wanted(output, found, items or None, force, max_shard_bytes, dict(layouts), files or None)
    written = write(repo, commit, wanted)
    if as_json:
        echo_json(
            {
                "commit": commit.id.hex(),
                "path": str(output),
                "format": found,
                "items": list(written.items),
                "files": list(written.files),
                "bytes": written.size_bytes,
                "left_out": len(written.left_out),
                "tied": dict(written.tied),
            }
        )
        return
    what = counted(len(written.files), "file") if written.files else ", ".join(map(inline, written.items))
    click.echo(f"wrote {what} to {output} ({size(written.size_bytes)})")
    _tell_what_is_not_there(written)


def _tell_what_is_not_there(written: Exported) -> None:
    if written.left_out:
        click.echo(f"left out {counted(len(written.left_out), 'value')}: safetensors holds tensors only", err=True)
    for name, first in written.tied.items():
        click.echo(f"left out {inline(name)}: it is {inline(first)} by another name", err=True)
