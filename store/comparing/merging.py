"""Merging commits by averaging their tensors: a *soup* (Wortsman et al., 2022), with its lineage kept.

What is to be merged is compared first, and refused before anything is written. Then each chunk is averaged when its
turn to be stored comes, so that no tensor has to fit into memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from ..errors import Conflict, Incompatible, telling
from ..format.dtypes import dtype
from ..format.entries import ContainerEntry, Entry, TensorEntry
from ..format.numerals import Numbers, numeral
from ..format.objects import Commit
from ..format.trees import Ties
from ..ids import CommitId, short
from ..limits import ARITHMETIC_ELEMENTS, MERGE_PROBLEMS_SHOWN
from ..naming.refnames import branch_name
from ..reading.reader import ObjectReader
from ..reading.retrieve import execute, gather, plan_span
from ..repository import Repository
from ..saving.inputs import Input, ItemInput, MadeInput, StoredInput
from ..saving.saver import SaveRequest
from ..saving.underway import saving
from .matching import Match, changed_values, is_same_tensor
from .segments import Pair

WEIGHTS = "average"
"""Key in a merge's metadata: the weight of each parent."""


@dataclass(frozen=True, slots=True)
class Merge:
    """What to merge, and where.

    Attributes:
        commits: what is averaged, at least two; the parents of the commit that is made.
        branch: branch to commit on, short name; it is made if it does not exist, and has to be at the first of the
            commits if it does.
        weights: of each commit, in proportion: they are divided by their sum. All the same if ``None``.
        items: items to average. The commit has no others: a mean of optimizers is none.
        message: what a person says of it.
        take_first: take from the first commit what has no average and is not equal in all: values, integers, and the
            bytes of packed floats. Without it they are refused.
    """

    commits: Sequence[CommitId]
    branch: str
    weights: Sequence[float] | None = None
    items: Sequence[str] = ("model",)
    message: str = ""
    take_first: bool = False


def merge(repository: Repository, wanted: Merge) -> CommitId:
    """Average commits into one with all of them as parents.

    Floats and complex numbers are summed in float64 with their weights, and rounded once, to the nearest value of their
    dtype and of two such to the even one. What is equal in all commits stays as it is.

    Raises:
        Incompatible: weights that make no average, or commits that do not match by name, dtype, shape and ties, or
            differ in what has no average. The message lists it, and nothing was written.
        NotFound: a commit lacks an item, or a chunk is missing.
        Conflict: the branch is not at the first commit, or moved meanwhile.
        Corrupt: a chunk is damaged; the message names the tensor. Refs are as before.
        ReadOnly: the store cannot be written from here.
        OSError: writing failed. Refs are as before.

    Cost: reads all chunks that differ. Memory of one chunk of each commit, and two more, for each thread.
    """
    repository.require_writable()
    weights = average_weights(wanted)
    parent = _branch_at(repository, wanted)
    items = _inputs(repository, wanted, weights)
    request = SaveRequest(
        items=items,
        branch=wanted.branch,
        parent=parent,
        merged=tuple(wanted.commits[0 if parent is None else 1 :]),
        message=wanted.message,
        metadata={WEIGHTS: list(weights)},
    )
    with saving(repository.layout.root, repository.files, wanted.branch):
        return repository.save(request).commit


def average_weights(wanted: Merge) -> tuple[float, ...]:
    """Weights of the commits, which add up to 1.

    Raises:
        Incompatible: fewer than two commits, one twice, or weights that make no average.
    """
    count = len(wanted.commits)
    if count < 2 or len(set(wanted.commits)) < count:
        named = ", ".join(map(short, wanted.commits))
        raise Incompatible(f"a merge takes two commits or more, each once, not {named or 'none'}")
    weights = [1.0] * count if wanted.weights is None else list(map(float, wanted.weights))
    if len(weights) != count:
        raise Incompatible(f"{len(weights)} weights for {count} commits; give one for each")
    total = sum(weights)
    if not all(map(isfinite, weights)) or not isfinite(total) or total <= 0:
        raise Incompatible(f"weights have to be numbers with a sum above 0, not {', '.join(map(str, weights))}")
    return tuple(weight / total for weight in weights)


def _branch_at(repository: Repository, wanted: Merge) -> CommitId | None:
    """Where the branch is, ``None`` if it is to be made."""
    tip = repository.refs.read(branch_name(wanted.branch))
    if tip is not None and tip != wanted.commits[0]:
        raise Conflict(
            f"branch {wanted.branch!r} is at {short(tip)}, and a merge on it has to begin with that, not with"
            f" {short(wanted.commits[0])}; name the branch's tip first, or a new branch to put the merge on",
            branch=wanted.branch,
            expected=wanted.commits[0].hex(),
            got=tip.hex(),
        )
    return tip


# --- what each entry becomes ----------------------------------------------------------------------------------------


def _inputs(repository: Repository, wanted: Merge, weights: Sequence[float]) -> list[ItemInput]:
    commits = [repository.commit(commit) for commit in wanted.commits]
    items = [_Item(repository, name, commits, weights, take_first=wanted.take_first) for name in wanted.items]
    inputs = [item.input() for item in items]
    problems = [problem for item in items for problem in item.problems]
    if problems:
        shown, more = problems[:MERGE_PROBLEMS_SHOWN], len(problems) - MERGE_PROBLEMS_SHOWN
        lines = [f"  {problem}" for problem in shown] + ([f"  and {more} more"] if more > 0 else [])
        hint = (
            "\n--take-first (take_first=True) takes the first commit's"
            if any(item.has_choice for item in items)
            else ""
        )
        raise Incompatible(
            "these commits cannot be averaged:\n" + "\n".join(lines) + hint,
            problems=problems,
        )
    return inputs


class _Item:
    """One item of all commits.

    Attributes:
        problems: why they cannot be merged, in words.
        has_choice: whether some of these go away if the first commit's is taken.
    """

    def __init__(
        self,
        repository: Repository,
        name: str,
        commits: Sequence[Commit],
        weights: Sequence[float],
        *,
        take_first: bool,
    ) -> None:
        self.problems: list[str] = []
        self.has_choice = False
        self._repository = repository
        self._name = name
        self._weights = weights
        self._take_first = take_first
        trees = [repository.tree(commit, name) for commit in commits]
        repository.bring(entry for tree in trees for _, entry in tree)  # before threads read it
        self._commits = [short(commit.id) for commit in commits]
        self._ties: list[Ties] = [tree.ties for tree in trees]
        self._sides: list[Mapping[str, Entry]] = [dict(tree) for tree in trees]

    def input(self) -> ItemInput:
        """What is stored of it, if there are no problems."""
        entries = {name: given for name, given in self._entries() if given is not None}
        first, *others = (sorted(ties) for ties in self._ties)
        self.problems += [
            f"{self._name}: other names are one tensor in {self._commits[number]} than in {self._commits[0]}"
            for number, ties in enumerate(others, 1)
            if ties != first
        ]
        return ItemInput(self._name, entries, self._ties[0])

    def _entries(self) -> Iterator[tuple[str, Input | None]]:
        for name in dict.fromkeys(name for side in self._sides for name in side):
            where = f"{self._name}::{name}" if name else self._name
            lacking = [commit for commit, side in zip(self._commits, self._sides, strict=True) if name not in side]
            if lacking:
                self.problems.append(f"{where} is not in {', '.join(lacking)}")
            else:
                yield name, self._merged(where, name, [side[name] for side in self._sides])

    def _merged(self, where: str, name: str, sides: Sequence[Entry]) -> Input | None:
        forms = [_form(side) for side in sides]
        if len(set(forms)) > 1:
            told = ", ".join(f"{form} in {commit}" for form, commit in zip(forms, self._commits, strict=True))
            self.problems.append(f"{where} is {told}")
            return None
        first = sides[0]
        if all(self._is_same(where, name, first, other) for other in sides[1:]):
            return StoredInput(first)
        tensors = [side for side in sides if isinstance(side, TensorEntry)]
        known = numeral(tensors[0].dtype) if tensors else None
        if known is not None and known.encode is not None:
            average = _Average(self._repository.reader, where, tensors, self._weights)
            return MadeInput(tensors[0].position, tensors[0].dtype, tensors[0].shape, average.make)
        if self._take_first:
            return StoredInput(first)
        self.has_choice = True
        self.problems.append(f"{where} ({forms[0]}) differs, and has no average")
        return None

    def _is_same(self, where: str, name: str, first: Entry, other: Entry) -> bool:
        if isinstance(first, TensorEntry) and isinstance(other, TensorEntry):
            return is_same_tensor(self._repository, Pair(where, first, other))
        return not changed_values(self._repository, where, Match(name, first, other))


def _form(entry: Entry) -> str:
    """What has to be the same in all commits."""
    if isinstance(entry, TensorEntry):
        return f"{entry.dtype} {list(entry.shape)}"
    return entry.container if isinstance(entry, ContainerEntry) else "a value"


# --- numbers --------------------------------------------------------------------------------------------------------


def _weighted(values: Sequence[Numbers], weights: Sequence[float]) -> Numbers:
    """Sum of weight times number, in float64; what is equal in all stays as it is, which rounding might not grant."""
    total = values[0] * weights[0]
    for value, weight in zip(values[1:], weights[1:], strict=True):
        total += value * weight
    is_same = np.logical_and.reduce([value == values[0] for value in values[1:]])
    return np.where(is_same, values[0], total)


@dataclass(frozen=True, slots=True)
class _Average:
    """The average of a tensor, made run by run. Thread-safe.

    Attributes:
        reader: reads chunks.
        where: what messages call the tensor.
        sides: the tensor in each commit: one dtype, one shape.
        weights: of each.
    """

    reader: ObjectReader
    where: str
    sides: Sequence[TensorEntry]
    weights: Sequence[float]

    def make(self, start: int, stop: int) -> memoryview:
        """Bytes of the average, from one offset to another.

        Raises:
            NotFound: a chunk is missing.
            Corrupt: a chunk is damaged.
        """
        with telling(self.where):
            read = self._read(start, stop)
        if all(side == read[0] for side in read[1:]):
            return memoryview(read[0])
        known = numeral(self.sides[0].dtype)
        assert known is not None
        assert known.encode is not None
        step_bytes = ARITHMETIC_ELEMENTS * dtype(self.sides[0].dtype).item_bytes
        out = bytearray(stop - start)
        with np.errstate(all="ignore"):  # infinities and NaN come out as arithmetic has them
            for at in range(0, stop - start, step_bytes):
                end = min(at + step_bytes, stop - start)
                values = [known.decode(memoryview(side)[at:end]).astype(np.float64) for side in read]
                out[at:end] = known.encode(_weighted(values, self.weights)).tobytes()
        return memoryview(out)

    def _read(self, start: int, stop: int) -> list[bytearray]:
        """In this thread: it is one of those that store."""
        read = [bytearray(stop - start) for _ in self.sides]
        copies = [
            copy for side, out in zip(self.sides, read, strict=True) for copy in plan_span(side, start, memoryview(out))
        ]
        execute(self.reader, gather(copies), None, verify_hash=False)
        return read
