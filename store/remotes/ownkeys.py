"""The keys of a remote that one store alone writes: its absence records, and its refs where each store has its own.

A directory that was copied, as by ``cp -r``, is two stores with one id. Each of the two would take the refs of the
other for its own. So a store writes down what it is about to make of such a ref, and if it finds something else there,
it is the copy, or the one that was copied: it goes by another id from then on, and leaves the refs to the other.
Nothing is lost on either side; whoever fetches sees both.

Of what was never written down, as by a store whose cache is gone, nothing is known: that is taken for its own.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..disk.files import FileLock, Files
from ..errors import Conflict
from ..ids import CommitId, short
from ..limits import MAX_REMOTE_RECORDS_BYTES, MAX_REMOTE_REF_BYTES, PUSH_ATTEMPTS
from ..naming.refnames import describe
from .cache import Cache
from .names import RefKey
from .refcontent import decode_ref, encode_ref
from .storages.storage import Storage


class OwnKeys:
    """Writes them. Threads may share it, and processes with the same store meet at its lock.

    Args:
        storage: the remote.
        cache: what is remembered of it.
        directory: where that lies.
        files: does the I/O.
    """

    def __init__(self, storage: Storage, cache: Cache, directory: Path, files: Files) -> None:
        self._storage = storage
        self._cache = cache
        self._directory = directory
        self._files = files

    def put_ref(self, key: RefKey, old: CommitId | None, new: CommitId | None, *, is_there: bool) -> str:
        """Move a ref of the store's, if it holds what is expected; returns its version.

        Args:
            key: the ref.
            old: what it should name; ``None`` if it was deleted, or is not there.
            new: what it is to name; ``None`` to delete it.
            is_there: whether it should be there, if only as a deleted one.

        Raises:
            Conflict: it holds something else.
            OSError: what it is to name could not be written down here. It was not moved.
        """
        data = encode_ref(new)
        with self._locked():
            found = self._storage.get(key.key, MAX_REMOTE_REF_BYTES)
            # Not by version: such servers may tell another one when they list than when they are asked.
            held = found and decode_ref(found[0], key.key)
            if held not in (old, new):
                raise moved(key, held)
            self._cache.keep_own({**self._cache.own(), key.key: [old, new] if is_there else [new]})
            return found[1] if found is not None and found[0] == data else self._storage.put(key.key, data)

    def is_moved_by_another(self, key: RefKey, commit: CommitId | None) -> bool:
        """Whether a ref of the store's holds what the store did not put there.

        Args:
            key: the ref.
            commit: what it was read to hold: of that alone, which may be old, nothing is concluded.

        Raises:
            Corrupt: it is damaged.
        """
        if commit in self._cache.own().get(key.key, (commit,)):
            return False
        with self._locked():  # no process with this store moves it meanwhile
            found = self._storage.get(key.key, MAX_REMOTE_REF_BYTES)
            known = self._cache.own().get(key.key, ())
        return found is not None and decode_ref(found[0], key.key) not in known

    def add_lines(self, key: str, wanted: Iterable[str], *, is_atomic: bool) -> tuple[str, str]:
        """Add lines to those that are there, whoever adds others meanwhile, as a copy of the store may.

        Args:
            key: where.
            wanted: the lines.
            is_atomic: whether the server compares and swaps.

        Returns:
            Version and text of all.

        Raises:
            Conflict: somebody adds others again and again.
        """
        for _ in range(PUSH_ATTEMPTS):
            with self._locked(), suppress(Conflict):
                found = self._storage.get(key, MAX_REMOTE_RECORDS_BYTES)
                lines = dict.fromkeys((found[0].decode("ascii", "replace") if found else "").splitlines())
                data = "".join(f"{line}\n" for line in lines | dict.fromkeys(wanted)).encode("ascii", "replace")
                if is_atomic:
                    return self._storage.put_if(key, data, found and found[1]), data.decode()
                return self._storage.put(key, data), data.decode()
        raise Conflict(f"{self._storage.url}: {key} changes all the time; push again", key=key)

    def _locked(self) -> FileLock:
        self._files.make_directory(self._directory)
        return self._files.lock_exclusive(self._directory / "writing.lock")


def moved(key: RefKey, found: CommitId | None) -> Conflict:
    """What to raise for a ref that is not what it was read as."""
    holds = "is not there" if found is None else f"holds {short(found)}"
    return Conflict(
        f"{describe(key.name)} of the remote moved meanwhile: it {holds}; fetch, then try again",
        ref=key.name,
        got=found and found.hex(),
    )
