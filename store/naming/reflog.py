"""The reflog: one line for each value a ref has had, and which of the lines count.

A line is ``<old> <new> <time_ns> <action> <message>``: ids as 64 hex digits (zeros for "no commit"), the message as
a JSON string, so that it stays one line whatever it holds. The line is made durable *before* the ref moves. A crash
in between leaves a last line that never came true, and a crash while it was being written leaves part of one;
readers ignore both and the next writer cuts them off.

Everything here is pure. Spec: docs/format.md, section on refs.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..errors import Corrupt, Incompatible
from ..ids import ID_BYTES, CommitId, ObjectId, from_hex

NO_COMMIT: Final = "0" * (2 * ID_BYTES)

_ACTION = re.compile(r"[a-z][a-z-]*")
_LINE = re.compile(r"([0-9a-f]{64}) ([0-9a-f]{64}) (0|[1-9][0-9]{0,19}) ([a-z][a-z-]*) (\".*\")", re.DOTALL)
_IDS = re.compile(rb"^([0-9a-f]{64}) ([0-9a-f]{64}) ([0-9]{1,20}) [a-z-]+ \".*\"\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ReflogLine:
    """One move of a ref.

    Attributes:
        old: value before, ``None`` when the ref was made.
        new: value after, ``None`` when the ref was deleted.
        time_ns: when, nanoseconds since the epoch, by the mover's clock. Decides nothing but when the line expires.
        action: one lower-case word: ``commit``, ``branch``, ``reset``, ``switch``, …
        message: what a person reads.
    """

    old: CommitId | None
    new: CommitId | None
    time_ns: int
    action: str
    message: str


def encode_line(line: ReflogLine) -> bytes:
    """The line as it is stored, with its newline.

    Raises:
        Incompatible: the action is not one lower-case word.
    """
    if not _ACTION.fullmatch(line.action):
        raise Incompatible(f"reflog action {line.action!r} is not one lower-case word")
    fields = f"{hex_of(line.old)} {hex_of(line.new)} {line.time_ns} {line.action} "
    return fields.encode() + encode_message(line.message) + b"\n"


def encode_message(message: str) -> bytes:
    """A JSON string, which stays one line whatever it holds. Pins have such messages too."""
    # A lone surrogate is not UTF-8; backslashreplace writes it as \udxxx, which is how JSON escapes it.
    return json.dumps(message, ensure_ascii=False).encode("utf-8", "backslashreplace")


def decode_lines(data: bytes, what: str) -> list[ReflogLine]:
    """Parse a reflog, oldest line first. A torn last line is left out.

    Raises:
        Corrupt: a line before the last one is not a reflog line; names ``what`` and the line's number.
    """
    lines = []
    stored = data.split(b"\n")
    for number, text in enumerate(stored[:-1], start=1):
        line = _decode_line(text)
        if line is not None:
            lines.append(line)
        elif number < len(stored) - 1:
            raise Corrupt(f"{what}: line {number} is damaged; remove that line to go on without it", line=number)
    return lines


def intact_lines(data: bytes) -> list[bytes]:
    """The lines of a reflog as they are stored, oldest first, without those that are none."""
    return [text + b"\n" for text in data.split(b"\n")[:-1] if _decode_line(text) is not None]


def logged_ids(data: bytes, what: str, since_ns: int = 0) -> set[CommitId]:
    """Ids that the lines of a reflog name; what :func:`decode_lines` would say, in a tenth of the time.

    Messages are not looked into. A run that saves at every step has 100,000 lines, and all ids are asked for often.

    Args:
        data: the reflog.
        what: named in errors.
        since_ns: leave out lines that are older.

    Raises:
        Corrupt: a line before the last one is not a reflog line; names ``what`` and the line's number.
    """
    found = _IDS.findall(data)
    if len(found) != data.count(b"\n"):
        lines = [line for line in decode_lines(data, what) if line.time_ns >= since_ns]
        return {commit for line in lines for commit in (line.old, line.new) if commit is not None}
    pairs = [(old, new) for old, new, time_ns in found if int(time_ns) >= since_ns]
    stored = {commit for pair in pairs for commit in pair} - {NO_COMMIT.encode()}
    return {CommitId(ObjectId(bytes.fromhex(commit.decode()))) for commit in stored}


def applied(lines: Sequence[ReflogLine], current: CommitId | None) -> Sequence[ReflogLine]:
    """The lines (oldest first) that came true, given the ref's value as read *before* the log was.

    Lines past the last one that led to ``current`` are still being applied by somebody, or never were.
    """
    for count in range(len(lines), 0, -1):
        if lines[count - 1].new == current:
            return lines[:count]
    return lines[:-1] if lines and _never_applied(lines[-1], current) else lines


def unapplied_bytes(tail: bytes, current: CommitId | None) -> int:
    """How many bytes at the end of a log never came true; for the next writer, who holds the lock.

    Args:
        tail: the end of the log, from the beginning of some line on.
        current: the ref's value now.
    """
    torn = len(tail) - (tail.rfind(b"\n") + 1)
    whole = tail[: len(tail) - torn]
    if not whole:
        return torn
    start = whole.rfind(b"\n", 0, -1) + 1
    line = _decode_line(whole[start:-1])
    if line is None or _never_applied(line, current):
        return torn + len(whole) - start
    return torn


def hex_of(commit: CommitId | None) -> str:
    """An id as the refs and reflogs write it; zeros for ``None``."""
    return NO_COMMIT if commit is None else commit.hex()


def _never_applied(last: ReflogLine, current: CommitId | None) -> bool:
    return last.old == current and last.new != current


def _decode_line(text: bytes) -> ReflogLine | None:
    try:
        match = _LINE.fullmatch(text.decode())
        message = json.loads(match.group(5)) if match else None
    except ValueError:
        return None
    if match is None or not isinstance(message, str):
        return None
    old, new, time_ns, action = match.group(1, 2, 3, 4)
    return ReflogLine(_commit(old), _commit(new), int(time_ns), action, message)


def _commit(text: str) -> CommitId | None:
    return None if text == NO_COMMIT else CommitId(ObjectId(from_hex(text)))
