"""What commits hold: trees, values and tensors, as methods of a repository.

What an absence record permits to be missing, and a lazy remote has, is fetched when it is read: then, and only then,
the code is loaded that does so. Until somebody has opened such a tree, reading costs what it costs in any store.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

from ..disk.files import Files
from ..errors import NotFound
from ..forks import loading
from ..format import values
from ..format.entries import Entry, TensorEntry, ValueEntry
from ..format.objects import Commit
from ..format.trees import Tree
from ..format.values import Plain
from ..ids import ChunkId, CommitId, TreeId
from ..layout import Layout
from ..parallel import Threads
from ..upkeep.absences import Absence, Absences, Why
from .copies import Copy
from .reader import ObjectReader
from .retrieve import execute, gather, plan_rows, plan_span, plan_value, plan_whole

if TYPE_CHECKING:
    from ..remotes.fetching.promises import Promises
    from ..remotes.remote import Remote

_COMES_WHEN_READ: Final = (Why.SHALLOW, Why.PARTIAL)
"""What was pruned here comes back only if somebody says so."""


class Contents:
    """Reading what commits hold.

    Attributes:
        remote_openers: opens a lazy remote, by name, that cannot be opened by what is configured alone: credentials
            that were given in Python are kept nowhere.
    """

    layout: Layout
    files: Files
    reader: ObjectReader
    absences: Absences
    _thread_count: int

    def __init__(self) -> None:
        self.remote_openers: dict[str, Callable[[], Remote]] = {}
        self._promises: Promises | None = None

    @cached_property
    def threads(self) -> Threads:
        """Threads that encode and decode, started when first asked for."""
        return Threads(self._thread_count)

    # --- trees ------------------------------------------------------------------------------------------------------

    def commit(self, commit_id: CommitId) -> Commit:
        """Read a commit.

        Raises:
            NotFound: no such commit.
            Corrupt: no intact copy.
        """
        return self.reader.commit(commit_id)

    def items(self, commit: Commit, commit_id: CommitId | None = None) -> Mapping[str, TreeId]:
        """The items of a commit that can be read, with their trees: they are here, or come when they are read.

        Args:
            commit: the commit.
            commit_id: its id, if known: else it is hashed.
        """
        commit_id = commit.id if commit_id is None else commit_id
        if not self.absences.records(commit_id):
            return commit.items
        reasons = {item: self.absences.reason(commit_id, item) for item in commit.items}
        return {
            item: tree
            for item, tree in commit.items.items()
            if (reason := reasons[item]) is None or self._comes_when_read(reason)
        }

    def tree(self, commit: Commit, item: str) -> Tree:
        """An item's tree; reads the root only. One that comes when it is read is fetched, with all below it.

        Raises:
            NotFound: the commit has no such item.
            Pruned: it is absent, although it may not have been swept yet.
            Corrupt: no intact copy.
            ReadOnly: it would have to be fetched, and the store cannot be written from here.
            RemoteError: the remote failed that has it.
        """
        if item not in commit.items:
            names = ", ".join(sorted(commit.items)) or "none"
            raise NotFound(f"no item {item!r} in commit {commit.id.hex()[:8]}; it has {names}", item=item)
        commit_id = commit.id
        record = self.absences.reason(commit_id, item)
        if record is not None and self._comes_when_read(record):
            return self._promising().tree(commit, commit_id, item, record.origin)
        self.absences.require(commit_id, item)
        return Tree(self.reader.tree_node(commit.items[item]), self.reader.tree_node)

    # --- values and tensors -----------------------------------------------------------------------------------------

    def bring(self, entries: Iterable[Entry]) -> None:
        """Fetch what is about to be read, all at once, if it comes when it is read.

        Args:
            entries: from trees that this repository gave. Not looked at unless one of these had to be fetched.

        Raises:
            Corrupt: the remote cannot give it.
            ReadOnly: the store cannot be written from here.
            RemoteError: the remote failed.
        """
        if self._promises is not None:
            self._promises.bring(chunk for entry in entries for chunk in entry.chunks)

    def is_awaited(self, chunk: ChunkId) -> bool:
        """Whether a chunk is not here and comes when it is read."""
        return self._promises is not None and self._promises.is_awaited(chunk)

    def read_value(self, entry: ValueEntry) -> Plain:
        """Decode a value. Runs nothing that is stored. Raises as :meth:`read_copies` does."""
        if entry.inline is not None:
            return values.decode(entry.inline)
        encoded = bytearray(entry.size_bytes)
        self.read_copies(plan_value(entry, memoryview(encoded)))
        return values.decode(bytes(encoded))

    def read_tensor(self, entry: TensorEntry) -> bytearray:
        """A tensor's bytes, little-endian, C order. Raises as :meth:`read_tensors` does."""
        out = bytearray(entry.size_bytes)
        self.read_tensors([(entry, memoryview(out))])
        return out

    def read_tensors(self, wanted: Iterable[tuple[TensorEntry, memoryview]], *, verify_hash: bool = False) -> None:
        """Read whole tensors into memory, in parallel.

        Args:
            wanted: each tensor, and writable flat bytes of just its size.
            verify_hash: also check every chunk's BLAKE3, not only the checksum of what is stored.

        Raises:
            Incompatible: memory of another size; nothing was read.
            NotFound: as :meth:`read_copies` raises it, and what else that raises.
        """
        copies = [copy for entry, out in wanted for copy in plan_whole(entry, out)]
        self.read_copies(copies, verify_hash=verify_hash)

    def read_rows(
        self, entry: TensorEntry, start_row: int, stop_row: int, out: memoryview, *, verify_hash: bool = False
    ) -> None:
        """Read some rows along dim 0; only the chunks that hold them are touched. See :meth:`read_tensors`.

        Raises:
            Incompatible: rows outside the tensor, or ``out`` of another size than they take.
            NotFound: as :meth:`read_copies` raises it, and what else that raises.
        """
        self.read_copies(plan_rows(entry, start_row, stop_row, out), verify_hash=verify_hash)

    def read_spans(self, entry: TensorEntry, wanted: Iterable[tuple[int, memoryview]]) -> None:
        """Read runs of a tensor's bytes in C order; only the chunks that hold them are touched, each once.

        Args:
            entry: the tensor.
            wanted: the first byte of each run, and writable memory of its length.

        Raises:
            Incompatible: bytes outside the tensor.
            NotFound: as :meth:`read_copies` raises it, and what else that raises.
        """
        self.read_copies(copy for start, out in wanted for copy in plan_span(entry, start, out))

    def read_copies(self, copies: Iterable[Copy], *, verify_hash: bool = False) -> None:
        """Read what was planned, each chunk once. What comes when it is read is fetched before, all at once.

        Args:
            copies: which bytes of which chunks go where.
            verify_hash: also check every chunk's BLAKE3.

        Raises:
            NotFound: a chunk is missing.
            Corrupt: a chunk is damaged, or cannot be fetched; targets may be partly written.
            ReadOnly: it would have to be fetched, and the store cannot be written from here.
            RemoteError: the remote failed that has it.
        """
        reads = gather(copies)
        if self._promises is None:
            execute(self.reader, reads, self.threads, verify_hash=verify_hash)
            return
        self._promises.reading(
            [read.chunk for read in reads],
            lambda reader: execute(reader, reads, self.threads, verify_hash=verify_hash),
        )

    # --- what is not here -------------------------------------------------------------------------------------------

    def _comes_when_read(self, record: Absence) -> bool:
        """Whether what a record permits to be missing is fetched when it is read."""
        if not record.origin or record.why not in _COMES_WHEN_READ:
            return False
        from ..remotes.configured import remotes

        config = remotes(self.layout, self.files).get(record.origin)
        return config is not None and config.lazy

    def _promising(self) -> "Promises":
        with loading:  # one for all threads, and no fork while it is being loaded
            if self._promises is None:
                from ..remotes.fetching.promises import Promises
                from ..repository import Repository

                assert isinstance(self, Repository)
                self._promises = Promises(self)
            return self._promises
