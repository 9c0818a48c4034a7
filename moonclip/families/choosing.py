"""Which of several models another one comes from.

First nothing of tensors is read: a model counts if its tensors resemble as much of the wanted one as has to be saved.
Then the wanted one is compared with all that count, at few chunks; with the nearest of them at more; and so on. Chunks
are taken from tensors in which these models differ: of fine-tunes with one frozen backbone that is where to tell them
apart. Chunks that are equal are known by their ids, unread.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from store.parallel import Threads

from .models import Model, Skeleton
from .pairing import Key, pair
from .sampling import Contender, Estimate, Sampler
from .spots import Spot, Wanted, chunks_of, spread

MOST_SHARE: Final = 0.9
"""A model is a base only if it leaves at most this share of what the wanted one would take alone: sampling errs."""

_TIE: Final = 1.015
"""Models that leave at most so much more than the nearest are as near, and the oldest of them is the base: what is
stored against it is cheaper to read. Measured on real fine-tunes of some tens of steps: one that is tuned further is
nearer to what it comes from than to the base of both by 2 to 5 %, and two of one base to that than to each other."""

_LOOK_SPOTS: Final = 24
"""Chunks by which the last decision is made, and savings are told."""


_COMPARISONS: Final = 32
"""Chunks of other models that are read in a round, at most, but for one of each: what a search takes depends little on
how many models there are. Of twelve real models the same bases were found with 32 as with 128."""


class _Round(NamedTuple):
    """A comparison of many models.

    Attributes:
        spots: chunks to look at, at most.
        kept: how many models go on.
    """

    spots: int
    kept: int


_ROUNDS: Final = (_Round(4, 12), _Round(16, 3))
_LAST: Final = _Round(_LOOK_SPOTS, 1)


@dataclass(frozen=True, slots=True)
class Choice:
    """A base that was chosen.

    Attributes:
        contender: it, and which of its tensors resembles which.
        estimate: what it saves.
    """

    contender: Contender
    estimate: Estimate

    @property
    def is_worth_it(self) -> bool:
        """Whether it saves anything worth mentioning."""
        return self.estimate.against_bytes <= MOST_SHARE * self.estimate.alone_bytes


class Chooser:
    """Compares one model that is to be stored with others.

    Args:
        wanted: its tensors.
        threads: read and decode.
    """

    def __init__(self, wanted: Sequence[Wanted], threads: Threads) -> None:
        self._wanted = wanted
        self._kinds = {tensor.key: tensor.kind for tensor in wanted}
        self._sampler = Sampler(threads)
        self._pairs: dict[Skeleton, dict[Key, Key]] = {}

    def paired(self, model: Model) -> Contender:
        """A model, and which of its tensors resembles which that is wanted."""
        skeleton = model.skeleton
        if skeleton not in self._pairs:
            self._pairs[skeleton] = pair(self._kinds, model.kinds)
        return Contender(model, {key: model.tensor(other) for key, other in self._pairs[skeleton].items()})

    def nearest(self, models: Sequence[Model]) -> Choice | None:
        """The model that saves the most, of several as good ones the oldest; ``None`` if none resembles enough of it.

        Args:
            models: which to compare.

        Raises:
            Corrupt: what is wanted is not what it should be.
            OSError: it cannot be read.
        """
        contenders = [self.paired(model) for model in models if self._may_pay(model)]
        contenders = [contender for contender in contenders if self._covers_enough(contender)]
        for comparison in _ROUNDS:
            if len(contenders) > comparison.kept:
                contenders = self._ordered(contenders, comparison)[: comparison.kept]
        for contender in self._ordered(contenders, _LAST):
            choice = self.measured(contender)
            if choice is not None:
                return choice
        return None

    def measured(self, contender: Contender) -> Choice | None:
        """What a model saves; ``None`` if it cannot be read. Raises as :meth:`nearest` does."""
        (estimate,) = self._sampler.estimates([contender], spread(chunks_of(self._wanted), _LOOK_SPOTS))
        return None if estimate is None else Choice(contender, estimate)

    # --- how --------------------------------------------------------------------------------------------------------

    def _may_pay(self, model: Model) -> bool:
        """Whether a model has tensors of the right shapes; what their names are costs more to compare."""
        skeleton = model.skeleton
        if skeleton in self._pairs:
            return True
        rows = {(len(kind.shape), kind.shape[1:]) for _, kinds in skeleton for _, kind in kinds}
        return self._is_enough(t for t in self._wanted if (len(t.kind.shape), t.kind.shape[1:]) in rows)

    def _covers_enough(self, contender: Contender) -> bool:
        return self._is_enough(tensor for tensor in self._wanted if tensor.key in contender.pairs)

    def _is_enough(self, tensors: Iterable[Wanted]) -> bool:
        total_bytes = sum(tensor.size_bytes for tensor in self._wanted)
        return 0 < (1 - MOST_SHARE) * total_bytes <= sum(tensor.size_bytes for tensor in tensors)

    def _spots(self, contenders: Sequence[Contender], comparison: _Round) -> list[Spot]:
        """Chunks of tensors in which models differ: of those that all have alike nothing can be told."""
        differing = list(chunks_of(tensor for tensor in self._wanted if _differ(tensor.key, contenders)))
        return spread(differing, min(comparison.spots, max(1, _COMPARISONS // max(1, len(contenders)))))

    def _ordered(self, contenders: Sequence[Contender], comparison: _Round) -> list[Contender]:
        """Those that can be read, the nearest first, of those that are as near the oldest.

        Some are as near only because others differ everywhere, and what these differ in was not among what was looked
        at: so they are compared once more by themselves.
        """
        nearest, others = self._ranked(contenders, comparison)
        if 1 < len(nearest) < len(contenders):
            nearest, further = self._ranked(nearest, comparison)
            others = [*further, *others]
        return [*nearest, *others]

    def _ranked(self, contenders: Sequence[Contender], comparison: _Round) -> tuple[list[Contender], list[Contender]]:
        """Those that are as near as the nearest, the oldest first; and others that can be read, the nearest first."""
        estimates = self._sampler.estimates(contenders, self._spots(contenders, comparison))
        told = [(e.against_bytes, c) for e, c in zip(estimates, contenders, strict=True) if e is not None]
        most = _TIE * min((size_bytes for size_bytes, _ in told), default=0.0)
        told.sort(key=lambda one: (max(most, one[0]), one[1].model.order))
        near_count = sum(size_bytes <= most for size_bytes, _ in told)
        ranked = [contender for _, contender in told]
        return ranked[:near_count], ranked[near_count:]


def _differ(key: Key, contenders: Sequence[Contender]) -> bool:
    return len({entry.chunks if (entry := each.pairs.get(key)) is not None else None for each in contenders}) > 1
