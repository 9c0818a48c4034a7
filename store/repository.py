"""A store, opened: what the layers above call.

    with Repository.open("checkpoints") as repo:
        repo.save_arrays({"model": {"fc/weight": weight}}, step=800, metadata={"loss": 2.31})
        weight = repo.at("main~2").arrays["model::fc/weight"].read()

docs/engine.md is the manual. Safe to share between threads. After a fork parent and child may both go on using it, and
several processes may hold one store open.
"""

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from .disk.ballast import Ballast
from .disk.files import Files
from .engine.byname import ByName
from .errors import Conflict, Corrupt, NotFound, ReadOnly
from .history import walks as history
from .ids import CommitId, short
from .index import CommitRow
from .layout import Layout, check_format, encode_format, not_a_store
from .naming.refnames import RefName, branch_name
from .naming.refs import RefStore
from .naming.resolve import resolve
from .opening.indexes import open_index, rebuild_index
from .parallel import default_thread_count
from .reading.closure import missing_objects
from .reading.contents import Contents
from .reading.lookup import Index, Lookup
from .reading.packs import PackStore
from .reading.reader import ObjectReader
from .saving.leases import acquire_lease
from .saving.leftovers import remove_leftovers
from .saving.publish import Approve
from .saving.saver import Saved, Saver, SaveRequest
from .saving.snapshots import Snapshot, create_snapshot
from .upkeep.absences import Absences, Why, expected_items
from .upkeep.pins import Pin, Pins

DEFAULT_BRANCH = "main"


class Repository(ByName, Contents):
    """An open store. Made by :meth:`init` or :meth:`open`; a context manager that closes it."""

    def __init__(
        self, layout: Layout, files: Files, packs: PackStore, refs: RefStore, index: Index, thread_count: int
    ) -> None:
        super().__init__()
        self.layout = layout
        self.files = files
        self.packs = packs
        self.index = index
        self.refs = refs
        self.absences = Absences(layout.root, files)
        self.pins = Pins(layout.root, files)
        self.lookup = Lookup(index, packs)
        self.reader = ObjectReader(self.lookup, packs)
        self._thread_count = thread_count
        self._is_closed = False

    @classmethod
    def init(
        cls,
        path: str | Path,
        *,
        branch: str = DEFAULT_BRANCH,
        files: Files | None = None,
        thread_count: int | None = None,
    ) -> "Repository":
        """Make a store in a directory that has none, and open it.

        Args:
            path: the directory; made if it does not exist, may hold other things.
            branch: name of the first branch.
            files: does the I/O; the local file system unless a test says otherwise.
            thread_count: threads that encode and decode; as many as there are CPUs if ``None``.

        Raises:
            Conflict: there is a store already.
            Incompatible: ``branch`` is no legal name.
            OSError: it could not be written.
        """
        branch_name(branch)  # refused before anything is made
        files = files or Files()
        layout = Layout(Path(path).absolute())  # a script may change its working directory
        if files.exists(layout.format):
            raise Conflict(f"there is a store at {path} already", path=str(path))
        for directory in (layout.root, layout.packs, layout.writers):
            files.make_directory(directory)
        RefStore(layout.root, files).set_head(branch)
        Ballast(layout.root, files).ensure()
        rebuild_index(layout, files, PackStore(files, layout.packs))
        files.write_atomic(layout.config, (json.dumps({"id": uuid4().hex}) + "\n").encode())
        files.write_atomic(layout.format, encode_format())
        return cls.open(path, files=files, thread_count=thread_count)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        read_only: bool = False,
        files: Files | None = None,
        thread_count: int | None = None,
    ) -> "Repository":
        """Open the store in a directory.

        An index that is missing or broken is rebuilt from the packs. Where the directory cannot be written, one is
        built in memory and the store can only be read. What writers that died left is removed, if we can write.

        Raises:
            StoreNotFound: there is none.
            Incompatible: it needs features that this version lacks; nothing was changed.
        """
        files = files or Files()
        layout = Layout(Path(path).absolute())  # a script may change its working directory
        try:
            features = files.read_bytes(layout.format)
        except (FileNotFoundError, NotADirectoryError):
            raise not_a_store(layout.root) from None
        check_format(layout.root, features, "read")
        if not read_only:
            check_format(layout.root, features, "write")
        packs = PackStore(files, layout.packs)
        refs = RefStore(layout.root, files)
        index = open_index(layout, files, packs, refs, read_only=read_only)
        if index.writable:
            remove_leftovers(layout, files)
        return cls(layout, files, packs, refs, index, thread_count or default_thread_count())

    # --- naming -----------------------------------------------------------------------------------------------------

    def resolve(self, revision: str, branch: str | None = None) -> CommitId:
        """The commit that a revision names; see ``store.naming.revisions`` for what can be written.

        Args:
            revision: what a person typed.
            branch: short name of the branch that ``HEAD``, ``@{n}`` and ``step:N`` speak of; the store's current one if
                ``None``.

        Raises:
            NotFound: it names nothing here.
            Ambiguous: a prefix of several ids.
            Incompatible: it is no revision.
        """
        return resolve(self.lookup, self.refs, revision, branch, is_pruned=self._is_pruned)

    def _is_pruned(self, commit: CommitId) -> bool:
        record = self.absences.reason(commit)
        return record is not None and record.why in (Why.PRUNED, Why.COLLECTED)

    def log(self, tips: Iterable[CommitId]) -> Iterator[CommitRow]:
        """Commits that the tips reach, newest first. Holds nothing open between commits."""
        return history.newest_first(self.lookup, tips)

    def set_ref(self, name: RefName, expected: CommitId | None, new: CommitId, action: str, message: str = "") -> None:
        """Make or move a branch or tag, to a commit that is whole but for what absence records permit.

        One that was pruned as a whole is refused: what is named is kept, and there is nothing to keep. One that lacks
        some of its items can be named.

        Args:
            name: full ref name.
            expected: what it holds now, ``None`` if it does not exist.
            new: the commit.
            action: one lower-case word for the reflog.
            message: what the reflog tells people.

        Raises:
            Conflict: it does not hold ``expected``.
            Pruned: the commit was pruned.
            Corrupt: something that the commit has to have is missing.
        """
        with self._keeping(new):
            self.refs.update(name, expected, new, action, message)

    def pin(self, commit: CommitId, message: str = "") -> None:
        """Keep a commit whole whatever policies say, until it is unpinned; one that is pinned gets the new message.

        Raises:
            NotFound: there is no such commit.
            Pruned: it was pruned.
            Corrupt: something that it has to have is missing, or the file of pins is damaged.
        """
        with self._keeping(commit):
            self.pins.put(Pin(commit, time.time_ns(), message))

    def unpin(self, commit: CommitId) -> None:
        """Let a commit be pruned again.

        Raises:
            NotFound: it is not pinned.
            Corrupt: the file of pins is damaged.
        """
        self.require_writable()
        if not self.pins.remove(commit):
            raise NotFound(f"commit {short(commit)} is not pinned; `moonclip pin` lists those that are")

    def delete_ref(self, name: RefName, action: str = "delete") -> CommitId:
        """Remove a branch or tag and return what it held; its reflog stays.

        Raises:
            NotFound: there is no such ref.
            Conflict: it moved meanwhile.
        """
        self.require_writable()
        held = self.refs.read(name)
        if held is None:
            raise NotFound(f"no {name}", ref=name)
        self.refs.update(name, held, None, action)
        return held

    @contextmanager
    def _keeping(self, commit_id: CommitId) -> Iterator[None]:
        """Hold this while a commit gets a name: it is whole, and meanwhile neither pruned nor swept."""
        self.require_writable()
        with acquire_lease(self.layout.root, self.files) as lease, self.absences.kept():
            lease.add_commit(commit_id)
            self._require_closed(commit_id)
            yield

    def _require_closed(self, commit_id: CommitId) -> None:
        self.absences.require(commit_id)
        expected = expected_items(self.commit(commit_id), self.absences, commit_id).values()
        missing = self.index.write(lambda writer: missing_objects(expected, self.reader.tree_node, writer.lacking))
        if missing:
            raise Corrupt(
                f"commit {commit_id.hex()} lacks {len(missing)} objects, the first {missing[0].hex()};"
                f" run `moonclip fsck`",
                commit=commit_id.hex(),
                objects=[object_id.hex() for object_id in missing],
            )

    # --- writing ----------------------------------------------------------------------------------------------------

    def save(self, request: SaveRequest, approve: Approve | None = None) -> Saved:
        """Store items and commit them.

        Args:
            request: what to store, and where.
            approve: told of the commit once it is durable, before anybody sees it; what it raises ends the save.

        Raises:
            BaseException: what ``approve`` raises. Refs are as before.
            Incompatible: an input that cannot be stored.
            Conflict: the branch moved meanwhile; the error names where the commit was kept.
            Corrupt: the branch's file is damaged; likewise.
            ReadOnly: the store cannot be written from here.
            NotDurable: the commit is made and the branch on it, but the disk failed to make that durable.
            OSError: writing failed. Refs are as before.
        """
        self.require_writable()
        saver = Saver(self.files, self.layout, self.index, self.absences, self.refs, self.reader, self.threads)
        return saver.save(request, approve)

    def create_snapshot(self, request: SaveRequest, world_size: int, *, ranks_remember: bool = False) -> Snapshot:
        """Begin a save by several ranks; see ``store.saving.snapshots``.

        Args:
            request: where it is to be committed; it has no items, since these come from the ranks.
            world_size: how many ranks there are.
            ranks_remember: every rank will compare with its own last save; else they are told of the parent's content.

        Raises:
            Incompatible: something of the request cannot be stored, or there is no rank.
            NotFound: there is no such parent.
            ReadOnly: the store cannot be written from here.
            OSError: writing failed.
        """
        self.require_writable()
        return create_snapshot(self, request, world_size, ranks_remember=ranks_remember)

    # --- the rest ---------------------------------------------------------------------------------------------------

    @property
    def read_only(self) -> bool:
        """Whether this store can only be read from here."""
        return not self.index.writable

    def require_writable(self) -> None:
        """Raise ReadOnly unless the store can be written.

        Raises:
            ReadOnly: it cannot.
        """
        if self.read_only:
            raise ReadOnly(f"the store at {self.layout.root} cannot be written from here", path=str(self.layout.root))

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._is_closed

    def close(self) -> None:
        """Close the index and all packs; again does nothing."""
        self._is_closed = True
        if self._promises is not None:
            self._promises.close()
        if "threads" in self.__dict__:
            self.threads.close()
        self.packs.close()
        self.index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
