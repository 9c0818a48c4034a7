"""F10: an S3 server that answers what no server answers: our errors come of it, and little memory is taken."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest

from store.errors import Corrupt, MoonclipError, RemoteError, RemoteUnavailable
from store.limits import MAX_ANSWER_BYTES
from store.remotes.storages.credentials import Keys
from store.remotes.storages.retrying import Retries
from store.remotes.storages.s3 import S3Storage
from store.remotes.storages.s3client import S3Options
from store.remotes.storages.urls import BucketPlace

Answer = Sequence[bytes] | Callable[[], Iterator[bytes]]

OK = b"HTTP/1.1 200 OK\r\n"
LISTED = b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">%s</ListBucketResult>'
BLOCK_BYTES = 1 << 16


class Server:
    """Answers every request with the same bytes.

    Attributes:
        sent_bytes: how many of them a client took.
    """

    def __init__(self, answer: Answer) -> None:
        self.sent_bytes = 0
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in list(self._threads):
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as reader, suppress(OSError):
            while reader.readline():
                while reader.readline() not in {b"\r\n", b""}:
                    pass
                for part in self._answer() if callable(self._answer) else self._answer:
                    connection.sendall(part)
                    self.sent_bytes += len(part)


@contextmanager
def served(answer: Answer) -> Iterator[tuple[S3Storage, Server]]:
    with closing(Server(answer)) as server:
        place = BucketPlace("bucket", "p/")
        options = S3Options(place, server.url, "us-east-1", True, Keys("key", "secret"), Retries(attempts=2))
        with closing(S3Storage(options)) as storage:
            yield storage, server


def plain(headers: bytes, body: bytes = b"") -> Answer:
    return [OK + headers + b"\r\n\r\n" + body]


def xml(body: bytes) -> Answer:
    return plain(b"Content-Type: application/xml\r\nContent-Length: %d" % len(body), body)


def contents(inside: bytes) -> Answer:
    return xml(LISTED % (b"<Contents>" + inside + b"</Contents>"))


def _entities() -> bytes:
    nested = b"".join(b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(9))
    return b'<!DOCTYPE l [<!ENTITY a "' + b"a" * 999 + b'">' + nested + b"]><ListBucketResult>&j;</ListBucketResult>"


GET: dict[str, Answer] = {
    "negative length": plain(b"Content-Length: -5", b"abc"),
    "no number": plain(b"Content-Length: abc", b"abc"),
    "more than a machine word": plain(b"Content-Length: 99999999999999999999", b"abc"),
    "two lengths": plain(b"Content-Length: 3\r\nContent-Length: 7", b"abc"),
    "no date": plain(b"Content-Length: 3\r\nLast-Modified: yesterday", b"abc"),
    "no status": [b"HTTP/1.1 abc\r\nContent-Length: 0\r\n\r\n"],
    "unknown status": [b"HTTP/1.1 999 \r\nContent-Length: 0\r\n\r\n"],
    "no HTTP": [bytes(range(256)) + b"\r\n\r\n"],
    "elsewhere": [
        b"HTTP/1.1 301 M\r\nLocation: file:///etc/passwd\r\nx-amz-bucket-region: ../x\r\nContent-Length: 0\r\n\r\n"
    ],
}
LIST: dict[str, Answer] = {
    "size is no number": contents(b"<Key>p/packs/a</Key><Size>abc</Size>"),
    "size is too long a number": contents(b"<Key>p/packs/a</Key><Size>" + b"9" * 5000 + b"</Size>"),
    "date is none": contents(b"<Key>p/packs/a</Key><Size>1</Size><LastModified>x</LastModified>"),
    "the same page for ever": xml(
        LISTED % b"<IsTruncated>true</IsTruncated><NextContinuationToken>a</NextContinuationToken>"
    ),
    "entities in entities": xml(_entities()),
    "a file of ours": xml(
        b'<!DOCTYPE l [<!ENTITY a SYSTEM "file:///etc/passwd">]><ListBucketResult>&a;</ListBucketResult>'
    ),
    "no XML": xml(b"\xff\xfe<<<"),
}
NOTHING_OF_OURS: dict[str, Answer] = {
    "negative size": contents(b"<Key>p/packs/a</Key><Size>-1</Size>"),
    "no key": contents(b"<Size>1</Size>"),
    "text": contents(b"x"),
    "another key": contents(b"<Key>elsewhere/packs/a</Key><Size>1</Size>"),
    "very deep": xml(b"<a>" * 20_000 + b"</a>" * 20_000),
}


@pytest.mark.parametrize("name", GET)
def test_f10_objects_that_no_server_sends(name: str) -> None:
    with served(GET[name]) as (storage, _):
        for ask in (lambda: storage.get("format", 100), lambda: storage.stat("format")):
            with suppress(MoonclipError):
                found: Any = ask()
                size_bytes = len(found[0]) if isinstance(found[0], bytes) else found.size_bytes
                assert size_bytes >= 0


def test_f10_a_negative_length_is_none() -> None:
    with served(GET["negative length"]) as (storage, _), pytest.raises(Corrupt, match="unknown length"):
        storage.get("format", 100)


@pytest.mark.parametrize("name", LIST)
def test_f10_listings_that_no_server_sends(name: str) -> None:
    with served(LIST[name]) as (storage, _), pytest.raises(RemoteError):
        list(storage.list("packs/"))


@pytest.mark.parametrize("name", NOTHING_OF_OURS)
def test_f10_listings_in_which_there_is_nothing(name: str) -> None:
    with served(NOTHING_OF_OURS[name]) as (storage, _):
        assert list(storage.list("packs/")) == []


@pytest.mark.parametrize("date", [b"yesterday", b"Mon, 01 Jan 2020 00:00:00 +99999999999999999999"])
def test_f10_times_that_are_none(date: bytes) -> None:
    with served(plain(b"Content-Length: 0\r\nDate: " + date)) as (storage, _), pytest.raises(RemoteError, match="time"):
        storage.now_ns()


@pytest.mark.parametrize("status", [b"200 OK", b"403 Forbidden"])
def test_f10_an_answer_without_end_is_read_so_far(status: bytes) -> None:
    def answer() -> Iterator[bytes]:
        yield b"HTTP/1.1 " + status + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
        while True:
            yield b"%x\r\n" % BLOCK_BYTES + b" " * BLOCK_BYTES + b"\r\n"

    with served(answer) as (storage, server):
        with pytest.raises(RemoteUnavailable):
            list(storage.list("packs/"))
        assert server.sent_bytes < 4 * (MAX_ANSWER_BYTES + (16 << 20))  # what was asked, and what sockets hold
