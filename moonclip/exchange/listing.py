"""The files of a directory that is to be imported: which there are, and what is passed over. Reads none of them."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from store.disk.files import Files, Fingerprint
from store.errors import Conflict, Incompatible
from store.layout import Layout

_PASSED_OVER: Final = frozenset({".git", ".cache"})
"""Directories of other tools: histories, and what downloads leave behind."""

_MAX_DEPTH: Final = 256
"""Directories in each other: less than what recursion bears, and more than any model has."""

_ASIDE: Final = ".moonclip-"
"""How directories begin that an export which was killed has left."""


class Found(NamedTuple):
    """A file.

    Attributes:
        name: its path below the directory, parts joined by ``/``.
        path: where it is; links are followed.
        size_bytes: its length.
        fingerprint: tells whether it was changed since.
    """

    name: str
    path: Path
    size_bytes: int
    fingerprint: Fingerprint

    @property
    def suffix(self) -> str:
        """What its name ends in, in lower case."""
        return self.path.suffix.lower()


class Skipped(NamedTuple):
    """Something that is not imported, or not as what it seems to be.

    Attributes:
        name: its path below the directory.
        why: why not.
    """

    name: str
    why: str


class Listing(NamedTuple):
    """What is in a directory.

    Attributes:
        files: in the order of their names.
        skipped: what is not imported.
    """

    files: list[Found]
    skipped: list[Skipped]


def listed(directory: Path, files: Files) -> Listing:
    """Find the files of a directory and of those below it, or one file. Links to files and directories are followed.

    Raises:
        Incompatible: a name that is no UTF-8, a link that leads nowhere, or directories in each other without end.
        OSError: a directory cannot be read.
    """
    found: list[Found] = []
    skipped: list[Skipped] = []
    walked = _walked(directory, "", (), skipped) if directory.is_dir() else iter([(directory.name, directory)])
    for name, path in walked:
        fingerprint = files.fingerprint(path)
        if fingerprint is None:
            raise Incompatible(f"{path} is a link that leads nowhere; was all of it downloaded?", path=str(path))
        if path.is_file():
            found.append(Found(name, path, fingerprint[1], fingerprint))
        else:
            skipped.append(Skipped(name, "no file, but a pipe, a socket or a device"))
    return Listing(found, skipped)


def require_unchanged(found: Sequence[Found], files: Files) -> None:
    """Check that files are what they were when they were listed.

    Raises:
        Conflict: one was changed meanwhile, or is gone.
    """
    changed = [each.path for each in found if files.fingerprint(each.path) != each.fingerprint]
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise Conflict(
            f"{changed[0]}{more} changed while it was imported, and nothing was committed; import it once nobody writes"
            " to it",
            path=str(changed[0]),
        )


def _walked(
    directory: Path, around: str, above: tuple[tuple[int, int], ...], skipped: list[Skipped]
) -> Iterator[tuple[str, Path]]:
    status = directory.stat()
    here = (*above, (status.st_dev, status.st_ino))
    if len(here) > _MAX_DEPTH:
        raise Incompatible(f"{directory} lies too deep; pack what is there into one file", path=str(directory))
    entries = sorted(directory.iterdir())
    if not entries and around:
        skipped.append(Skipped(around, "an empty directory"))
    for path in entries:
        name = f"{around}/{path.name}" if around else path.name
        _require_text(path)
        if not path.is_dir():
            yield name, path
        elif (why := _reason(path, here)) is not None:
            skipped.append(Skipped(name, why))
        else:
            yield from _walked(path, name, here, skipped)


def _reason(directory: Path, above: tuple[tuple[int, int], ...]) -> str | None:
    """Why a directory is passed over; ``None`` if it is not."""
    if directory.name in _PASSED_OVER or directory.name.startswith(_ASIDE):
        return "a directory of another tool"
    layout = Layout(directory)
    if layout.format.exists() and layout.packs.is_dir():
        return "a store of moonclip"
    status = directory.stat()
    return "a link to a directory around it" if (status.st_dev, status.st_ino) in above else None


def _require_text(path: Path) -> None:
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        raise Incompatible(
            f"{os.fspath(path)!r} has a name that is no UTF-8, under which nobody else could find it; rename it",
            path=os.fspath(path),
        ) from None
