"""Where the index lies, and how another takes its place.

| path | is |
|---|---|
| ``index/<n>/`` | an LMDB environment; the greatest number is the one in use |
| ``index/tmp-<hex>/`` | one in the making |
| ``index/old-<n>/`` | one before the last rebuild, kept aside because it was broken, or about to be removed |
| ``index.lock`` | shared by whoever writes into the index, exclusive to whoever rebuilds it |
"""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

from ..disk.files import Files
from ..errors import Busy
from ..index import BrokenIndex, IndexWriter, LmdbIndex
from ..index.environment import Environment, Superseded
from ..index.sharing import close_environment, open_environment
from ..limits import INDEX_ATTEMPTS, INDEX_MAP_BYTES

_NUMBER: Final = re.compile(r"[0-9]{1,18}")

Fill = Callable[[IndexWriter], None]


class Generations:
    """The generations of one store's index. Thread-safe.

    Args:
        directory: where they lie; the lock lies beside it.
        files: does the I/O.
        digest: reads the packs; what it gives adds all of them, and their commits, to an empty index.
        map_bytes: size of the map of an index that is made.
        locked: as for ``open_environment``.
    """

    def __init__(
        self,
        directory: Path,
        files: Files,
        digest: Callable[[], Fill],
        *,
        map_bytes: int = INDEX_MAP_BYTES,
        locked: bool = True,
    ) -> None:
        self._directory = directory
        self._lock = directory.with_name(f"{directory.name}.lock")
        self._files = files
        self._digest = digest
        self._map_bytes = map_bytes
        self._locked = locked

    def open(self, *, writable: bool) -> LmdbIndex:
        """Open the index in use.

        Args:
            writable: whether this handle may write.

        Raises:
            BrokenIndex: there is none, or it is damaged.
            OSError: it cannot be read.
        """
        return LmdbIndex(self, self.attach(), writable=writable)

    def attach(self) -> Environment:
        """Open the environment in use.

        Raises:
            BrokenIndex: there is none, or it is damaged.
            Busy: it is rebuilt again and again.
            OSError: it cannot be read.
        """
        for _ in range(INDEX_ATTEMPTS):
            path = self.in_use()
            try:
                environment = self._open_at(path)
            except (BrokenIndex, OSError):
                if self.in_use() == path:
                    raise
            else:
                if self.in_use() == path:
                    return environment
                close_environment(environment)  # a rebuild is removing it, and what was opened may be made anew, empty
        raise Busy(f"the index in {self._directory} is rebuilt as fast as it is opened; try again")

    def in_use(self) -> Path:
        """Directory of the index in use.

        Raises:
            BrokenIndex: there is none.
        """
        number = self._number()
        if number is None:
            raise BrokenIndex(f"there is no index in {self._directory}", path=str(self._directory))
        return self._directory / str(number)

    @contextmanager
    def writing(self) -> Iterator[Path]:
        """Keep rebuilds away meanwhile, having waited for one that is under way; gives the directory in use.

        Raises:
            BrokenIndex: there is none.
            OSError: the lock cannot be taken.
        """
        with self._files.lock_shared(self._lock):
            yield self.in_use()

    def renew(self, seen: Path | None, *, is_broken: bool) -> None:
        """Rebuild the index from the packs, unless somebody has since it was found wanting.

        Args:
            seen: directory of the index that is wanting; ``None`` if none could be opened.
            is_broken: whether to keep that index aside, for whoever wants to know what happened to it.

        Raises:
            OSError: the disk is full or failed. What is in use is as before.
        """
        self._files.make_directory(self._directory)
        with self._files.lock_exclusive(self._lock):
            if self._is_wanting(seen):
                self._rebuild(keep_old=is_broken)

    def rebuild(self) -> None:
        """Make an index from the packs and put it in place of the one in use, once nobody writes into that.

        Raises:
            OSError: the disk is full or failed. What is in use is as before.
        """
        self._files.make_directory(self._directory)
        with self._files.lock_exclusive(self._lock):
            self._rebuild(keep_old=not self._opens())

    # --- how --------------------------------------------------------------------------------------------------------

    def _open_at(self, path: Path) -> Environment:
        if not self._files.exists(path / "data.mdb"):
            raise BrokenIndex(f"index at {path} has no data", path=str(path))
        try:
            return open_environment(path, map_bytes=self._map_bytes, locked=self._locked)
        except Superseded as error:
            raise BrokenIndex(f"index at {path} went away", path=str(path)) from error

    def _rebuild(self, *, keep_old: bool) -> None:
        old = self._number()
        self._remove_leftovers()
        made = self._directory / f"tmp-{uuid4().hex}"
        self._files.make_directory(made)
        self._fill(made)
        # The rename is the point at which the new one counts. A power cut that loses content which LMDB had made
        # durable does not exist; one that loses its name leaves an index without data, which is rebuilt.
        self._files.rename_durable(made, self._directory / str((old or 0) + 1))
        if old is not None:
            aside = self._set_aside(old)
            if not keep_old:
                shutil.rmtree(aside, ignore_errors=True)

    def _set_aside(self, number: int) -> Path:
        """Whoever has it open, or is about to open it, shall miss all of it at once and not one file after another."""
        aside = self._directory / f"old-{number}"
        self._files.rename_durable(self._directory / str(number), aside)
        return aside

    def _fill(self, made: Path) -> None:
        fill = self._digest()
        environment = open_environment(made, map_bytes=self._map_bytes)
        try:
            environment.write(lambda transaction: fill(IndexWriter(transaction, environment.key)))
        finally:
            close_environment(environment)

    def _remove_leftovers(self) -> None:
        """Of rebuilds that died, and what the last one kept aside."""
        in_use, names = self._number(), self._names()
        for name in names:
            if name.startswith(("tmp-", "old-")):
                shutil.rmtree(self._directory / name, ignore_errors=True)
        for name in names:
            if _NUMBER.fullmatch(name) and int(name) != in_use:
                shutil.rmtree(self._set_aside(int(name)), ignore_errors=True)

    def _is_wanting(self, seen: Path | None) -> bool:
        number = self._number()
        return number is None or (str(number) == seen.name if seen else not self._opens())

    def _opens(self) -> bool:
        try:
            environment = self.attach()
        except BrokenIndex:
            return False
        close_environment(environment)
        return True

    def _number(self) -> int | None:
        return max((int(name) for name in self._names() if _NUMBER.fullmatch(name)), default=None)

    def _names(self) -> list[str]:
        try:
            return self._files.list_directory(self._directory)
        except (FileNotFoundError, NotADirectoryError):
            return []
