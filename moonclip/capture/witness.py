"""Proof that tensors which are copied while training goes on did not change meanwhile.

Two witnesses, since neither sees all. Version counters miss what fused optimizers, collectives, compiled code and
writes through ``.data`` do. Words sampled at the save and compared with the copy miss a write to few elements. A write
that raises no counter and meets no sampled word goes unseen; ``manager.lock()`` is for those.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import torch

from store.limits import WITNESS_WORDS
from store.saving.inputs import Span

from ..state.tensors import TensorSource, words_of
from .devices import Moment
from .owned import counted

_GOLDEN: Final = 0.6180339887498949
_FRACTIONS: Final = (torch.arange(1, WITNESS_WORDS + 1, dtype=torch.float64, device="cpu") * _GOLDEN) % 1.0
"""Where words are taken from: multiples of the golden ratio are spread evenly, and keep to no column of a matrix."""


class Watched(NamedTuple):
    """A tensor that is still to be copied.

    Attributes:
        source: the tensor.
        owner: what its owner holds: the counter is read there.
        span: where in the arena it goes.
        storage: kept alive: whoever exchanges a tensor's ``.data`` gives up what is being copied.
    """

    source: TensorSource
    owner: torch.Tensor
    span: Span
    storage: torch.UntypedStorage


def sampled(words: torch.Tensor) -> torch.Tensor:
    """Some words of a tensor, spread over it; on its device. The same places for the same number of words."""
    return torch.take(words, _places_in(words.numel()).to(words.device))


@lru_cache(maxsize=1024)
def _places_in(count: int) -> torch.Tensor:
    return (_FRACTIONS * count).to(torch.int64)


class Witness:
    """What some tensors are at this moment.

    Args:
        watched: the tensors, not empty.

    Cost: about 2 µs a tensor. Words of a device's tensors stay on it, so that nobody waits for its queue.
    """

    def __init__(self, watched: Sequence[Watched]) -> None:
        self._watched = watched
        self._versions = [counted(one.owner) for one in watched]
        self._words = [sampled(words_of(one.source.tensor)) for one in watched]
        self._sampling = Moment(one.source for one in watched)

    def changed(self, memory: memoryview) -> Span | None:
        """Where the first tensor lies that was altered before it had been copied; ``None`` if none was.

        Args:
            memory: of the arena that all of them have been copied into.

        Raises:
            RuntimeError: a device failed.

        Cost: about 3 µs a tensor.
        """
        self._sampling.wait()
        for one, version, words in zip(self._watched, self._versions, self._words, strict=True):
            copied = torch.frombuffer(memory[slice(*one.span)], dtype=words.dtype)
            if counted(one.owner) != version or not _equal(sampled(copied), words.cpu()):
                return one.span
        return None


def _equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether words are the same bit for bit: those of 16 bytes are numbers to torch, and a NaN would equal nothing."""
    return torch.equal(left.view(torch.uint8), right.view(torch.uint8))
