"""Where damaged files go that were replaced: ``quarantine/``, which nothing reads and a person may empty.

A pack keeps its name there; of other files, ``/`` in the path is written ``~``. A name that is taken gets a number.

Spec: docs/format.md, section on the quarantine.
"""

from itertools import count
from pathlib import Path
from typing import Final

from ..disk.files import TEMPORARY_PREFIX, Files
from ..limits import MIB

_COPY_BYTES: Final = 4 * MIB


def set_aside(root: Path, files: Files, path: Path) -> Path:
    """Move a file of the store at ``root`` into quarantine, durably; returns where it is.

    Raises:
        FileNotFoundError: it is not there (any more).
        OSError: it is where it was.
    """
    target = _free(root, files, _name(root, path))
    files.rename_durable(path, target)
    return target


def keep_copy(root: Path, files: Files, path: Path) -> Path:
    """Put a copy of a file, which is about to be replaced, into quarantine; returns where it is.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it could not be written.
    """
    target = _free(root, files, _name(root, path))
    temporary = target.with_name(f"{TEMPORARY_PREFIX}{target.name}")
    with files.open_read(path) as handle:
        if files.exists(temporary):  # of one who was killed meanwhile
            files.remove(temporary)
        blocks = files.open_blocks(temporary)
        try:
            for start in range(0, handle.size, _COPY_BYTES):
                blocks.write([handle.pread(start, min(_COPY_BYTES, handle.size - start))])
            blocks.finish()
        except BaseException:
            blocks.abandon()
            raise
    files.rename_durable(temporary, target)
    return target


def quarantined(root: Path, files: Files) -> list[Path]:
    """What lies in quarantine."""
    directory = _directory(root)
    try:
        names = files.list_directory(directory)
    except FileNotFoundError:
        return []
    return [directory / name for name in names if not name.startswith(TEMPORARY_PREFIX)]


def _directory(root: Path) -> Path:
    return root / "quarantine"


def _name(root: Path, path: Path) -> str:
    return path.name if path.suffix == ".pack" else str(path.relative_to(root)).replace("/", "~")


def _free(root: Path, files: Files, name: str) -> Path:
    directory = _directory(root)
    files.make_directory(directory)
    names = (name if number == 0 else f"{name}.{number}" for number in count())
    return next(directory / each for each in names if not files.exists(directory / each))
