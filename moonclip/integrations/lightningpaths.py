"""Lightning's paths: which tag each stands for, and the small files that lie where Lightning looks for checkpoints.

Lightning finds out what there is — the last checkpoint, a name that is taken — from the file system. So a file of one
line lies at each path whose checkpoint is durable: it names the tag. Nothing is lost with it but what Lightning finds.
"""

import os
import re
from pathlib import Path
from threading import Lock
from typing import Final

from store.disk.files import Files
from store.errors import Incompatible

from ..dcp.ids import tag_of
from ..saving.jobs import SaveFuture

_FIRST_WORD: Final = "moonclip-tag "
_LONGEST_BYTES: Final = 4096
"""Names of refs are shorter; what is longer is somebody else's file."""

_ILLEGAL: Final = re.compile(
    r"[\x00-\x20\x7f-\x9f~^:?*\[\\%\ud800-\udfff]|(?:^|(?<=/))\.|\.(?=\.|lock(?:/|$)|$)|@(?=\{)|^-"
)
"""What makes a name illegal for a tag, and the sign that stands in for it."""

_files: Final = Files()


def tag_at(path: str | os.PathLike[str], root: Path) -> str:
    """The tag that a path stands for: the path as seen from the directory that the store lies in, if it is below.

    What no tag may have in its name, a blank for one, is spelled as in URLs: ``run%201/last.ckpt``.

    Args:
        path: absolute, or relative to the working directory.
        root: the store's directory.

    Raises:
        Incompatible: it is a URL, or still no legal name for a tag.
    """
    if "://" in os.fspath(path):
        raise Incompatible(f"{path} is no path on this machine: give a local dirpath, and the store a remote")
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - a symbolic link is not followed: it has a name of its own
    beside = root.resolve().parent
    seen = absolute.relative_to(beside) if absolute.is_relative_to(beside) else absolute
    return tag_of(_ILLEGAL.sub(_escaped, seen.as_posix().lstrip("/")))


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in os.fsencode(found[0]))


def read_pointer(path: str | os.PathLike[str]) -> str | None:
    """The tag that the file at a path names; ``None`` if there is no such file or it is none of ours."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(_LONGEST_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None
    return text.removeprefix(_FIRST_WORD).rstrip("\n") if text.startswith(_FIRST_WORD) else None


def write_pointer(path: Path, tag: str) -> None:
    """Have a file at a path name a tag.

    Raises:
        OSError: it cannot be written.
    """
    _files.make_directory(path.parent)
    _files.write_atomic(path, f"{_FIRST_WORD}{tag}\n".encode())


class Pointers:
    """Files that are written once the saves that they stand for are durable. For use from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._awaited: dict[Path, SaveFuture] = {}

    def write_after(self, future: SaveFuture, path: Path, tag: str) -> None:
        """Have a file name a tag as soon as its save is durable; never if that fails."""
        with self._lock:
            self._awaited[path] = future
        future.add_done_callback(lambda _: self._write(future, path, tag))

    def remove(self, path: Path) -> None:
        """Take a file away if it is one of ours, or a link that Lightning made; also one that is not there yet.

        Raises:
            OSError: it cannot be removed.
        """
        with self._lock:
            self._awaited.pop(path, None)
            if read_pointer(path) is not None or path.is_symlink():
                _files.remove(path)

    def _write(self, future: SaveFuture, path: Path, tag: str) -> None:
        with self._lock:
            if self._awaited.get(path) is future:
                del self._awaited[path]
                if future.exception() is None:
                    write_pointer(path, tag)
