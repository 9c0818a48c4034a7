"""What is known of a remote without asking it: files under ``remotes/<name>/`` of the store.

    known         JSON: the remote's URL, refs and absence records by version, what the probe found, and of a push
                  that may have been killed what it had yet to look at, and what it made of refs of this store alone
    idx/<pack>    idx files, which never change

All of it can be had from the remote again, or is not needed: what cannot be read is as good as not there, and what
cannot be written is done without. What was remembered of another URL does not count.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..disk.files import Files
from ..errors import Corrupt, Incompatible
from ..ids import CommitId, PackId, from_hex
from ..layout import Layout
from .idx import Idx, decode_idx


def directory_of(layout: Layout, name: str) -> Path:
    """Where a store keeps what it remembers of a remote."""
    return layout.root / "remotes" / name


class Cache:
    """What one store remembers of one remote. Threads may share it.

    Args:
        directory: where; made when something is first put there.
        url: the remote's.
        files: does the I/O.
    """

    def __init__(self, directory: Path, url: str, files: Files) -> None:
        self._directory = directory
        self._url = url
        self._files = files

    def entries(self, table: str) -> dict[str, tuple[str, str]]:
        """What is known of some keys of the remote: of each the version, and the content as text.

        Args:
            table: ``"refs"`` or ``"absent"``.
        """
        found = self._known().get(table)
        if not isinstance(found, dict):
            return {}
        return {
            key: (pair[0], pair[1])
            for key, pair in found.items()
            if isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
        }

    def keep_entries(self, table: str, entries: dict[str, tuple[str, str]]) -> None:
        """Remember these instead."""
        self._keep(table, {key: list(pair) for key, pair in entries.items()})

    def is_atomic(self) -> bool | None:
        """What the probe of this store found; ``None`` if there was none."""
        found = self._known().get("atomic")
        return found if isinstance(found, bool) else None

    def keep_atomic(self, *, atomic: bool) -> None:
        """Remember what the probe found."""
        self._keep("atomic", atomic)

    def unchecked(self) -> tuple[str | None, list[CommitId]] | None:
        """Of a push that did not end: the version of the list of condemned packs that it knew, and commits."""
        found = self._known().get("unchecked")
        if not isinstance(found, dict) or not isinstance(found.get("commits"), list):
            return None
        version = found.get("condemned")
        try:
            commits = [CommitId(from_hex(each)) for each in found["commits"]]
        except (ValueError, TypeError, AttributeError):
            return None
        return (version if isinstance(version, str) else None), commits

    def keep_unchecked(self, version: str | None, commits: Sequence[CommitId]) -> None:
        """Remember that refs are about to move to these commits; none: that the push ended."""
        self._keep("unchecked", _unchecked(version, commits) if commits else None)

    def own(self) -> dict[str, list[CommitId | None]]:
        """By key what each ref of this store alone may hold, if nobody else moved it; ``None`` if it was deleted."""
        found = self._known().get("own")
        try:
            return {str(key): [_commit(each) for each in commits] for key, commits in (found or {}).items()}
        except (ValueError, TypeError, AttributeError):
            return {}

    def keep_own(self, own: Mapping[str, Sequence[CommitId | None]]) -> None:
        """Remember these instead.

        Raises:
            OSError: they could not be written. Not done without: a ref that moves all the same would look another's.
        """
        self._change("own", {key: [each and each.hex() for each in commits] for key, commits in own.items()})

    def idx(self, pack: PackId) -> Idx | None:
        """An idx, if it is here and intact."""
        with suppress(OSError, Corrupt, Incompatible):
            return decode_idx(self._files.read_bytes(self._idx_path(pack)), pack)
        return None

    def idx_files(self) -> Iterator[bytes]:
        """All idx files that are here, the newest first, not looked into."""
        directory = self._directory / "idx"
        try:
            found = (
                (self._files.fingerprint(directory / name), name) for name in self._files.list_directory(directory)
            )
            newest_first = sorted((mark[2], name) for mark, name in found if mark is not None)[::-1]
        except OSError:
            return
        for _, name in newest_first:
            with suppress(OSError):
                yield self._files.read_bytes(directory / name)

    def has_idx(self, pack: PackId) -> bool:
        """Whether there is one, intact or not."""
        return self._files.exists(self._idx_path(pack))

    def keep_idx(self, pack: PackId, data: bytes) -> None:
        """Remember an idx, which is intact."""
        self._write(self._idx_path(pack), data)

    def drop_idx(self, keep: Collection[PackId]) -> None:
        """Forget those of packs that are none of these."""
        with suppress(OSError):
            names = {pack.hex() for pack in keep}
            for name in self._files.list_directory(self._directory / "idx"):
                if name not in names:
                    self._files.remove(self._directory / "idx" / name)

    def clear(self) -> None:
        """Forget all. The lock files stay: somebody may be waiting for one."""
        self.drop_idx(())
        with suppress(OSError):
            self._files.remove(self._directory / "known")

    # --- how --------------------------------------------------------------------------------------------------------

    def _idx_path(self, pack: PackId) -> Path:
        return self._directory / "idx" / pack.hex()

    def _known(self) -> dict[str, Any]:
        try:
            known = json.loads(self._files.read_bytes(self._directory / "known"))
        except (OSError, ValueError, RecursionError):
            return {}
        return known if isinstance(known, dict) and known.get("url") == self._url else {}

    def _keep(self, key: str, value: object) -> None:
        with suppress(OSError):
            self._change(key, value)

    def _change(self, key: str, value: object) -> None:
        self._files.make_directory(self._directory)
        with self._files.lock_exclusive(self._directory / "lock"):
            known = self._known()
            if known.get(key) != value:
                text = json.dumps({**known, "url": self._url, key: value}, indent=1)
                self._files.write_atomic(self._directory / "known", text.encode())

    def _write(self, path: Path, data: bytes) -> None:
        with suppress(OSError):
            self._files.make_directory(path.parent)
            self._files.write_atomic(path, data)


def _commit(text: str | None) -> CommitId | None:
    return None if text is None else CommitId(from_hex(text))


def _unchecked(version: str | None, commits: Sequence[CommitId]) -> dict[str, object]:
    return {"condemned": version, "commits": [commit.hex() for commit in commits]}
