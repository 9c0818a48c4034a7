"""A server that is not consistent: for some reads after a write it serves what was there before."""

import fnmatch
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from threading import Lock
from urllib.parse import quote, unquote

from .exchange import Request, Response, object_request
from .rules import ANY, Beyond, Match

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class _Past:
    """An object as it was before it was written last."""

    response: Response
    reads_left: int


@dataclass(frozen=True)
class Stale:
    """After a write, the next reads of the object and listings that it belongs to show it as it was before.

    Listings are changed on their first page, and keys that were deleted reappear only where no delimiter is asked for.
    """

    key: str = "*"
    """A pattern for keys; `*` stands for slashes too."""

    reads: int = 1
    """How many reads of an object, listings included, come too early after a write of it."""

    on: Match = ANY
    _past: dict[tuple[str, str], _Past] = field(default_factory=dict, init=False, repr=False)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)

    def handle(self, request: Request, beyond: Beyond) -> Response:
        """Keep what a write is about to replace; serve it to reads."""
        written = [key for key in _written(request) if fnmatch.fnmatchcase(key, self.key)]
        if written:
            return self._write(request, written, beyond)
        if request.method in ("GET", "HEAD") and request.key and "uploadId" not in request.query:
            past = self._take(request.bucket, request.key)
            return beyond.send(request) if past is None else _as_asked(request, past)
        if request.method == "GET" and request.bucket and ("list-type" in request.query or not request.query):
            return self._listed_before(request, beyond.send(request))
        return beyond.send(request)

    def _write(self, request: Request, keys: list[str], beyond: Beyond) -> Response:
        requests = [object_request(beyond.account, "GET", request.bucket, key) for key in keys]
        before = [beyond.send(each) for each in requests]
        response = beyond.send(request)
        if response.status < 300:
            with self._lock:
                for key, past in zip(keys, before, strict=True):
                    self._past[request.bucket, key] = _Past(past, self.reads)
        return response

    def _take(self, bucket: str, key: str) -> Response | None:
        """An object as it was, while that is to be seen; this is one of the times."""
        with self._lock:
            past = self._past.get((bucket, key))
            if past is None or past.reads_left == 0:
                return None
            past.reads_left -= 1
            return past.response

    def _listed_before(self, request: Request, response: Response) -> Response:
        query = request.query
        with self._lock:
            keys = [key for bucket, key in self._past if bucket == request.bucket]
        keys = [key for key in keys if key.startswith(query.get("prefix", ""))]
        pasts = {key: past for key in keys if (past := self._take(request.bucket, key)) is not None}
        if not pasts or response.status != 200 or "continuation-token" in query:
            return response
        body = _with_pasts(response.body, pasts, reappear="delimiter" not in query)
        return replace(response, body=body, headers={**response.headers, "content-length": str(len(body))})


def _written(request: Request) -> Iterator[str]:
    """Keys of objects that a request replaces or deletes."""
    if request.method == "POST" and "delete" in request.query:
        yield from (each.text or "" for each in ET.fromstring(request.body).iter() if each.tag.endswith("Key"))
    elif request.key and "partNumber" not in request.query:
        completes = request.method == "POST" and "uploadId" in request.query
        if completes or (request.method in ("PUT", "DELETE") and "uploadId" not in request.query):
            yield request.key


def _as_asked(request: Request, past: Response) -> Response:
    """The answer that a whole object gives to a read of a part of it, or of nothing but its headers."""
    if past.status == 200 and (match := _RANGE.fullmatch(request.headers.get("range", ""))):
        size_bytes, begin = len(past.body), int(match[1])
        body = past.body[begin : int(match[2] or size_bytes) + 1]
        place = f"bytes {begin}-{begin + len(body) - 1}/{size_bytes}"
        past = replace(past, status=206, body=body, headers={**past.headers, "content-range": place})
    headers = {**past.headers, "content-length": str(len(past.body))}
    return replace(past, headers=headers, body=b"" if request.method == "HEAD" else past.body)


def _with_pasts(body: bytes, pasts: dict[str, Response], *, reappear: bool) -> bytes:
    """A listing in which some objects are as they were."""
    ET.register_namespace("", _NAMESPACE)
    root = ET.fromstring(body)
    prefix = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
    is_quoted = root.find(f"{prefix}EncodingType") is not None
    entries = {}
    for entry in root.findall(f"{prefix}Contents"):
        key = entry.findtext(f"{prefix}Key", "")
        entries[unquote(key) if is_quoted else key] = entry
        root.remove(entry)
    for key, past in pasts.items():
        if past.status != 200:
            entries.pop(key, None)
        elif key in entries or reappear:
            entries[key] = _entry(prefix, quote(key, safe="/~") if is_quoted else key, past)
    for _, entry in sorted(entries.items()):
        root.append(entry)
    count = root.find(f"{prefix}KeyCount")
    if count is not None:
        count.text = str(len(entries) + len(root.findall(f"{prefix}CommonPrefixes")))
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return text


def _entry(prefix: str, key: str, past: Response) -> ET.Element:
    entry = ET.Element(f"{prefix}Contents")
    values = {
        "Key": key,
        "LastModified": "2006-03-14T00:00:00.000Z",  # the day S3 began: older than anything
        "ETag": past.headers.get("etag", ""),
        "Size": str(len(past.body)),
        "StorageClass": "STANDARD",
    }
    for name, value in values.items():
        ET.SubElement(entry, f"{prefix}{name}").text = value
    return entry
