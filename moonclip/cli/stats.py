"""``moonclip stats``: what is stored, and what sharing, deltas and compression saved."""

from dataclasses import asdict

import click

from store.history.stats import Stats, collect

from .location import open_store
from .output import echo_json, json_option
from .text import columns, counted, share, size


@click.command()
@json_option
@click.pass_context
def stats(ctx: click.Context, *, as_json: bool) -> None:
    """Show what is stored, and what was saved.

    Counts all commits that branches, tags and reflogs reach. Every byte that was saved is counted once: it was stored
    already (dedup), was saved by storing a chunk as a delta, was saved by compression, or is stored.
    """
    summed = collect(open_store(ctx))
    if as_json:
        echo_json(asdict(summed) | {"stored_bytes": _stored_bytes(summed)})
        return
    for line in columns(_rows(summed), right=(1, 2)):
        click.echo(line)
    held = f"{counted(summed.pack_count, 'pack')} of {size(summed.pack_bytes)}"
    click.echo(f"\n{counted(summed.commit_count, 'commit')}, {counted(summed.chunk_count, 'chunk')} ", nl=False)
    click.echo(f"({summed.delta_count:,} as deltas), {held}")


def _rows(summed: Stats) -> list[list[str]]:
    raw_bytes = summed.tensor_bytes

    def row(label: str, part_bytes: int, meaning: str) -> list[str]:
        return [label, size(part_bytes), share(part_bytes, raw_bytes), meaning]

    return [
        row("raw", raw_bytes, "all commits, each in full"),
        row("dedup", summed.shared_bytes, "was stored already"),
        row("delta", summed.delta_saved_bytes, "saved by deltas against earlier chunks"),
        row("compression", summed.compression_saved_bytes, "saved by compression"),
        row("stored", _stored_bytes(summed), _ratio(raw_bytes, _stored_bytes(summed))),
    ]


def _stored_bytes(summed: Stats) -> int:
    """Chunks, trees (with what is inline in them) and commits."""
    return summed.chunk_stored_bytes + summed.tree_stored_bytes


def _ratio(raw_bytes: int, stored_bytes: int) -> str:
    ratio = raw_bytes / stored_bytes if stored_bytes else 1.0
    return f"trees and commits included; raw is {ratio:.2f} times as much"
