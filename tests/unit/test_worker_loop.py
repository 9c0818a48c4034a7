"""The worker's loop without a process of its own: all that it hears is sent beforehand."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from store.naming.refnames import branch_name
from store.repository import Repository
from store.worker.channel import Channel
from store.worker.loop import Worker
from store.worker.messages import Close, Ended, Ready, Save, heard, packed
from store.worker.peers import Peer
from tests.workers import Asked

ALIVE = Peer(-1, lambda: False)
"""Whoever is at the other end, as far as can be told."""


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        yield repo


@contextmanager
def channels() -> Iterator[tuple[Channel, Channel]]:
    """The trainer's end, and the worker's."""
    ours, others = (Channel(end, ALIVE) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    try:
        yield ours, others
    finally:
        ours.close()
        others.close()


def open_files() -> list[Path]:
    return sorted(fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.exists())


def test_a_worker_that_hears_something_else_than_an_answer_ends_and_publishes_nothing(repo: Repository) -> None:
    asked = Asked(0, b"0" * 5000)
    with channels() as (trainer, own):
        trainer.send(Save(packed(asked.order()[0]), asked.arena.size_bytes, asks=True), [asked.arena.fd])
        trainer.send(Close())
        trainer.close()
        with pytest.raises(SystemExit, match="Close came for an answer"):
            Worker(repo, own, ALIVE).run()
    assert repo.refs.read(branch_name("main")) is None


def test_what_was_handed_over_is_heard_though_its_sender_died_with_something_unread(repo: Repository) -> None:
    asked = Asked(0, b"0" * 5000)
    with channels() as (trainer, own):
        own.send(Ready())
        trainer.send(Save(packed(asked.order()[0]), asked.arena.size_bytes), [asked.arena.fd])
        trainer.close()  # the kernel says that the line was reset, before what was sent on it
        Worker(repo, own, ALIVE).run()
    assert repo.refs.read(branch_name("main")) is not None


def test_the_descriptor_that_came_with_an_order_that_cannot_be_read_is_closed(repo: Repository) -> None:
    asked = Asked(0, b"0" * 5000)
    order, arena = asked.order()
    unreadable = order._replace(request=replace(order.request, items=[1]))  # type: ignore[list-item]
    with channels() as (trainer, own):
        before = open_files()
        trainer.send(Save(unreadable, arena.size_bytes), [arena.fd])
        trainer.send(Close())
        Worker(repo, own, ALIVE).run()
        told = [trainer.receive() for _ in ("it is ready", "how the save ended")]
        assert open_files() == before
    assert told[1] is not None
    ended, _ = told[1]
    assert isinstance(ended, Ended)
    assert isinstance(heard(ended).error, AttributeError)
