"""Words for people: sizes, ages, dates, columns. Pure.

Nothing that is stored reaches a terminal as it is: a message may have come from anybody, and terminals obey what
they are shown.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

_SIZE_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_AGE_UNITS: Final = (
    (365 * 86_400, "year"),
    (30 * 86_400, "month"),
    (7 * 86_400, "week"),
    (86_400, "day"),
    (3_600, "hour"),
    (60, "minute"),
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


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


def age(time_ns: int, now_ns: int) -> str:
    """``"3 hours ago"``."""
    seconds = (now_ns - time_ns) // 1_000_000_000
    if seconds < 0:
        return "in the future"
    for unit_seconds, noun in _AGE_UNITS:
        if seconds >= unit_seconds:
            return f"{counted(seconds // unit_seconds, noun)} ago"
    return "just now"


def date(time_ns: int) -> str:
    """``"2026-11-29 16:45:12 +0100"``, in the local time zone."""
    return _moment(time_ns).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")


def iso_date(time_ns: int) -> str:
    """``"2026-11-29T15:45:12.000000+00:00"``, for programs."""
    return _moment(time_ns).isoformat(timespec="microseconds")


def printable(text: str) -> str:
    """The text, with all characters but line ends that a terminal would act on, or cannot show, escaped."""
    if text.isprintable():
        return text
    return "".join(char if char == "\n" or char.isprintable() else _escaped(char) for char in text)


def inline(text: str) -> str:
    """All of the text on one line, safe to print: its line ends are escaped as well."""
    return printable(text).replace("\n", "\\n")


def one_line(text: str) -> str:
    """The text's first line, safe to print."""
    return printable(text.strip().partition("\n")[0].rstrip())


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


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


def _moment(time_ns: int) -> datetime:
    """Any time that a commit (63 bits) or a reflog (20 digits) can hold lies within the calendar."""
    return _EPOCH + timedelta(microseconds=time_ns // 1_000)
