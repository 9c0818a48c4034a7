"""Files of an export: written aside, and put into their places once all of them are complete.

A reader begins with one file of a format, its *entrance* (an index, a header of all). What was there before keeps its
entrance until nothing but renames is left to do; then that goes first and the new one comes last. So whoever looks
meanwhile, or after a kill, finds the old files, or the new ones, or none that can be opened: never a mixture.
"""

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4

from store.disk.files import BlockWriter, Files
from store.errors import Conflict, Incompatible
from store.ids import Buffer


class Kind(NamedTuple):
    """What exports of one format leave in a directory.

    Attributes:
        entrances: files that readers begin with, by name.
        parts: globs of all others.
    """

    entrances: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()


PLAIN: Final = Kind()
"""Files that are what their writer says, and no part of anything."""


class Outputs:
    """Files on their way into a directory. Made by :func:`writing_into`.

    Args:
        files: does the I/O.
        directory: where they go.
        aside: where they are written.
        kind: the format's.
    """

    def __init__(self, files: Files, directory: Path, aside: Path, kind: Kind) -> None:
        self._files = files
        self._directory = directory
        self._aside = aside
        self._kind = kind
        self._numbers = count()
        self._written: dict[str, int] = {}

    @contextmanager
    def open(self, name: str) -> Iterator[BlockWriter]:
        """Write a file, whose content is durable afterwards. Several may be written at once, in any threads.

        Args:
            name: where it goes, relative to the directory.

        Raises:
            OSError: it could not be written.
        """
        number = next(self._numbers)
        blocks = self._files.open_blocks(self._place(number))
        try:
            yield blocks
            blocks.finish()
        except BaseException:
            blocks.abandon()
            raise
        self._written[name] = number

    def write(self, name: str, data: Buffer) -> None:
        """Write a small file. Raises as :meth:`open` does."""
        with self.open(name) as blocks:
            blocks.write([data])

    def put(self) -> int:
        """Put all files into their places; files of earlier exports that they do not replace are removed.

        Returns:
            Their bytes.

        Raises:
            OSError: a file could not be put there.
        """
        places = {name: self._place(number) for name, number in self._written.items()}
        targets = {name: self._directory / name for name in places}
        size_bytes = sum(map(self._files.size, places.values()))
        for parent in dict.fromkeys(target.parent for target in targets.values()):
            self._files.make_directory(parent)
            self._require_takes_files(parent)
        earlier = found_of(self._directory, self._kind)
        if len(places) > 1:
            self._remove([name for name in earlier if name in self._kind.entrances])
        entrances = [name for name in places if name in self._kind.entrances]
        for names in ([name for name in places if name not in entrances], entrances):
            self._files.rename_all_durable({places[name]: targets[name] for name in names})
        self._remove([name for name in earlier if name not in places])
        return size_bytes

    def _place(self, number: int) -> Path:
        """Where a file is written: by number, since names may lead through directories."""
        return self._aside / str(number)

    def _require_takes_files(self, directory: Path) -> None:
        """Check that files can be moved there, as long as nothing is lost if they cannot.

        Raises:
            OSError: they cannot.
        """
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))
        if directory.stat().st_dev != self._aside.stat().st_dev:
            raise OSError(errno.EXDEV, "is another file system than the directory around it", str(directory))

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._files.remove(self._directory / name)


@contextmanager
def writing_into(files: Files, directory: Path, kind: Kind = PLAIN) -> Iterator[Outputs]:
    """A directory to write files into, made if there is none. What was not put there is gone afterwards.

    Args:
        files: does the I/O.
        directory: may hold other files.
        kind: what the format leaves in it.

    Raises:
        OSError: it cannot be made or written.
    """
    is_new = not directory.exists()
    aside = directory / f".moonclip-{uuid4().hex}"
    files.make_directory(aside)
    try:
        yield Outputs(files, directory, aside, kind)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if is_new:
            with suppress(OSError):  # it holds what was put there
                files.remove_directory(directory)


def found_of(directory: Path, kind: Kind) -> list[str]:
    """Files in a directory that exports of a format leave, by name."""
    if not directory.is_dir():
        return []
    globs = (*kind.entrances, *kind.parts)
    return sorted(path.name for path in directory.iterdir() if any(fnmatchcase(path.name, glob) for glob in globs))


def require_free(directory: Path, names: Sequence[str], *, overwrite: bool) -> None:
    """Refuse to replace files, unless that is wanted.

    Args:
        directory: where they are.
        names: the files, relative to it; those that do not exist are fine.
        overwrite: whether they may be replaced.

    Raises:
        Conflict: one exists; or something that is no file has its name, or is on the way to it, overwrite or not.
        OSError: a name that the disk does not take.
    """
    for place in [directory, *(directory / name for name in names)]:
        _require_way(directory, place)
    taken = [name for name in names if (directory / name).exists()]
    if taken and not overwrite:
        more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
        raise Conflict(
            f"{directory / taken[0]}{more} exists; replace what is there with --force (overwrite=True), or name"
            " another place",
            path=str(directory),
            names=taken,
        )


def require_inside(directory: Path, names: Sequence[str]) -> None:
    """Check that files would lie below a directory: a link that is there already may lead out of it.

    Raises:
        Incompatible: one would not.
    """
    root = directory.resolve()
    for name in names:
        if not (directory / name).resolve().is_relative_to(root):
            raise Incompatible(f"{directory / name} leads out of {directory}; remove the link on the way", path=name)


def require_directory(directory: Path) -> None:
    """Check that a file can go there.

    Raises:
        FileNotFoundError: there is no such directory.
    """
    if not directory.exists():
        raise FileNotFoundError(errno.ENOENT, "No such file or directory; make it first", str(directory))


def _require_way(directory: Path, place: Path) -> None:
    """Refuse what is no file (a pipe or device, say), or lies below something that is no directory."""
    around = [each for each in (directory, *place.parents) if each.is_relative_to(directory)]
    blocking = [each for each in around if each.exists() and not each.is_dir()]
    if place != directory and place.exists() and not place.is_file():
        blocking.append(place)
    if blocking:
        kind = "file" if blocking[0] == place != directory else "directory"
        raise Conflict(
            f"{blocking[0]} is in the way: it is no {kind}; name another place, or move it away",
            path=str(blocking[0]),
        )
