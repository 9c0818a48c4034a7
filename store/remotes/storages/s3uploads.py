"""Uploading to S3, by s3transfer: in parts, several at a time, and begun anew where a server forgot what it had."""

import io
import os
import threading
from concurrent.futures import CancelledError
from typing import Any, BinaryIO

from ...errors import Corrupt, MoonclipError, NotFound, RemoteError, RemoteUnavailable
from ...limits import UPLOAD_ATTEMPTS, UPLOAD_PART_BYTES
from .s3client import FAILURES, S3Connection
from .s3errors import NO_SUCH_UPLOAD
from .storage import Advance, Source

_MARK = "moonclip-upload"
"""Metadata that tells one upload from another: whoever did not hear the answer to the last request looks for it."""


def upload(connection: S3Connection, key: str, source: Source, advance: Advance) -> None:
    """Write an object of any length.

    Raises:
        Corrupt: what arrived has another length.
        RemoteUnavailable: it did not arrive, and so on, as all methods of a storage.
    """
    told = _Told(advance)
    for is_last in (*[False] * (UPLOAD_ATTEMPTS - 1), True):
        mark = os.urandom(8).hex()
        connected = connection.connected()
        told.begin()
        failure = _send(connection, connected.manager, key, source, mark, told)
        if failure is None or _is_there(connection, key, mark, failure):
            _check_length(connection, key, source.size_bytes, is_sure=failure is None)
            return
        is_forgotten = failure.details.get("code") == NO_SUCH_UPLOAD
        if is_last and is_forgotten:
            message = f"{connection.where}: {key}: the server forgets uploads ({NO_SUCH_UPLOAD}); try later"
            raise RemoteUnavailable(message, **failure.details)
        if is_last or not (is_forgotten or connection.renew(connected, failure)):
            raise failure


def _send(
    connection: S3Connection, manager: Any, key: str, source: Source, mark: str, told: "_Told"
) -> MoonclipError | None:
    """Upload once; returns why that failed.

    Raises:
        Exception: what reading the source, or telling of progress, raised.
    """
    with source.open() as reader:
        future = manager.upload(
            _FullReader(reader),
            connection.bucket,
            connection.full_key(key),
            extra_args={"Metadata": {_MARK: mark}},
            subscribers=[_Subscriber(source.size_bytes, told)],
        )
        told.watch(future)
        try:
            future.result()
        except FAILURES as error:
            failure = connection.error_of(error, key)
        except CancelledError:
            told.raise_error()
            raise
        else:
            return None
    told.raise_error()
    return failure


def _is_there(connection: S3Connection, key: str, mark: str, failure: MoonclipError) -> bool:
    """Whether an upload that is said to have failed arrived all the same: only the answer may have been lost."""
    if not isinstance(failure, RemoteError | NotFound) or failure.details.get("status") in {400, 401, 403}:
        return False
    try:
        metadata: dict[str, str] = _head(connection, key).get("Metadata", {})
    except (RemoteError, NotFound):
        return False  # the first error is the one to report
    return metadata.get(_MARK) == mark


def _check_length(connection: S3Connection, key: str, size_bytes: int, *, is_sure: bool) -> None:
    """Look how long an upload came out: the first that goes its way, as a server that alters one alters the next too.

    Raises:
        Corrupt: it has another length.
    """
    in_parts = size_bytes >= UPLOAD_PART_BYTES
    if is_sure and in_parts in connection.lengths_kept:
        return
    found_bytes = _head(connection, key)["ContentLength"]
    if found_bytes != size_bytes:
        raise Corrupt(
            f"{connection.where}: {key}: {size_bytes} bytes were sent, and {found_bytes} are there; this server alters"
            " what is written to it",
            key=key,
        )
    connection.lengths_kept.add(in_parts)


def _head(connection: S3Connection, key: str) -> dict[str, Any]:
    return connection.call("head_object", key, Key=connection.full_key(key))


class _Told:
    """Progress of an upload: each byte is told of once, however often it has to be sent. Thread-safe."""

    def __init__(self, advance: Advance) -> None:
        self._advance = advance
        self._lock = threading.Lock()
        self._told_bytes = 0
        self._sent_bytes = 0
        self._error: BaseException | None = None
        self._future: Any = None

    def begin(self) -> None:
        """It is sent from the start."""
        with self._lock:
            self._sent_bytes = 0
            self._future = None

    def watch(self, future: Any) -> None:
        """This is what to cancel if ``advance`` raises."""
        with self._lock:
            self._future = future
            error = self._error
        if error is not None:
            future.cancel()

    def sent(self, size_bytes: int) -> None:
        """So much was sent; less than nothing if it will be again."""
        with self._lock:
            self._sent_bytes += size_bytes
            new_bytes = self._sent_bytes - self._told_bytes
            if new_bytes <= 0 or self._error is not None:
                return
            self._told_bytes = self._sent_bytes
            try:
                self._advance(new_bytes)
            except BaseException as error:  # noqa: BLE001 - raised by whoever waits; botocore would try again
                self._error = error
                future = self._future
            else:
                return
        if future is not None:
            future.cancel()

    def raise_error(self) -> None:
        """Raise what ``advance`` raised, if it did."""
        if self._error is not None:
            raise self._error


class _Subscriber:
    """What s3transfer tells of an upload, and asks about it."""

    def __init__(self, size_bytes: int, told: _Told) -> None:
        self._size_bytes = size_bytes
        self._told = told

    def on_queued(self, future: Any, **_: Any) -> None:
        """It is about to begin: its length decides how many parts there are."""
        future.meta.provide_transfer_size(self._size_bytes)

    def on_progress(self, bytes_transferred: int, **_: Any) -> None:
        """Bytes were sent, or, below zero, will be sent again."""
        self._told.sent(bytes_transferred)

    def on_done(self, **_: Any) -> None:
        """It ended."""


class _FullReader(io.RawIOBase):
    """Gives as many bytes as asked for, unless there are no more: R2 wants all parts but the last to be of one size."""

    def __init__(self, reader: BinaryIO) -> None:
        self._reader = reader

    def readable(self) -> bool:
        """It is for reading."""
        return True

    def read(self, size_bytes: int = -1) -> bytes:
        """The next bytes, all of them if ``size_bytes`` is below zero."""
        parts: list[bytes] = []
        missing_bytes = size_bytes
        while missing_bytes and (part := self._reader.read(missing_bytes)):
            parts.append(part)
            missing_bytes -= len(part) if size_bytes >= 0 else 0
        return parts[0] if len(parts) == 1 else b"".join(parts)
