"""Words for people: sizes, ages, dates, columns (those that the surface has, too, come from there). Pure.

Nothing that is stored reaches a terminal as it is: a message may have come from anybody, and terminals obey what
they are shown.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from ..amounts import columns, counted, share, size

__all__ = [
    "age",
    "columns",
    "counted",
    "date",
    "inline",
    "iso_date",
    "one_line",
    "printable",
    "share",
    "size",
    "told_of",
]

_AGE_UNITS: Final = (
    (365 * 86_400, "year"),
    (30 * 86_400, "month"),
    (7 * 86_400, "week"),
    (86_400, "day"),
    (3_600, "hour"),
    (60, "minute"),
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


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


def told_of(error: OSError) -> str:
    """What is wrong with a disk, or a file on it."""
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def one_line(text: str) -> str:
    """The text's first line, safe to print."""
    return printable(text.strip().partition("\n")[0].rstrip())


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


def _moment(time_ns: int) -> datetime:
    """Any time that a commit (63 bits) or a reflog (20 digits) can hold lies within the calendar."""
    return _EPOCH + timedelta(microseconds=time_ns // 1_000)
