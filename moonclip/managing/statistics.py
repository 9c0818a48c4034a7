"""What a store holds, in lines for people."""

from collections.abc import Sequence

from store.history.stats import Stats
from store.ids import short

from ..amounts import columns, counted, share, size
from ..families.listing import Listed


def lines(summed: Stats) -> list[str]:
    """A table of where the bytes went, and below it counts."""
    held = f"{counted(summed.pack_count, 'pack')} of {size(summed.pack_bytes)}"
    counts = f"{counted(summed.commit_count, 'commit')}, {counted(summed.chunk_count, 'chunk')}"
    return [*columns(_rows(summed), right=(1, 2)), "", f"{counts} ({summed.delta_count:,} as deltas), {held}"]


def stored_bytes(summed: Stats) -> int:
    """Chunks, trees (with what is inline in them) and commits."""
    return summed.chunk_stored_bytes + summed.tree_stored_bytes


def family_lines(listed: Sequence[Listed]) -> list[str]:
    """A table of what models take, each beside those before it, and below it all of them together."""
    head = ["model", "raw", "identical", "as deltas", "own", "added", "of raw", "base"]
    rows = [head, *map(_family_row, listed)]
    raw_bytes = sum(one.takes.raw_bytes for one in listed)
    added_bytes = sum(one.takes.added_bytes for one in listed)
    held = f"{counted(len(listed), 'model')} of {size(raw_bytes)}, stored in {size(added_bytes)}"
    return [*columns(rows, right=range(1, 7)), "", f"{held}: {_ratio(raw_bytes, added_bytes)}"]


def _family_row(one: Listed) -> list[str]:
    takes = one.takes
    sizes = (takes.raw_bytes, takes.shared_bytes, takes.delta_bytes, takes.own_bytes, takes.added_bytes)
    return [", ".join(one.names), *map(size, sizes), share(takes.added_bytes, takes.raw_bytes), _base(one)]


def _base(one: Listed) -> str:
    if one.derived is None:
        return "-"
    name = ", ".join(one.base_names) or short(one.derived.base)
    return f"{name} (by {one.derived.how})" if one.derived.how else name


def _rows(summed: Stats) -> list[list[str]]:
    raw_bytes = summed.tensor_bytes

    def row(label: str, part_bytes: int, meaning: str) -> list[str]:
        return [label, size(part_bytes), share(part_bytes, raw_bytes), meaning]

    return [
        row("raw", raw_bytes, "all commits, each in full"),
        row("dedup", summed.shared_bytes, "was stored already"),
        row("delta", summed.delta_saved_bytes, "saved by deltas against earlier chunks"),
        row("compression", summed.compression_saved_bytes, "saved by compression"),
        row("stored", stored_bytes(summed), _ratio(raw_bytes, stored_bytes(summed))),
    ]


def _ratio(raw_bytes: int, taken_bytes: int) -> str:
    ratio = raw_bytes / taken_bytes if taken_bytes else 1.0
    return f"trees and commits included; raw is {ratio:.2f} times as much"
