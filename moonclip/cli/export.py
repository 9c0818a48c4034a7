"""``moonclip export``: checkpoints as files that other tools read."""

from pathlib import Path
from typing import Final
from uuid import uuid4

import click

from store.errors import Incompatible, MoonclipError
from store.format.entries import ContainerEntry, Entry, TensorEntry, ValueEntry
from store.format.objects import Commit
from store.repository import Repository

from ..stored import ancestors, full_name, items_matching
from . import safetensors
from .location import open_store
from .output import echo_json, json_option
from .refs import complete_revision
from .text import counted, printable, size

_FORMATS: Final = (".pt", ".pth", ".safetensors")

_OPEN: Final = frozenset({"dict", "list", "tuple", "namedtuple", "OrderedDict", "defaultdict", "Counter", "deque"})
"""Containers whose tensors stand for themselves; those in any other make up one tensor (sparse, quantized, …)."""


@click.command()
@click.argument("revision", shell_complete=complete_revision)
@click.option("--item", "items", multiple=True, metavar="NAME", help="Export this item only; may be repeated.")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write: .pt (needs torch; all of it is in memory at once) or .safetensors (tensors only).",
)
@click.option("-f", "--force", is_flag=True, help="Replace the file if it exists.")
@json_option
@click.pass_context
def export(
    ctx: click.Context, revision: str, items: tuple[str, ...], output: Path, *, force: bool, as_json: bool
) -> None:
    """Write a commit into a .pt or .safetensors file.

    With one --item the file holds that item itself, a model's state dict for instance; otherwise a .pt file holds a
    dict of items, and tensors in a .safetensors file are named item::name.
    """
    if output.suffix not in _FORMATS:
        raise click.BadParameter(f"{output.name}: the name has to end in {', '.join(_FORMATS)}", ctx, param_hint="-o")
    if output.exists() and not force:
        raise click.UsageError(f"{output} exists; --force replaces it")
    repo = open_store(ctx)
    commit = repo.commit(repo.resolve(revision))
    chosen = items_matching(commit, items or None)
    is_single = len(items) == 1 and len(chosen) == 1
    if output.suffix == ".safetensors":
        left_out = _write_safetensors(repo, commit, chosen, output, is_single=is_single)
    else:
        left_out = 0
        _write_pickle(repo, commit, chosen, output, is_single=is_single)
    size_bytes = output.stat().st_size
    if as_json:
        echo_json(
            {"commit": commit.id.hex(), "path": str(output), "items": chosen, "bytes": size_bytes, "left_out": left_out}
        )
        return
    click.echo(f"wrote {', '.join(map(printable, chosen))} to {output} ({size(size_bytes)})")
    if left_out:
        click.echo(f"left out {counted(left_out, 'value')}: safetensors holds tensors only", err=True)


def _write_safetensors(repo: Repository, commit: Commit, items: list[str], output: Path, *, is_single: bool) -> int:
    """Write the tensors and return how many values had to stay out."""
    tensors: dict[str, TensorEntry] = {}
    value_count = 0
    for item in items:
        entries = dict(repo.tree(commit, item))
        _refuse_composites(item, entries)
        value_count += sum(isinstance(entry, ValueEntry) for entry in entries.values())
        tensors |= {
            (name or item) if is_single else full_name(item, name): entry
            for name, entry in entries.items()
            if isinstance(entry, TensorEntry)
        }
    safetensors.write(output, repo, tensors, {"format": "pt", "moonclip.commit": commit.id.hex()})
    return value_count


def _refuse_composites(item: str, entries: dict[str, Entry]) -> None:
    for name, entry in entries.items():
        if isinstance(entry, ContainerEntry) and entry.container not in _OPEN and _holds_tensors(name, entries):
            raise Incompatible(
                f"{full_name(item, name)} is a {entry.container}, which safetensors cannot hold; export to .pt",
                name=full_name(item, name),
            )


def _holds_tensors(container: str, entries: dict[str, Entry]) -> bool:
    return any(isinstance(entry, TensorEntry) and container in ancestors(name) for name, entry in entries.items())


def _write_pickle(repo: Repository, commit: Commit, items: list[str], output: Path, *, is_single: bool) -> None:
    """Load everything and hand it to ``torch.save``. Nothing stored is unpickled for it: that is refused."""
    try:
        import torch
    except ImportError:
        raise MoonclipError("a .pt file takes torch, which is not installed; export to .safetensors") from None
    from ..loading import Wanted, load
    from ..policy import SAFE

    loaded = load(repo, commit, Wanted(items=items), SAFE)
    temporary = output.with_name(f".{output.name}.{uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            torch.save(loaded[items[0]] if is_single else loaded, file)
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)
