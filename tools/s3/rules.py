"""What the fault proxy may do to requests. Each rule stands before the server, or before the next rule."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from threading import Event, Lock
from typing import NamedTuple, Protocol

from .exchange import Request, Response, failure, signed
from .server import Account

_HELD_S = 300
"""A test that forgot to let a request go shall fail, not hang."""

_PUT_CONDITIONS = ("if-match", "if-none-match")


@dataclass(frozen=True)
class Match:
    """Which requests a rule is for: those of a method, for a key, that come at some turns."""

    method: str = "*"
    key: str = "*"
    """A pattern for the whole key, in which `*` stands for slashes too. Requests for a bucket have an empty key."""

    query: str | None = None
    """An argument that is there: `uploadId`, `list-type`, ..."""

    after: int = 0
    """How many of them are let pass first ..."""

    every: int = 1
    """... each which one of the rest is picked ..."""

    times: int | None = None
    """... and how often. None: for ever."""

    def fits(self, request: Request) -> bool:
        """Whether a request counts."""
        if self.query is not None and self.query not in request.query:
            return False
        return fnmatchcase(request.method, self.method) and fnmatchcase(request.key, self.key)

    def picks(self, count: int) -> bool:
        """Whether it is the turn of the one that was counted as this one, beginning with 1."""
        turn, rest = divmod(count - self.after, self.every)
        return rest == 0 and turn > 0 and (self.times is None or turn <= self.times)


ANY = Match()


class Beyond(NamedTuple):
    """What lies behind a rule."""

    send: Callable[[Request], Response]
    account: Account


class Rule(Protocol):
    """Something that happens to requests. Called by many threads at once."""

    @property
    def on(self) -> Match:
        """Which ones."""
        ...

    def handle(self, request: Request, beyond: Beyond) -> Response:
        """Answer, with the help of the server or without."""
        ...


@dataclass(frozen=True)
class CutBody:
    """The connection breaks after a fraction of the answer's body, rounded up."""

    fraction: float
    on: Match = Match(method="GET")

    def handle(self, request: Request, beyond: Beyond) -> Response:
        """Let the server answer, and cut that."""
        response = beyond.send(request)
        sent_bytes = math.ceil(len(response.body) * self.fraction)
        return replace(response, sent_bytes=sent_bytes) if sent_bytes < len(response.body) else response


@dataclass(frozen=True)
class Answer:
    """The server never hears of the request."""

    status: int
    code: str
    retry_after: str | None = None
    on: Match = ANY

    def handle(self, request: Request, beyond: Beyond) -> Response:  # noqa: ARG002 - that is the point
        """Answer in the server's place."""
        more = {} if self.retry_after is None else {"retry-after": self.retry_after}
        return failure(self.status, self.code, "The fault proxy says so.", **more)


@dataclass(frozen=True)
class ExpiredToken:
    """Credentials are too old, until they are renewed."""

    access_key: str | None = None
    """Only what this key signed; none: everything."""

    status: int = 400
    renewed: Event = field(default_factory=Event)
    on: Match = ANY

    def handle(self, request: Request, beyond: Beyond) -> Response:
        """Refuse, or let pass."""
        if self.renewed.is_set() or self.access_key not in (None, request.access_key):
            return beyond.send(request)
        return failure(self.status, "ExpiredToken", "The provided token has expired.")


@dataclass(frozen=True)
class Delay:
    """A request waits before the server until the test lets it go."""

    on: Match = ANY
    arrived: Event = field(default_factory=Event)
    """Set once a request waits."""

    release: Event = field(default_factory=Event)
    """To be set by the test."""

    def handle(self, request: Request, beyond: Beyond) -> Response:
        """Wait."""
        self.arrived.set()
        if not self.release.wait(_HELD_S):
            raise RuntimeError(f"{request.method} {request.key} was never let go: set `release`")
        return beyond.send(request)


@dataclass(frozen=True)
class DropReply:
    """The server does what it is asked to, and nobody hears of it."""

    on: Match = ANY

    def handle(self, request: Request, beyond: Beyond) -> Response:
        """Let the server answer, and lose that."""
        return replace(beyond.send(request), is_lost=True)


@dataclass(frozen=True)
class Kill:
    """After this request, which is answered, connections are refused until the proxy is revived."""

    on: Match = ANY

    def handle(self, request: Request, beyond: Beyond) -> Response:
        """Let the server answer a last time."""
        return replace(beyond.send(request), is_last=True)


@dataclass(frozen=True)
class IgnoreConditions:
    """The server has never heard of `If-Match` and `If-None-Match` on what changes something."""

    on: Match = ANY

    def handle(self, request: Request, beyond: Beyond) -> Response:
        """Take the conditions off."""
        if request.method not in ("PUT", "POST", "DELETE") or not set(_PUT_CONDITIONS) & set(request.headers):
            return beyond.send(request)
        return beyond.send(signed(request.without(*_PUT_CONDITIONS), beyond.account))


@dataclass(frozen=True)
class MangleChunked:
    """A body in signed or trailed chunks is taken for the object itself, framing and all."""

    on: Match = Match(method="PUT")

    def handle(self, request: Request, beyond: Beyond) -> Response:
        """Have the server store what came over the wire."""
        if not request.headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
            return beyond.send(request)
        of_the_framing = ("content-encoding", "transfer-encoding", "x-amz-trailer", "x-amz-decoded-content-length")
        plain = request.without(*of_the_framing, "x-amz-sdk-checksum-algorithm")
        return beyond.send(signed(replace(plain, in_http_chunks=False), beyond.account))


@dataclass(frozen=True)
class EqualParts:
    """All parts of an upload but the last have to be of one size, and the last not above it, as R2 wants it."""

    on: Match = Match(query="uploadId")
    _sizes: dict[str, dict[int, int]] = field(default_factory=dict, init=False, repr=False)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)

    def handle(self, request: Request, beyond: Beyond) -> Response:
        """Note sizes of parts, and compare them at the end."""
        upload = request.query["uploadId"]
        if request.method == "PUT":
            size_bytes = int(request.headers.get("x-amz-decoded-content-length", len(request.body)))
            with self._lock:
                self._sizes.setdefault(upload, {})[int(request.query["partNumber"])] = size_bytes
        elif request.method == "POST":
            with self._lock:
                sizes = [size for _, size in sorted(self._sizes.get(upload, {}).items())]
            if len(set(sizes[:-1])) > 1 or max(sizes, default=0) > next(iter(sizes), 0):
                return failure(400, "InvalidPart", "All non-trailing parts must have the same length.")
        return beyond.send(request)
