"""A commit as a runtime sees it: arrays, values and files by name, each read when it is asked for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING

from ..beside.files import ITEM, StoredFile, files_in
from ..errors import NotFound
from ..format.entries import Entry, TensorEntry, ValueEntry
from ..format.objects import Commit
from ..format.values import Plain
from ..ids import CommitId, short
from ..naming.listed import listed
from ..sizes import Sizes
from .arrays import Array, empty
from .placing import ROOT, SEPARATOR
from .stored import StoredArray

if TYPE_CHECKING:
    from ..repository import Repository


@dataclass(frozen=True)
class StoredCommit:
    """A commit of a store. Made by ``Repository.at``; it can be used as long as the repository is open.

    Names are full ones: ``item::name``, or ``item`` alone where that is one array or value. Wherever names are asked
    for, globs do too (``"model::encoder/*"``); ``None`` is all.

    Attributes:
        repo: the store.
        id: the commit's id.
        commit: what it says: its step, time, branch, message, metadata, parents and items.
    """

    repo: "Repository"
    id: CommitId
    commit: Commit

    @property
    def step(self) -> int | None:
        """Training step, if it has one."""
        return self.commit.step

    @property
    def metadata(self) -> Mapping[str, Plain]:
        """What was saved with it, in the order in which it was given."""
        return self.commit.metadata

    @cached_property
    def arrays(self) -> Mapping[str, StoredArray]:
        """Its arrays by name, none of them read: dtype, shape, sizes and ids of each. Reads the commit's trees.

        Raises:
            Pruned: the commit was pruned.
            Corrupt: a tree is damaged.
        """
        sizes = Sizes(self.repo.reader, self.repo.is_awaited)
        return {
            name: StoredArray(self.repo, name, entry, sizes)
            for name, entry in self._entries.items()
            if isinstance(entry, TensorEntry)
        }

    @cached_property
    def files(self) -> Mapping[str, StoredFile]:
        """Its files by path, none of them read.

        Raises:
            Pruned: they were pruned.
            Corrupt: a tree is damaged.
        """
        return files_in(self.repo, self.commit)

    def values(self, names: str | Sequence[str] | None = None) -> dict[str, Plain]:
        """Decode values. Runs nothing that is stored.

        Raises:
            NotFound: nothing is called so, or a chunk is missing.
            Corrupt: a chunk is damaged.
        """
        held = {name: entry for name, entry in self._entries.items() if isinstance(entry, ValueEntry)}
        chosen = {name: held[name] for name in self._chosen(held, names, "value")}
        self.repo.bring(chosen.values())
        return {name: self.repo.read_value(entry) for name, entry in chosen.items()}

    def read(self, names: str | Sequence[str] | None = None, *, verify_hash: bool = False) -> dict[str, Array]:
        """Read arrays into new memory, all at once and in parallel.

        Args:
            names: which.
            verify_hash: also check every chunk's BLAKE3, not only the checksum of what is stored.

        Raises:
            NotFound: nothing is called so, or a chunk is missing.
            Incompatible: NumPy lacks a dtype.
            Corrupt: a chunk is damaged.
        """
        chosen = [self.arrays[name] for name in self._chosen(self.arrays, names, "array")]
        targets = {array.name: empty(array.name, array.dtype, array.shape) for array in chosen}
        self.read_into(targets, verify_hash=verify_hash)
        return targets

    def read_into(self, targets: Mapping[str, Array], *, verify_hash: bool = False) -> None:
        """Read arrays into memory that is there, all at once and in parallel.

        Args:
            targets: arrays by name, in C order and writable.
            verify_hash: see :meth:`read`.

        Raises:
            NotFound: there is no such array, or a chunk is missing.
            Incompatible: another dtype or shape, or memory that cannot be written to. Nothing was read.
            Corrupt: a chunk is damaged; targets may be partly written.
        """
        chosen = [(self._array(name), target) for name, target in targets.items()]
        wanted = [(array.entry, array.memory_of(target)) for array, target in chosen]
        self.repo.bring(entry for entry, _ in wanted)
        self.repo.read_tensors(wanted, verify_hash=verify_hash)

    @cached_property
    def _entries(self) -> Mapping[str, Entry]:
        """By full name; of items that are not here, and need not be, none."""
        items = self.repo.items(self.commit, self.id)
        if not items:
            self.repo.absences.require(self.id)
        return {
            f"{item}{SEPARATOR}{name}" if name != ROOT else item: entry
            for item in items
            for name, entry in self.repo.tree(self.commit, item)
            if item != ITEM or not isinstance(entry, ValueEntry)
        }

    def _chosen(self, held: Iterable[str], patterns: str | Sequence[str] | None, what: str) -> list[str]:
        known = list(held)
        if patterns is None:
            return known
        wanted: set[str] = set()
        for pattern in listed(patterns):
            hits = [name for name in known if name == pattern or fnmatchcase(name, pattern)]
            if not hits:
                raise self._unknown(pattern, what)
            wanted.update(hits)
        return [name for name in known if name in wanted]

    def _array(self, name: str) -> StoredArray:
        if name not in self.arrays:
            raise self._unknown(name, "array")
        return self.arrays[name]

    def _unknown(self, name: str, what: str) -> NotFound:
        items = ", ".join(self.commit.items) or "none"
        return NotFound(f"commit {short(self.id)} has no {what} {name!r}; its items: {items}", name=name)
