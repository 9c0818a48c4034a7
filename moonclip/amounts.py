"""Amounts in words for people: sizes, counts, shares, and columns of them. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

_SIZE_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def size(size_bytes: int) -> str:
    """``"1.5 MiB"``: three digits are enough to compare."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    amount = float(size_bytes)
    for unit in _SIZE_UNITS:
        amount /= 1024
        if amount < 999.5 or unit == _SIZE_UNITS[-1]:
            break
    digits = 2 if amount < 9.995 else 1 if amount < 99.95 else 0
    return f"{amount:.{digits}f} {unit}"


def counted(count: int, noun: str) -> str:
    """``"1 commit"``, ``"2,000 commits"``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def share(part: int, whole: int) -> str:
    """``"12.3 %"``; of nothing, nothing."""
    return f"{100 * part / whole if whole else 0:.1f} %"


def columns(rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Rows as lines, each column as wide as it needs; the last is not padded.

    Args:
        rows: cells, all rows of one length.
        right: numbers of columns that are aligned to the right.
    """
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    aligned_right = set(right)
    return [
        "  ".join(
            cell.rjust(width) if number in aligned_right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
