"""What a store holds, in lines for people."""

from store.history.stats import Stats

from ..amounts import columns, counted, share, size


def lines(summed: Stats) -> list[str]:
    """A table of where the bytes went, and below it counts."""
    held = f"{counted(summed.pack_count, 'pack')} of {size(summed.pack_bytes)}"
    counts = f"{counted(summed.commit_count, 'commit')}, {counted(summed.chunk_count, 'chunk')}"
    return [*columns(_rows(summed), right=(1, 2)), "", f"{counts} ({summed.delta_count:,} as deltas), {held}"]


def stored_bytes(summed: Stats) -> int:
    """Chunks, trees (with what is inline in them) and commits."""
    return summed.chunk_stored_bytes + summed.tree_stored_bytes


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
