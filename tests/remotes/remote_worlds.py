"""Remotes whose clock a test moves, stores that push to them, and whether all that a remote's refs name can be had."""

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from store.format.pack import TableEntry
from store.ids import CommitId, ObjectId, from_hex
from store.index.depths import resolve_depths
from store.naming.refnames import branch_name
from store.opening.indexes import rebuild_index
from store.reading.closure import missing_objects
from store.reading.packs import pack_path
from store.remotes.idx import decode_idx
from store.remotes.names import PACKS, parse_pack
from store.remotes.pushing.push import Pushed, push
from store.remotes.remote import Remote, open_remote
from store.remotes.storages.storage import Stat, Storage, Unfinished
from store.repository import Repository
from tests.remotes.memory_storage import MemoryStorage
from tests.stores import commit

DAY_NS = 24 * 3600 * 1_000_000_000
HOUR_NS = 3600 * 1_000_000_000


_numbers = count(1)


class ClockedStorage(MemoryStorage):
    """Keys in memory, dated by a clock that stands until it is moved.

    Attributes:
        url: another for each, so that nobody remembers one for another.
        clock_ns: what time it is there.
        pending: uploads that were begun.
    """

    def __init__(self) -> None:
        super().__init__()
        self.url = f"memory:{next(_numbers)}"
        self.clock_ns = 10**18
        self.pending: list[Unfinished] = []

    def now_ns(self) -> int:
        return self.clock_ns

    def unfinished(self) -> Iterator[Unfinished]:
        return iter(list(self.pending))

    def abort(self, upload: Unfinished) -> None:
        self.pending.remove(upload)

    def keys(self, prefix: str = "") -> set[str]:
        return {stat.key for stat in self.list(prefix)}

    def content(self) -> dict[str, bytes]:
        return {key: self.bytes_of(key) for key in self.keys()}

    def bytes_of(self, key: str) -> bytes:
        found = self.get(key, 1 << 40)
        assert found is not None
        return found[0]


def opened(repo: Repository, storage: Storage) -> Remote:
    """The remote ``origin`` of a store."""
    return open_remote(repo, "origin", storage)


def pushed(repo: Repository, storage: Storage, *branches: str, **how: object) -> Pushed:
    """Push branches; all of them move."""
    with opened(repo, storage) as remote:
        done = push(repo, remote, branches, **how)  # type: ignore[arg-type]
    done.require_all()
    return done


def saved(repo: Repository, branch: str, *steps: int) -> list[CommitId]:
    """Commit states on a branch, which begins there if there is none."""
    return [commit(repo, branch, step=step) for step in steps]


def drop_there(repo: Repository, storage: Storage, branch: str) -> None:
    """Delete a branch of the remote."""
    pushed(repo, storage, delete=[branch])


def packs_of(storage: ClockedStorage) -> set[str]:
    """Names of packs that are whole."""
    keys = storage.keys(PACKS)
    return {key for key in keys if key.endswith(".pack") and f"{key[:-5]}.idx" in keys}


def require_whole(storage: Storage, path: Path) -> None:
    """See that all that refs of a remote name, and all that came before, can be read from its packs.

    The packs become those of a store, which checks and reads everything by itself.
    """
    with Repository.init(path) as repo:
        listed = {stat.key: stat for stat in storage.list(PACKS)}
        for key, stat in listed.items():
            parsed = parse_pack(key)
            if parsed is not None and not parsed[1] and parsed[0].idx_key in listed:
                pack_path(repo.layout.packs, parsed[0].id).write_bytes(_content(storage, stat))
        rebuild_index(repo.layout, repo.files, repo.packs)
    with Repository.open(path) as repo, opened(repo, storage) as remote:
        for number, ref in enumerate(remote.refs().values()):
            for row in repo.log([ref.commit] if ref.commit else []):
                repo.set_ref(branch_name(f"ref{number}-{row.id.hex()}"), None, row.id, "test")
                commit_ = repo.commit(row.id)
                for item in commit_.items:
                    for _, entry in repo.tree(commit_, item):
                        if hasattr(entry, "dtype"):
                            repo.read_tensors([(entry, memoryview(bytearray(entry.size_bytes)))], verify_hash=True)


def _content(storage: Storage, stat: Stat) -> bytes:
    out = bytearray(stat.size_bytes)
    storage.read_into(stat.key, 0, memoryview(out), lambda _: None)
    return bytes(out)


def lacking_there(repo: Repository, storage: ClockedStorage) -> list[ObjectId]:
    """What refs of a remote need and its packs do not give, told by a store that has all of it."""
    entries: list[TableEntry] = []
    for key in packs_of(storage):
        parsed = parse_pack(key)
        assert parsed is not None
        entries += decode_idx(storage.bytes_of(parsed[0].idx_key), parsed[0].id).table.entries
    readable = {entry.id for entry, _ in resolve_depths(entries, lambda _: None).resolved}
    tips = [storage.bytes_of(key).decode().strip() for key in storage.keys("refs/")]
    commits = [row.id for row in repo.log(CommitId(from_hex(tip)) for tip in tips if int(tip, 16))]
    trees = [tree for commit_ in commits for tree in repo.commit(commit_).items.values()]

    def lacking(objects: Sequence[ObjectId]) -> list[ObjectId]:
        return [each for each in objects if each not in readable]

    found: list[ObjectId] = []
    missing_objects(trees, repo.reader.tree_node, lambda objects: found.extend(lacking(objects)) or [])  # type: ignore[func-returns-value]
    return [*lacking(commits), *found]
