"""Ranks that are threads of this process, with queues for lines: for what one of them does while others fail."""

import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from moonclip import CheckpointManager
from moonclip.ranks.talk import Talk
from store.errors import RankLost
from store.format.canonical import Node, decode

PATIENCE_SECONDS = 10
"""How long a rank waits for another before a test has failed: in the open it would be half an hour."""


class Line:
    """What a rank has in place of a ``Group``."""

    def __init__(self, rank: int, world_size: int, queues: dict[tuple[int, ...], SimpleQueue[bytes]]) -> None:
        self.rank = rank
        self.world_size = world_size
        self.others = [each for each in range(world_size) if each != rank]
        self._queues = queues

    def send(self, to: int, kind: int, number: int, message: bytes) -> None:
        """Put it where the other looks."""
        self._queues.setdefault((self.rank, to, kind, number), SimpleQueue()).put(message)

    def receive(self, sender: int, kind: int, number: int) -> Node:
        """Wait for it."""
        try:
            data = self._queues.setdefault((sender, self.rank, kind, number), SimpleQueue()).get(
                timeout=PATIENCE_SECONDS
            )
        except Empty:
            raise RankLost(f"rank {sender} told rank {self.rank} nothing", failed_rank=sender) from None
        return decode(data)

    def close(self) -> None:
        """There is nothing to give up."""


def talking(world_size: int, act: Callable[[Talk], Any]) -> list[Any]:
    """What each rank's part comes to, or the error that ends it."""
    queues: dict[tuple[int, ...], SimpleQueue[bytes]] = {}
    outcomes: list[Any] = [None] * world_size

    def be(rank: int) -> None:
        line: Any = Line(rank, world_size, queues)
        try:
            outcomes[rank] = act(Talk(line))
        except BaseException as error:
            outcomes[rank] = error

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def managing(
    monkeypatch: pytest.MonkeyPatch, root: Path, act: Callable[[CheckpointManager, int], Any], **arguments: Any
) -> list[Any]:
    """The same of two ranks with a manager each, of one store."""
    own = threading.local()
    monkeypatch.setattr("moonclip.manager.joined", lambda *_: own.talk)

    def be(talk: Talk) -> Any:
        own.talk = talk
        with CheckpointManager(root, **arguments) as mgr:
            return act(mgr, talk.group.rank)

    return talking(2, be)
