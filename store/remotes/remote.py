"""A remote, opened: its refs and format, which packs it has, and what is in them.

Refs and absence records are read again only if the remote says that their version is another, and an idx once for all:
a look at a remote that has not changed takes two requests.

Spec: docs/format.md, section on remotes.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from ..errors import Conflict, Corrupt, Incompatible, NotFound, RemoteUnsupported
from ..ids import CommitId
from ..limits import (
    MAX_IDX_BYTES,
    MAX_REMOTE_RECORDS_BYTES,
    MAX_REMOTE_REF_BYTES,
    MAX_REMOTE_REFS,
    MAX_REMOTE_SETTING_BYTES,
    REMOTE_THREADS,
)
from ..naming.refnames import RefName, remote_name
from ..parallel import Threads
from ..repository import Repository
from ..upkeep.absences import Absence, decode_record
from .cache import Cache, directory_of
from .condemned import Condemned, decode_condemned
from .configured import change_id, remote_config, store_id
from .idx import Idx, decode_idx
from .names import (
    ABSENT,
    CONDEMNED,
    FORMAT,
    REFS,
    PackName,
    RefKey,
    absent_key,
    parse_absent,
    parse_ref,
)
from .ownkeys import OwnKeys, moved
from .packlist import Listing, all_keys, listing
from .refcontent import decode_ref, encode_ref
from .remoteformat import RemoteFormat, decode_format, encode_format
from .storages.storage import Storage

if TYPE_CHECKING:
    from .storages.credentials import Keys

K = TypeVar("K")
T = TypeVar("T")

Faults = dict[PackName, NotFound | Corrupt | Incompatible]
"""Packs whose idx cannot be used, and why."""


class RemoteRef(NamedTuple):
    """A ref of a remote, as it was read.

    Attributes:
        commit: what it names; ``None`` if it was deleted.
        version: of what holds it.
    """

    commit: CommitId | None
    version: str


class Remote:
    """A remote. Made by :func:`open_remote`; a context manager that closes its storage. Threads may share it.

    Attributes:
        name: what it is called here.
        storage: the place itself.
        store_id: id of the store that it is a remote of.
        cache: what is remembered of it.
    """

    def __init__(self, repo: Repository, name: str, storage: Storage) -> None:
        self.name = name
        self.storage = storage
        self.store_id = store_id(repo.layout, repo.files)
        self._layout = repo.layout
        self._files = repo.files
        directory = directory_of(repo.layout, name)
        self.cache = Cache(directory, storage.url, repo.files)
        self._own = OwnKeys(storage, self.cache, directory, repo.files)
        self._format: RemoteFormat | None = None

    # --- reading ----------------------------------------------------------------------------------------------------

    def format(self) -> RemoteFormat | None:
        """How the remote is kept; ``None`` if nothing was ever pushed there. One request, until there is something.

        Raises:
            Incompatible: it needs features that this version lacks.
            Corrupt: the file is none.
        """
        if self._format is None:
            found = self.storage.get(FORMAT, MAX_REMOTE_SETTING_BYTES)
            self._format = None if found is None else decode_format(found[0], self.storage.url)
        return self._format

    def refs(self) -> dict[RefKey, RemoteRef]:
        """All refs of all stores, deleted ones too. One request, and one for each that changed.

        Raises:
            Corrupt: one is damaged.
        """
        read = self._entries("refs", REFS, MAX_REMOTE_REF_BYTES, lambda key: parse_ref(key) is not None)
        found = ((parse_ref(key), key, pair) for key, pair in read.items())
        return {ref: RemoteRef(decode_ref(text.encode(), key), version) for ref, key, (version, text) in found if ref}

    def packs(self) -> Listing:
        """Packs that are whole; condemned ones too. One request for each 500."""
        return {name: listed for name, listed in listing(self.storage).items() if listed.is_whole}

    def idx(self, name: PackName, *, afresh: bool = False) -> Idx:
        """What is in a pack. One request for what was never asked before, or is asked ``afresh``.

        Raises:
            NotFound: there is no such pack (any more).
            Corrupt: it is not the idx of that pack.
            Incompatible: a newer version wrote it.
        """
        known = None if afresh else self.cache.idx(name.id)
        if known is not None:
            return known
        found = self.storage.get(name.idx_key, MAX_IDX_BYTES)
        if found is None:
            raise NotFound(f"{self.storage.url}: there is no {name.idx_key} (any more)", key=name.idx_key)
        idx = decode_idx(found[0], name.id)
        self.cache.keep_idx(name.id, found[0])
        return idx

    def idxs(self, names: Iterable[PackName], *, afresh: bool = False) -> tuple[dict[PackName, Idx], Faults]:
        """:meth:`idx` of each, several at once; of those that cannot be used, why."""
        faults: Faults = {}

        def ask(name: PackName) -> Idx | None:
            try:
                return self.idx(name, afresh=afresh)
            except (NotFound, Corrupt, Incompatible) as error:
                faults[name] = error
                return None

        read = self.at_once(ask, names)
        return {name: idx for name, idx in read.items() if idx is not None}, faults

    def absent(self) -> list[Absence]:
        """What was pushed without its content, by whichever store. One request, and one for each store that has news.

        A damaged line permits nothing, and is passed over.
        """
        read = self._entries("absent", ABSENT, MAX_REMOTE_RECORDS_BYTES, lambda key: parse_absent(key) is not None)
        return [record for _, text in read.values() for record in records_in(text)]

    def condemned(self) -> Condemned:
        """Packs that are about to be deleted.

        Raises:
            Corrupt: the list is damaged.
        """
        found = self.storage.get(CONDEMNED, MAX_REMOTE_RECORDS_BYTES)
        return Condemned() if found is None else decode_condemned(*found)

    def own_key(self, name: RefName) -> RefKey:
        """Where this store keeps a ref of its own."""
        found = self.format()
        return RefKey(self.store_id if found is not None and found.refs == "by-store" else None, name)

    # --- writing ----------------------------------------------------------------------------------------------------

    def prepare(self) -> RemoteFormat:
        """Make a remote of an empty place, and see that this store may move its refs. Whoever made it first decides.

        Raises:
            RemoteUnsupported: others found that the server compares and swaps, and this store found that it does not.
            Incompatible: it needs features that this version lacks.
        """
        found = self.format()
        if found is None:
            data = encode_format("shared" if self._is_atomic() else "by-store")
            try:
                if self._is_atomic():
                    self.storage.put_if(FORMAT, data, None)
                else:
                    self.storage.put(FORMAT, data)
            except Conflict:
                pass  # another store was faster
            found = self.format()
        if found is None:
            raise RemoteUnsupported(f"{self.storage.url}: what was written cannot be read back: {FORMAT}")
        if found.refs == "shared" and not self._is_atomic():
            raise RemoteUnsupported(
                f"{self.storage.url}: its refs are shared, but seen from here its server lets two writers win at once;"
                " push from where it does not, or to an empty prefix",
                url=self.storage.url,
            )
        return found

    def swap_ref(self, key: RefKey, expected: RemoteRef | None, new: CommitId | None) -> RemoteRef:
        """Move a ref of the remote, if it still is as it was read; ``None`` for ``new`` deletes it.

        Returns:
            The ref as it is now.

        Raises:
            Conflict: it is not.
        """
        if key.store is None:
            version = self._put_if(key, encode_ref(new), expected)
        else:
            version = self._own.put_ref(key, expected and expected.commit, new, is_there=expected is not None)
        self._remember("refs", key.key, version, encode_ref(new).decode())
        return RemoteRef(new, version)

    def renew_if_copied(self, refs: Mapping[RefKey, RemoteRef]) -> bool:
        """Take another id if refs of this store's were moved, and not by this store: then its directory was copied.

        Args:
            refs: those of the remote, as they were read. A request for each that is not as it was left.

        Returns:
            Whether it goes by another id now. Refs under the one that it had are another store's.

        Raises:
            Incompatible: the ``config`` file cannot be understood.
            OSError: it could not be written.
        """
        own = ((key, ref.commit) for key, ref in refs.items() if key.store == self.store_id)
        if not any(self._own.is_moved_by_another(key, commit) for key, commit in own):
            return False
        self.store_id = change_id(self._layout, self._files, self.store_id)
        return True

    def add_absent(self, records: Iterable[str]) -> None:
        """Say, for this store, what it pushes without content: lines, added to those that are there. Durable on return.

        No request if they are known to be there.
        """
        key = absent_key(self.store_id)
        wanted = list(dict.fromkeys(records))
        known = self.cache.entries("absent").get(key, ("", ""))[1].splitlines()
        if set(wanted) <= set(known):
            return
        found = self.format()
        version, text = self._own.add_lines(key, wanted, is_atomic=found is not None and found.refs == "shared")
        self._remember("absent", key, version, text)

    def close(self) -> None:
        """Close the storage and end threads; again does nothing."""
        if "_threads" in self.__dict__:
            self._threads.close()
        self.storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- how --------------------------------------------------------------------------------------------------------

    def at_once(self, function: Callable[[K], T], tasks: Iterable[K]) -> dict[K, T]:
        """Ask for many things, several at a time; what one raises ends all."""
        wanted = list(dict.fromkeys(tasks))
        if len(wanted) <= 1:
            return {task: function(task) for task in wanted}
        found: dict[K, T] = {}
        self._threads.run(lambda task: found.__setitem__(task, function(task)), wanted)
        return {task: found[task] for task in wanted}

    @cached_property
    def _threads(self) -> Threads:
        return Threads(REMOTE_THREADS)

    def _entries(
        self, table: str, prefix: str, max_bytes: int, is_wanted: Callable[[str], bool]
    ) -> dict[str, tuple[str, str]]:
        """Version and content of all keys of a kind; of these, those that are not remembered are read."""
        known = self.cache.entries(table)
        there = all_keys(self.storage, prefix, MAX_REMOTE_REFS)
        listed = {found.key: found.version for found in there if is_wanted(found.key)}
        news = [key for key, version in listed.items() if known.get(key, ("", ""))[0] != version]
        read = self.at_once(lambda key: self.storage.get(key, max_bytes), news)
        current = {key: known[key] for key in listed if key not in read}
        for key, found in read.items():
            if found is not None:
                current[key] = found[1], found[0].decode("ascii", "replace")
        if current != known:
            self.cache.keep_entries(table, current)
        return current

    def _remember(self, table: str, key: str, version: str, text: str) -> None:
        self.cache.keep_entries(table, {**self.cache.entries(table), key: (version, text)})

    def _put_if(self, key: RefKey, data: bytes, expected: RemoteRef | None) -> str:
        try:
            return self.storage.put_if(key.key, data, expected and expected.version)
        except Conflict:
            found = self.storage.get(key.key, MAX_REMOTE_SETTING_BYTES)
            if found is not None and found[0] == data:
                return found[1]  # our own write, whose answer was lost; or another's, who wanted the same
            raise moved(key, found and decode_ref(found[0], key.key)) from None

    def _is_atomic(self) -> bool:
        """What this store's probe of the server found, which it does once."""
        known = self.cache.is_atomic()
        if known is None:
            from .storages.conditional import is_atomic

            known = is_atomic(self.storage)
            self.cache.keep_atomic(atomic=known)
        return known


def open_remote(repo: Repository, name: str, storage: Storage | None = None, keys: "Keys | None" = None) -> Remote:
    """Open a remote of a store. Asks it nothing.

    Args:
        repo: the store.
        name: what the remote is called there.
        storage: the place, if it is none that the URL of a configured remote can name.
        keys: credentials, if they are not to be taken from the environment; they are kept nowhere.

    Raises:
        NotFound: no remote of that name is configured.
        Incompatible: a bad name; or the ``config`` file or the URL cannot be understood.
    """
    if storage is None:
        config = remote_config(repo.layout, repo.files, name)
        from .storages.clients import open_storage

        storage = open_storage(config, keys)
    remote_name(name, "main")
    return Remote(repo, name, storage)


def records_in(text: str) -> list[Absence]:
    """Absence records as a remote keeps them."""
    found = (decode_record(line.encode("ascii", "replace")) for line in text.splitlines())
    return [record for record in found if record is not None]
