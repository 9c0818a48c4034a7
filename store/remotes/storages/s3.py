"""A bucket of an S3 server as a storage.

What is asked of servers is what all of them can do; where they differ, what they answer decides and not what they are.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from ...errors import Conflict, Corrupt, MoonclipError, NotFound, RemoteError, RemoteUnsupported
from ...limits import DELETE_KEYS, LIST_PAGES, MAX_KEY_BYTES
from ..names import SCRATCH
from .s3client import S3Connection, S3Options
from .s3errors import error_for
from .s3reads import read_range, read_small, version_of
from .s3uploads import upload
from .storage import Advance, Source, Stat, Unfinished

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class S3Storage:
    """Keys in a bucket. See :class:`~store.remotes.storages.storage.Storage` for what the methods do, and raise.

    Args:
        options: which bucket, and how it is reached. Nothing is asked of it yet.

    Raises:
        Incompatible: the endpoint cannot be one.
    """

    def __init__(self, options: S3Options) -> None:
        self._url = options.place.url
        self._prefix = options.place.prefix
        self._connection = S3Connection(options)
        self._is_bucket_seen = False
        self._takes_quoted = True
        self._deletes_many = True

    @property
    def url(self) -> str:
        """What people call it."""
        return self._url

    def list(self, prefix: str) -> Iterator[Stat]:
        """All keys that begin with ``prefix``."""
        full = self._prefix + prefix
        for page in self._pages("list_objects_v2", Prefix=full):
            for found in page.get("Contents", ()):
                key, size_bytes = str(found.get("Key", "")), int(found.get("Size", 0))
                if key.startswith(full) and len(key.encode()) <= MAX_KEY_BYTES and size_bytes >= 0:
                    modified_ns = _ns(found.get("LastModified"))
                    yield Stat(key[len(self._prefix) :], size_bytes, _version(found), modified_ns)

    def stat(self, key: str) -> Stat | None:
        """What there is under a key."""
        try:
            found = self._connection.call("head_object", key, Key=self._prefix + key)
        except NotFound:
            self._require_bucket()  # an answer to HEAD does not say what there is none of
            return None
        self._is_bucket_seen = True
        size_bytes = int(found.get("ContentLength", -1))
        if size_bytes < 0:
            raise RemoteUnsupported(f"{self._connection.where}: {key}: the server does not say how long it is", key=key)
        return Stat(key, size_bytes, _version(found), _ns(found.get("LastModified")))

    def get(self, key: str, max_bytes: int) -> tuple[bytes, str] | None:
        """A small object and its version. Raises Corrupt if it is longer than ``max_bytes``."""
        found = read_small(self._connection, key, max_bytes)
        return None if found is None else (found[0], found[1] or _no_version())

    def read_into(self, key: str, start: int, out: memoryview, advance: Advance) -> None:
        """Fill ``out`` with what lies under a key from byte ``start`` on."""
        read_range(self._connection, key, start, out, advance)

    def put(self, key: str, data: bytes) -> str:
        """Write a small object; returns its version."""
        return self._put(key, data, {})

    def put_if(self, key: str, data: bytes, expected: str | None) -> str:
        """Write a small object if what is there has this version.

        Raises:
            Conflict: it has another, or is there, or is gone.
        """
        condition = {"IfNoneMatch": "*"} if expected is None else self._if_match(expected)
        try:
            return self._put(key, data, condition)
        except (Conflict, NotFound) as error:
            refusal = Conflict(f"{self._connection.where}: {key} was written by somebody else", **error.details)
        if refusal.details["retried"] and (version := self._own_version(key, data)) is not None:
            return version
        if expected is not None and self._takes_quoted and self._is_misread(key, expected):
            self._takes_quoted = False
            return self.put_if(key, data, expected)
        raise refusal

    def upload(self, key: str, source: Source, advance: Advance) -> None:
        """Write an object of any length, in parts if it is long. Raises Corrupt if another length arrived."""
        upload(self._connection, key, source, advance)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete keys; those that are not there are passed over."""
        for start in range(0, len(keys), DELETE_KEYS):
            some = keys[start : start + DELETE_KEYS]
            if len(some) == 1 or not self._delete_many(some):
                for key in some:
                    self._delete(key)

    def now_ns(self) -> int:
        """What time it is by the server's clock, to the second."""
        answer = self._connection.call("head_bucket")
        text = answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")
        try:
            return _ns(parsedate_to_datetime(text))
        except (ValueError, OverflowError):
            raise RemoteUnsupported(f"{self._connection.where}: the server does not say what time it is") from None

    def unfinished(self) -> Iterator[Unfinished]:
        """Uploads in parts that were begun and are not done."""
        with suppress(NotFound, RemoteUnsupported):  # so some servers say that there are none
            for page in self._pages("list_multipart_uploads", Prefix=self._prefix):
                for found in page.get("Uploads", ()):
                    key, upload_id = str(found.get("Key", "")), str(found.get("UploadId", ""))
                    if upload_id and key.startswith(self._prefix):
                        yield Unfinished(key[len(self._prefix) :], upload_id, _ns(found.get("Initiated")))

    def abort(self, upload: Unfinished) -> None:
        """End one of these; one that is gone is passed over."""
        key = self._prefix + upload.key
        with suppress(NotFound):
            self._connection.call("abort_multipart_upload", upload.key, Key=key, UploadId=upload.upload_id)

    def close(self) -> None:
        """Let go of connections; again does nothing."""
        self._connection.close()

    def _require_bucket(self) -> None:
        """Raise RemoteMissing if there is no bucket; asked once."""
        if not self._is_bucket_seen:
            try:
                self._connection.call("head_bucket")
            except NotFound:
                missing = error_for(self._connection.where, "", 404, "NoSuchBucket")
            else:
                self._is_bucket_seen = True
                return
            raise missing

    def _pages(self, operation: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """Pages of a listing. A server that lies has an end too."""
        seen: set[tuple[Any, ...]] = set()
        for _ in range(LIST_PAGES):
            page = self._connection.call(operation, **parameters)
            self._is_bucket_seen = True
            yield page
            if not page.get("IsTruncated"):
                return
            following = {
                name: page[given]
                for name, given in (
                    ("ContinuationToken", "NextContinuationToken"),
                    ("KeyMarker", "NextKeyMarker"),
                    ("UploadIdMarker", "NextUploadIdMarker"),
                )
                if page.get(given)
            }
            at = tuple(following.values())
            if not at or at in seen:
                break
            seen.add(at)
            parameters.update(following)
        raise RemoteError(f"{self._connection.where}: the server lists the same again and again, or has no end")

    def _put(self, key: str, data: bytes, condition: dict[str, str]) -> str:
        answer = self._connection.call("put_object", key, Key=self._prefix + key, Body=data, **condition)
        self._is_bucket_seen = True
        if version := version_of(answer):
            return version
        found = self.stat(key)
        if found is None:
            raise RemoteError(f"{self._connection.where}: {key} was written, and is not there", key=key)
        return found.version

    def _if_match(self, version: str) -> dict[str, str]:
        return {"IfMatch": f'"{version}"' if self._takes_quoted else version}

    def _own_version(self, key: str, data: bytes) -> str | None:
        """The version of what is there if it is what we wrote: the answer to that may have been lost."""
        try:
            found = self.get(key, len(data))
        except Corrupt:
            return None
        return found[1] if found is not None and found[0] == data else None

    def _is_misread(self, key: str, version: str) -> bool:
        """Whether a condition fits, though it was refused, and the server takes it without quotes, as Ceph does.

        That it takes it must not mean that it passes over what it does not understand: so that is tried out.
        """
        found = self.stat(key)
        if found is None or found.version != version:
            return False
        scratch = SCRATCH + os.urandom(16).hex()
        right, wrong = self.put(scratch, b"1"), "0" * 32
        try:
            is_wrong_taken = self._is_taken(scratch, wrong)
            return not is_wrong_taken and self._is_taken(scratch, right)
        finally:
            self.delete([scratch])

    def _is_taken(self, key: str, unquoted: str) -> bool:
        try:
            self._put(key, b"2", {"IfMatch": unquoted})
        except (Conflict, NotFound):
            return False
        return True

    def _delete(self, key: str) -> None:
        with suppress(NotFound):
            self._connection.call("delete_object", key, Key=self._prefix + key)

    def _delete_many(self, keys: Sequence[str]) -> bool:
        """Delete keys by one request; ``False`` if the server does not know how to."""
        if not self._deletes_many:
            return False
        objects = [{"Key": self._prefix + key} for key in keys]
        try:
            answer = self._connection.call("delete_objects", Delete={"Objects": objects, "Quiet": True})
        except (RemoteError, Conflict) as error:
            if error.details.get("status") not in {400, 405, 411, 500, 501}:
                raise
            self._deletes_many = False
            return False
        for failed in answer.get("Errors", ()):
            self._raise_failed(str(failed.get("Key", "")), str(failed.get("Code", "")))
        return True

    def _raise_failed(self, key: str, code: str) -> None:
        error: MoonclipError = error_for(self._connection.where, key.removeprefix(self._prefix), 0, code)
        if code not in {"NoSuchKey", "NoSuchVersion"}:
            raise error


def _version(found: dict[str, Any]) -> str:
    return version_of(found) or _no_version()


def _no_version() -> str:
    """A version for what a server gives none: another one each time, so that nobody takes it to be unchanged."""
    return f"unknown-{os.urandom(8).hex()}"


def _ns(when: datetime | None) -> int:
    """Nanoseconds since the epoch; 0 if a server does not say when."""
    if when is None:
        return 0
    aware = when if when.tzinfo else when.replace(tzinfo=UTC)
    since = aware - _EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000
