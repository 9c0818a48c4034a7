"""Pins: commits that are kept whole although no ref names them and whatever a policy says.

The file ``pins`` has a line for each, ``<commit> <time_ns> <message>``, the message as a JSON string. It is replaced
whole, under ``pins.lock``.

Spec: docs/format.md, section on pins.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..disk.files import Files
from ..errors import Corrupt
from ..ids import CommitId, ObjectId
from ..naming.reflog import encode_message

_LINE = re.compile(r"([0-9a-f]{64}) (0|[1-9][0-9]{0,19}) (\".*\")", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Pin:
    """A commit that is pinned.

    Attributes:
        commit: the commit.
        time_ns: since when, nanoseconds since the epoch.
        message: why.
    """

    commit: CommitId
    time_ns: int
    message: str = ""


class Pins:
    """The pins of one store. Thread-safe; processes meet at ``pins.lock``.

    Args:
        root: the store.
        files: does the I/O.
    """

    def __init__(self, root: Path, files: Files) -> None:
        self._files = files
        self._path = root / "pins"
        self._lock = root / "pins.lock"

    def all(self) -> Mapping[CommitId, Pin]:
        """All pins, by commit, the oldest first.

        Raises:
            Corrupt: the file is damaged: what it protects is not known.
        """
        try:
            data = self._files.read_bytes(self._path)
        except FileNotFoundError:
            return {}
        lines = data.split(b"\n")
        if lines.pop():
            raise self._damaged(len(lines) + 1)
        return {pin.commit: pin for pin in (self._decoded(line, number) for number, line in enumerate(lines, 1))}

    def put(self, pin: Pin) -> None:
        """Pin a commit; one that is pinned gets the new message. That it is whole is the caller's to know.

        Raises:
            Corrupt: the file is damaged.
            OSError: writing failed.
        """
        with self._files.lock_exclusive(self._lock):
            self._write([*(other for other in self.all().values() if other.commit != pin.commit), pin])

    def remove(self, commit: CommitId) -> bool:
        """Unpin a commit; whether it was pinned.

        Raises:
            Corrupt: the file is damaged.
            OSError: writing failed.
        """
        with self._files.lock_exclusive(self._lock):
            pins = self.all()
            if commit in pins:
                self._write(pin for pin in pins.values() if pin.commit != commit)
            return commit in pins

    def _write(self, pins: Iterable[Pin]) -> None:
        self._files.write_atomic(self._path, b"".join(map(_encoded, pins)))

    def _decoded(self, line: bytes, number: int) -> Pin:
        pin = _pin(line)
        if pin is None:
            raise self._damaged(number)
        return pin

    def _damaged(self, number: int) -> Corrupt:
        return Corrupt(
            f"{self._path}: line {number} is damaged, so what it protects is not known; mend or remove that line",
            path=str(self._path),
            line=number,
        )


def intact_lines(data: bytes) -> list[bytes]:
    """The lines of a file of pins as they are stored, without those that are none."""
    return [line + b"\n" for line in data.split(b"\n")[:-1] if _pin(line) is not None]


def _pin(line: bytes) -> Pin | None:
    try:
        match = _LINE.fullmatch(line.decode())
        message = json.loads(match[3]) if match else None
    except ValueError:
        return None
    if match is None or not isinstance(message, str):
        return None
    return Pin(CommitId(ObjectId(bytes.fromhex(match[1]))), int(match[2]), message)


def _encoded(pin: Pin) -> bytes:
    return f"{pin.commit.hex()} {pin.time_ns} ".encode() + encode_message(pin.message) + b"\n"
