"""Reading from S3: a body that is cut is asked for from there."""

import re
import time
from collections.abc import Mapping
from typing import Any

from ...errors import Corrupt, MoonclipError, NotFound, RemoteUnavailable, RemoteUnsupported
from ...limits import DOWNLOAD_ATTEMPTS, DOWNLOAD_STEP_BYTES, MAX_SKIPPED_BYTES
from .s3client import FAILURES, S3Connection
from .storage import Advance

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


def read_range(connection: S3Connection, key: str, start: int, out: memoryview, advance: Advance) -> None:
    """Fill ``out`` with what lies under a key from byte ``start`` on.

    Raises:
        NotFound: there is no such key.
        Corrupt: it ends too early.
        RemoteUnsupported: the server sends something else.
        RemoteUnavailable: it does not send all, however often it is asked.
    """
    _Reading(connection, key, start, out, advance).run()


def read_small(connection: S3Connection, key: str, max_bytes: int) -> tuple[bytes, str] | None:
    """All that lies under a key, and its version; ``None`` if there is nothing.

    Raises:
        Corrupt: it is longer than ``max_bytes``.
        RemoteUnavailable: it does not arrive, however often it is asked for.
    """
    for attempt in range(1, connection.retries.attempts + 1):
        try:
            answer = connection.call("get_object", key, Key=connection.full_key(key))
        except NotFound:
            return None
        version, size_bytes = version_of(answer), answer.get("ContentLength")
        if size_bytes is None or not 0 <= size_bytes <= max_bytes:
            answer["Body"].close()
            what = "of unknown length" if size_bytes is None or size_bytes < 0 else f"{size_bytes} bytes long"
            raise Corrupt(f"{connection.where}: {key} is {what}; it may have {max_bytes} bytes", key=key)
        data = bytearray(size_bytes)
        reading = _Reading(connection, key, 0, memoryview(data), _unheard, version)
        try:
            reading.run(answer)
        except _Replaced:
            time.sleep(connection.retries.pause(attempt) or 0)
            continue
        return bytes(data), version
    raise RemoteUnavailable(f"{connection.where}: {key} changes faster than it can be read; try later", key=key)


def version_of(answer: Mapping[str, Any]) -> str:
    """What a server calls the content: its ETag, out of its quotes, which not all servers give it everywhere."""
    return str(answer.get("ETag") or "").removeprefix("W/").strip('"')


class _Replaced(MoonclipError):
    """Another object has taken the place of the one that is being read."""


class _Reading:
    """One read, in as many requests as it takes.

    Args:
        connection: to the bucket.
        key: what is read.
        start: from where on.
        out: is filled.
        advance: told of what was read.
        version: what it has to remain; ``None`` if whoever reads will see.
    """

    def __init__(
        self,
        connection: S3Connection,
        key: str,
        start: int,
        out: memoryview,
        advance: Advance,
        version: str | None = None,
    ) -> None:
        self._connection = connection
        self._key = key
        self._start = start
        self._out = out
        self._advance = advance
        self._version = version
        self._done_bytes = 0

    def run(self, answer: dict[str, Any] | None = None) -> None:
        """Read all.

        Args:
            answer: to a request for all of it, if it was made.
        """
        idle_count = 0
        for _ in range(DOWNLOAD_ATTEMPTS):
            if answer is None and self._done_bytes == len(self._out):
                return
            before_bytes = self._done_bytes
            self._take(answer if answer is not None else self._ask())
            answer = None
            if self._done_bytes == len(self._out):
                return
            idle_count = 0 if self._done_bytes > before_bytes else idle_count + 1
            pause = self._connection.retries.pause(idle_count) if idle_count else 0.0
            if pause is None:
                break
            time.sleep(pause)
        at = self._start + self._done_bytes
        raise RemoteUnavailable(
            f"{self._connection.where}: {self._key}: answers end early again and again, now at byte {at}; try later",
            key=self._key,
        )

    def _ask(self) -> dict[str, Any]:
        first, last = self._start + self._done_bytes, self._start + len(self._out) - 1
        key = self._connection.full_key(self._key)
        try:
            return self._connection.call("get_object", self._key, Key=key, Range=f"bytes={first}-{last}")
        except MoonclipError as error:
            if error.details.get("status") != 416:
                raise
        raise self._ends_at("before it")

    def _take(self, answer: dict[str, Any]) -> None:
        """Take what there is in an answer."""
        body = answer["Body"]
        try:
            skip_bytes = self._skip_bytes(answer)
            self._pour(body, skip_bytes)
        except FAILURES:
            pass  # cut: what has come, has come
        finally:
            body.close()

    def _skip_bytes(self, answer: dict[str, Any]) -> int:
        """How many bytes of an answer come before those that were asked for."""
        if self._version is not None and version_of(answer) != self._version:
            raise _Replaced(self._key)
        at = self._start + self._done_bytes
        match = _CONTENT_RANGE.fullmatch(str(answer.get("ContentRange") or ""))
        if match is not None:
            if int(match[1]) != at:
                raise self._unsupported(f"sends byte {match[1]} when asked for byte {at}")
            self._check_end(None if match[3] == "*" else int(match[3]))
            return 0
        if answer["ResponseMetadata"]["HTTPStatusCode"] == 206:
            return 0
        size_bytes = answer.get("ContentLength")
        # Whether it is the whole or the range cannot be told if they are of one length.
        is_unclear = size_bytes is None or size_bytes == len(self._out) - self._done_bytes
        if at and (is_unclear or at > MAX_SKIPPED_BYTES):
            raise self._unsupported("does not read ranges")
        self._check_end(size_bytes)
        return at

    def _pour(self, body: Any, skip_bytes: int) -> None:
        while skip_bytes:
            skipped = body.read(min(skip_bytes, DOWNLOAD_STEP_BYTES))
            if not skipped:
                return
            skip_bytes -= len(skipped)
        while self._done_bytes < len(self._out):
            end = min(self._done_bytes + DOWNLOAD_STEP_BYTES, len(self._out))
            count = body.readinto(self._out[self._done_bytes : end])
            if not count:
                return
            self._done_bytes += count
            self._advance(count)

    def _check_end(self, size_bytes: int | None) -> None:
        if size_bytes is not None and size_bytes < self._start + len(self._out):
            raise self._ends_at(f"at byte {size_bytes}")

    def _ends_at(self, where: str) -> Corrupt:
        end = self._start + len(self._out)
        return Corrupt(
            f"{self._connection.where}: {self._key} has to reach byte {end}, and ends {where}", key=self._key
        )

    def _unsupported(self, what: str) -> RemoteUnsupported:
        return RemoteUnsupported(f"{self._connection.where}: {self._key}: the server {what}", key=self._key)


def _unheard(_: int) -> None:
    """Progress of small objects is nobody's concern."""
