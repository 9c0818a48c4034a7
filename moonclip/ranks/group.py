"""A line of one's own between ranks: messages from one to another, by gloo.

It stands outside of torch's registry, so that it outlives ``destroy_process_group``, and uses a part of the store of
its own, so that it is in nobody's way. Messages are CBOR in tensors of bytes: torch's own ways to send objects pickle
them. They go from rank to rank, not by collectives: a rank that fails can say so while others still work, and each
message is told from all others by its tag, so threads need not agree upon an order.
"""

from datetime import timedelta
from itertools import count
from typing import Any, Final

import torch
import torch.distributed as dist

from store.errors import Corrupt, Incompatible, MoonclipError, RankLost
from store.format.canonical import Node, decode
from store.limits import MAX_RANK_MESSAGE_BYTES, RANK_TIMEOUT_SECONDS

ASK: Final = 0
REPLY: Final = 1
OUTCOME: Final = 2
VERDICT: Final = 3
LARGEST: Final = 4
SCALES: Final = 5
_KINDS: Final = 6
_TAGS: Final = 2**28
"""Numbers of messages begin anew after so many: tags have 31 bits."""

_groups: Final = count()


class Group:
    """Lines to all other ranks. Thread-safe, as long as no two threads wait for the same message.

    Args:
        world_size: how many ranks there are.
        rank: which of them this is.

    Raises:
        Incompatible: torch.distributed was not initialised, or for others.
        RankLost: another rank did not come.

    Attributes:
        world_size: as given.
        rank: as given.
    """

    def __init__(self, world_size: int, rank: int) -> None:
        self.world_size = world_size
        self.rank = rank
        if not dist.is_available() or not dist.is_initialized():
            raise Incompatible(
                f"rank {rank} of {world_size} talks to the others by torch.distributed: call"
                " torch.distributed.init_process_group before the manager is made"
            )
        if (dist.get_world_size(), dist.get_rank()) != (world_size, rank):
            found = f"rank {dist.get_rank()} of {dist.get_world_size()}"
            raise Incompatible(f"this is {found} for torch.distributed, not rank {rank} of {world_size}")
        c10d: Any = dist.distributed_c10d  # groups that its public calls make end with destroy_process_group
        store = c10d.PrefixStore(f"moonclip/{next(_groups)}", c10d._get_default_store())  # noqa: SLF001
        try:
            self._gloo: Any | None = c10d.ProcessGroupGloo(
                store, rank, world_size, timedelta(seconds=RANK_TIMEOUT_SECONDS)
            )
        except RuntimeError as error:
            raise RankLost(f"rank {rank} could not reach the others: {_brief(error)}") from error

    @property
    def others(self) -> list[int]:
        """All ranks but this one."""
        return [rank for rank in range(self.world_size) if rank != self.rank]

    def send(self, to: int, kind: int, number: int, message: bytes) -> None:
        """Send a message.

        Args:
            to: the rank.
            kind: what it is about: one of the constants above.
            number: which of that kind, from 0.
            message: what :func:`~moonclip.ranks.messages.encoded` gave.

        Raises:
            RankLost: the rank cannot be reached.
            MoonclipError: the lines are closed.
        """
        gloo = self._opened()
        data = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        tag = _tag(kind, number)
        try:
            gloo.send([torch.tensor([data.numel()])], to, tag).wait()
            gloo.send([data], to, tag).wait()
        except RuntimeError as error:
            raise _lost(to, error) from error

    def receive(self, sender: int, kind: int, number: int) -> Node:
        """Wait for a message.

        Raises:
            RankLost: the rank ended, or sent nothing for ``RANK_TIMEOUT_SECONDS``.
            Corrupt: what it sent is no message.
            MoonclipError: the lines are closed.
        """
        gloo = self._opened()
        tag = _tag(kind, number)
        size = torch.zeros(1, dtype=torch.int64)
        try:
            gloo.recv([size], sender, tag).wait()
            if not 0 < size.item() <= MAX_RANK_MESSAGE_BYTES:
                raise Corrupt(f"a message of {size.item()} bytes from rank {sender}")
            data = torch.empty(int(size.item()), dtype=torch.uint8)
            gloo.recv([data], sender, tag).wait()
        except RuntimeError as error:
            raise _lost(sender, error) from error
        return decode(data.numpy().tobytes(), f"message of rank {sender}")

    def close(self) -> None:
        """Give up sockets and threads, once nobody waits for a message on them; again does nothing.

        What was sent is received all the same. Other ranks that go on talking to this one are told that it is gone.
        """
        self._gloo = None  # torch ends them with the last reference: a thread that still waits holds one

    def _opened(self) -> Any:
        gloo = self._gloo
        if gloo is None:
            raise MoonclipError("this manager is closed, and with it the lines to other ranks; open another")
        return gloo


def _tag(kind: int, number: int) -> int:
    return number % _TAGS * _KINDS + kind


def _lost(rank: int, error: RuntimeError) -> RankLost:
    return RankLost(
        f"rank {rank} cannot be reached: it ended, or did not answer for {RANK_TIMEOUT_SECONDS:.0f} s"
        f" ({_brief(error)}). Start the job again; resume finds the last commit",
        failed_rank=rank,
    )


def _brief(error: RuntimeError) -> str:
    return str(error).partition("\n")[0].partition(". This is")[0]
