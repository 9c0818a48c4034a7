"""What a store holds, in lines for people."""

from collections.abc import Sequence

from store.history.stats import Stats
from store.ids import short

from ..amounts import columns, counted, share, size
from ..families.listing import Listed


def lines(summed: Stats) -> list[str]:
    """A table of where the bytes went, one of what packs hold, and below them counts."""
    held = f"{counted(summed.pack_count, 'pack')} of {size(summed.pack_bytes)}"
    counts = f"{counted(summed.commit_count, 'commit')}, {counted(summed.chunk_count, 'chunk')}"
    tables = [*columns(_rows(summed), right=(1, 2)), "", *columns(_pack_rows(summed), right=(1, 2)), ""]
    return [*tables, f"{counts} ({summed.delta_count:,} as deltas), {held}"]


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
    lacking = [
        f"{_named(one)} lacks {', '.join(one.takes.lacks)}: pruned, or not fetched" for one in listed if one.takes.lacks
    ]
    return [*columns(rows, right=range(1, 7)), "", f"{held}: {_ratio(raw_bytes, added_bytes)}", *lacking]


def _family_row(one: Listed) -> list[str]:
    takes = one.takes
    sizes = (takes.raw_bytes, takes.shared_bytes, takes.delta_bytes, takes.own_bytes, takes.added_bytes)
    return [_named(one), *map(size, sizes), share(takes.added_bytes, takes.raw_bytes), _base(one)]


def _named(one: Listed) -> str:
    return ", ".join(one.names)


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


def _pack_rows(summed: Stats) -> list[list[str]]:
    """What packs hold, which sums to their length; what there is none of is left out."""
    parts = [
        ("in commits", stored_bytes(summed), "stored, as above"),
        ("bases", summed.base_bytes, "kept because deltas need it; `moonclip repack --for size` may do without"),
        ("gc", summed.gc_bytes, "given back by `moonclip gc`"),
        ("repack", summed.repack_bytes, "given back by `moonclip repack`, after gc"),
        ("rest", summed.rest_bytes, "not needed, but too little of its packs to write them anew"),
        ("tables", summed.table_bytes, "packs' own tables, and history that nothing leads to"),
    ]
    rows = [[label, size(part), share(part, summed.pack_bytes), meaning] for label, part, meaning in parts if part]
    return [["packs", size(summed.pack_bytes), share(summed.pack_bytes, summed.pack_bytes), "all of them"], *rows]


def _ratio(raw_bytes: int, taken_bytes: int) -> str:
    ratio = raw_bytes / taken_bytes if taken_bytes else 1.0
    return f"trees and commits included; raw is {ratio:.2f} times as much"
