"""The fault proxy: an HTTP server before an S3 server that does to requests what rules say, and notes each."""

import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from .exchange import Request, Response, send
from .processes import LOOPBACK
from .rules import Beyond, Rule
from .server import Account

_POLL_S = 0.02
_CLOSE_TIMEOUT_S = 10
_BACKLOG = 128
_LOST = Response(0, {}, is_lost=True)


class Logged(NamedTuple):
    """One request, and what came of it."""

    method: str
    bucket: str
    key: str
    query: dict[str, str]
    status: int
    """0 where no answer was sent."""

    received_bytes: int
    """Of the request's body."""

    sent_bytes: int
    """Of the answer's body."""


@dataclass
class _Placed:
    """A rule, and how many requests it has counted."""

    rule: Rule
    count: int = 0


class FaultProxy:
    """Stands before a server, on a port of its own; all that it does not spoil passes unchanged, signatures too.

    The `Host` that a client signed is what the server sees, so the server accepts what came by here. Rules that change
    a request sign it anew. Bodies are held in memory. Use as a context manager, or `close`.

    Thread-safe. Rules apply in order: the first one is nearest to the client.
    """

    def __init__(self, upstream: Account, *rules: Rule) -> None:
        self._upstream = upstream
        self._lock = threading.Lock()
        self._requests: list[Logged] = []
        self._placed: list[_Placed] = []
        self._errors: list[Exception] = []
        self.place(*rules)
        self._listener: _Listener | None = _Listener(self, 0)
        self.account = replace(upstream, endpoint_url=f"http://{LOOPBACK}:{self._listener.server_port}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def endpoint_url(self) -> str:
        """Where it listens; `account` has it too."""
        return self.account.endpoint_url

    @property
    def requests(self) -> list[Logged]:
        """What came through so far, in the order of the answers."""
        with self._lock:
            return list(self._requests)

    def place(self, *rules: Rule) -> None:
        """Put rules in place of those that are there, and begin to count anew."""
        with self._lock:
            self._placed = [_Placed(rule) for rule in rules]

    def forget(self) -> None:
        """Empty the log."""
        with self._lock:
            self._requests.clear()

    def revive(self) -> None:
        """Listen again, after a `Kill`."""
        if self._listener is None:
            self._listener = _Listener(self, int(self.endpoint_url.rpartition(":")[2]))

    def go_down(self) -> None:
        """Refuse connections, and cut those that are open."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def close(self) -> None:
        """Go down for good.

        Raises:
            Exception: the first error in a rule, or in the proxy; clients saw a closed connection.
        """
        self.go_down()
        if self._errors:
            raise self._errors[0]

    def note(self, error: Exception) -> None:
        """Keep an error until `close`."""
        self._errors.append(error)

    def answer(self, request: Request) -> Response:
        """What the client is to get; the log has it then."""
        with self._lock:
            rules = [each.rule for each in self._placed if _is_picked(each, request)]
        try:
            response = self._beyond(rules).send(request)
        except OSError:
            response = _LOST  # the server is down: for the client, so is this
        if response.is_last:
            self.go_down()  # before the client can know
        sent_bytes = 0 if response.is_lost else _arriving(response)
        status = 0 if response.is_lost else response.status
        logged = Logged(
            request.method, request.bucket, request.key, request.query, status, len(request.body), sent_bytes
        )
        with self._lock:
            self._requests.append(logged)
        return response

    def _beyond(self, rules: Sequence[Rule]) -> Beyond:
        if not rules:
            return Beyond(lambda request: send(request, self._upstream), self._upstream)
        first, others = rules[0], self._beyond(rules[1:])
        return Beyond(lambda request: first.handle(request, others), self._upstream)


def _is_picked(placed: _Placed, request: Request) -> bool:
    if not placed.rule.on.fits(request):
        return False
    placed.count += 1
    return placed.rule.on.picks(placed.count)


def _arriving(response: Response) -> int:
    return len(response.body) if response.sent_bytes is None else response.sent_bytes


class _Listener(ThreadingHTTPServer):
    """Accepts connections until it is closed; then none is left."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = _BACKLOG

    def __init__(self, proxy: FaultProxy, port: int) -> None:
        self.proxy = proxy
        self._open: set[socket.socket] = set()
        self._changed = threading.Condition()
        super().__init__((LOOPBACK, port), _Handler)
        self._loop = threading.Thread(target=self.serve_forever, args=(_POLL_S,), name="fault proxy", daemon=True)
        self._loop.start()

    def close(self) -> None:
        """Stop, cut all connections but the one whose thread this is, and wait for their threads."""
        self.shutdown()
        self._loop.join()
        self.server_close()
        own = getattr(threading.current_thread(), "connection", None)
        with self._changed:
            others = self._open - {own}
            for connection in others:
                with suppress(OSError):  # the client may have gone first
                    connection.shutdown(socket.SHUT_RDWR)
            if own is None:
                self._changed.wait_for(lambda: not self._open, _CLOSE_TIMEOUT_S)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Count the connection before its thread starts."""
        with self._changed:
            self._open.add(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection."""
        threading.current_thread().connection = request  # type: ignore[attr-defined]
        super().process_request_thread(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close one connection."""
        with self._changed:
            super().shutdown_request(request)
            self._open.discard(request)
            self._changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Clients may go at any time; anything else is a fault of ours."""
        error = sys.exception()
        if isinstance(error, Exception) and not isinstance(error, ConnectionError):
            self.proxy.note(error)


class _Handler(BaseHTTPRequestHandler):
    """Reads requests of one connection, and writes what the proxy answers."""

    protocol_version = "HTTP/1.1"
    server: _Listener

    def _handle(self) -> None:
        in_http_chunks = self.headers.get("transfer-encoding", "").lower() == "chunked"
        body = self._read_chunks() if in_http_chunks else self._read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        response = self.server.proxy.answer(Request(self.command, self.path, headers, body, in_http_chunks))
        if response.is_lost or response.is_last:
            self.close_connection = True
        if not response.is_lost:
            self._write(response)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815 - http.server looks for these names

    def _read(self, size_bytes: int) -> bytes:
        """Half a body shall not look like a whole one to the server."""
        data = self.rfile.read(size_bytes)
        if len(data) < size_bytes:
            raise ConnectionResetError("the client went before its request was whole")
        return data

    def _read_chunk_size(self) -> int:
        line = self.rfile.readline()
        if not line:
            raise ConnectionResetError("the client went between chunks")
        return int(line.partition(b";")[0], 16)

    def _read_chunks(self) -> bytes:
        chunks = []
        while size_bytes := self._read_chunk_size():
            chunks.append(self._read(size_bytes + len(b"\r\n"))[:size_bytes])
        while self.rfile.readline().strip():
            pass
        return b"".join(chunks)

    def _write(self, response: Response) -> None:
        self.send_response_only(response.status)
        for name, value in response.headers.items():
            self.send_header(name, value)
        may_have_body = response.status not in (204, 304) and self.command != "HEAD"
        if "content-length" not in response.headers and may_have_body:
            self.send_header("content-length", str(len(response.body)))
        if self.close_connection:
            self.send_header("connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body[: response.sent_bytes])
        if response.sent_bytes is not None:
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Say nothing: `FaultProxy.requests` says it."""
