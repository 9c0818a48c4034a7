"""Models that a store holds and that another one may come from. Of them trees are read, and tensors as they are asked.

Looked at is every commit that a branch, a tag, a remote's branch or a pin names, and where lines of history begin, fork
or meet: there are the models that people made on purpose. The others, most of which are saves of one run, are looked at
until a bound of entries is reached, the newest first; and beyond it along the line of the nearest model.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, NamedTuple

from store.errors import MoonclipError
from store.format.entries import TensorEntry
from store.format.trees import Tree
from store.history.walks import first_parents
from store.ids import CommitId, TreeId
from store.index import CommitRow
from store.reading.retrieve import execute, gather, plan_span
from store.repository import Repository
from store.upkeep.absences import expected_items

from .pairing import Key, Kind

_log = logging.getLogger(__name__)

_WALK_COMMITS: Final = 20_000
"""Commits of the history that are looked at for where lines fork: 8 µs each."""

FURTHER_ENTRIES: Final = 32_768
"""Entries of trees that are read of commits that nothing names: 4 µs each."""

_LINE_COMMITS: Final = 1_025
"""How far back the line of a model is followed."""

Run = tuple[TensorEntry, int, memoryview]
"""Bytes of a tensor, from an offset on, and the memory that they belong in."""

Read = Callable[[Sequence[Run]], None]
"""Reads runs, what they have in common once."""

Skeleton = tuple[tuple[str, tuple[tuple[str, Kind], ...]], ...]
"""Of each item its tensors' names, dtypes and shapes: what models of one architecture have in common."""


class _Part(NamedTuple):
    """An item of a model."""

    tensors: Mapping[str, TensorEntry]
    kinds: tuple[tuple[str, Kind], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model that may be a base.

    Attributes:
        name: what messages call it.
        commit: its commit; ``None`` if it is in none.
        order: older models have lower numbers.
        parts: its tensors, by item and name: those that lie in chunks, row by row.
        read: reads them. Raises MoonclipError or OSError where that cannot be done.
    """

    name: str
    commit: CommitId | None
    order: int
    parts: Mapping[str, _Part]
    read: Read

    @property
    def skeleton(self) -> Skeleton:
        """Names, dtypes and shapes."""
        return tuple((item, part.kinds) for item, part in self.parts.items())

    @property
    def kinds(self) -> dict[Key, Kind]:
        """The same by tensor."""
        return {(item, name): kind for item, part in self.parts.items() for name, kind in part.kinds}

    def tensor(self, key: Key) -> TensorEntry:
        """One of its tensors."""
        return self.parts[key[0]].tensors[key[1]]


def part_of(tensors: Mapping[str, TensorEntry]) -> _Part:
    """An item of a model: those of its tensors that another can be stored against, as their chunks hold them."""
    held = {name: plain for name, entry in tensors.items() if (plain := _as_held(entry)) is not None}
    return _Part(held, tuple((name, Kind(entry.dtype, entry.shape)) for name, entry in held.items()))


def _as_held(entry: TensorEntry) -> TensorEntry | None:
    """A tensor as a run of rows in the dtype that its chunks hold; ``None`` if it is no such run, or was scaled."""
    if entry.inline is not None or entry.scale:
        return None
    if entry.stored is None and len(entry.pieces) == 1:
        return entry
    if any(piece.sizes[1:] != entry.shape[1:] for piece in entry.pieces):
        return None
    pieces = tuple(sorted(entry.pieces, key=lambda piece: piece.offsets))
    return replace(entry, dtype=entry.stored_dtype, stored=None, pieces=pieces)


def named_model(repo: Repository, commit_id: CommitId) -> Model:
    """The model of a commit that a person named. Its trees are fetched if they are elsewhere, its tensors are not.

    Raises:
        NotFound: there is no such commit, or it was pruned.
        Corrupt: it is damaged.
        RemoteError: the remote failed that has it.
    """
    commit = repo.commit(commit_id)
    items = repo.items(commit, commit_id)
    if not items:
        repo.absences.require(commit_id)
    parts = {item: part_of(_tensors(repo.tree(commit, item))) for item in items}
    return Model(commit_id.hex(), commit_id, 0, parts, _reading(repo))


class Shelf:
    """The models of a store, each tree of which is read once.

    Args:
        repo: the store. Nothing is fetched for what it lacks.
        further_entries: how many entries of trees are read at first of commits that are no landmarks.
    """

    def __init__(self, repo: Repository, further_entries: int = FURTHER_ENTRIES) -> None:
        self._repo = repo
        self._left = further_entries
        self._parts: dict[TreeId, _Part] = {}
        self._read = _reading(repo)
        self._seen: set[CommitId] = set()
        self._next: dict[CommitId, CommitRow] = {}

    def models(self) -> list[Model]:
        """What is looked at first, the oldest first. What cannot be read is left out."""
        tips = self._tips()
        rows = list(islice(self._repo.log(tips), _WALK_COMMITS))
        self._next = {row.parents[0]: row for row in rows if row.parents}
        forks = Counter(parent for row in rows for parent in row.parents)
        hubs = [row for row in rows if row.id in tips or len(row.parents) != 1 or forks[row.id] > 1]
        found = list(self._of(hubs))
        for model in self._of([row for row in rows if row.id not in self._seen]):
            self._left -= sum(len(part.kinds) for part in model.parts.values())
            if self._left < 0:
                break
            found.append(model)
        return sorted(found, key=lambda model: model.order)

    def around(self, model: Model) -> list[Model]:
        """Models of the line that led to one, and on from it, that were not looked at yet: at distances that double."""
        assert model.commit is not None
        rows: list[CommitRow] = []
        for line in (first_parents(self._repo.lookup, model.commit), self._following(model.commit)):
            steps = enumerate(islice(line, _LINE_COMMITS))
            rows += [row for distance, row in steps if distance and distance & (distance - 1) == 0]
        return list(self._of([row for row in rows if row.id not in self._seen]))

    def _following(self, commit: CommitId) -> Iterator[CommitRow]:
        """A commit, and those that were made on it, one after another."""
        row = self._repo.lookup.commit(commit)
        while row is not None:
            yield row
            row = self._next.get(row.id)

    def _tips(self) -> set[CommitId]:
        found: list[CommitId] = []
        for name in self._repo.refs.names():
            with _passing_over(name):
                found += filter(None, [self._repo.refs.read(name)])
        with _passing_over("pins"):
            found += self._repo.pins.all()
        return set(found)

    def _of(self, rows: Sequence[CommitRow]) -> Iterator[Model]:
        for row in rows:
            model = None
            with _passing_over(row.id.hex()):
                model = self._model(row)
            if model is not None:
                yield model

    def _model(self, row: CommitRow) -> Model:
        self._seen.add(row.id)
        commit = self._repo.commit(row.id)
        items = expected_items(commit, self._repo.absences, row.id)
        parts = {item: self._part(tree) for item, tree in items.items()}
        return Model(row.id.hex(), row.id, row.sequence, parts, self._read)

    def _part(self, tree: TreeId) -> _Part:
        if tree not in self._parts:
            load = self._repo.reader.tree_node
            self._parts[tree] = part_of(_tensors(Tree(load(tree), load)))
        return self._parts[tree]


def _reading(repo: Repository) -> Read:
    """Reads what is here, in the caller's thread: it may be one of the store's, and these must not wait for others."""

    def read(runs: Sequence[Run]) -> None:
        copies = [copy for entry, start, out in runs for copy in plan_span(entry, start, out)]
        execute(repo.reader, gather(copies), None, verify_hash=False)

    return read


@contextmanager
def _passing_over(what: str) -> Iterator[None]:
    """What cannot be read is no base, and no reason for an import to fail."""
    try:
        yield
    except (MoonclipError, OSError) as error:
        _log.info("%s is passed over: %s", what, error)


def _tensors(tree: Tree) -> dict[str, TensorEntry]:
    return {name: entry for name, entry in tree if isinstance(entry, TensorEntry)}
