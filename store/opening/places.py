"""Where a store lies that a person named, and what keeps one from being made there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import Incompatible


def place_of(named: str | Path) -> Path:
    """The directory that a person named, where ``~`` stands for a home directory as in a shell.

    Raises:
        Incompatible: nobody knows the home directory that it begins with.
    """
    try:
        return Path(named).expanduser()
    except RuntimeError as error:
        raise Incompatible(
            f"{named}: the home directory that {Path(named).parts[0]!r} stands for is not known; write the path out, or"
            " put './' before a name that begins so",
            path=str(named),
        ) from error


@contextmanager
def telling_what_is_in_the_way(root: Path) -> Iterator[None]:
    """Say of a directory that cannot be made which one it is and why. What fails inside a directory goes by as it is.

    Raises:
        OSError: as it was raised inside, of the same class and number.
    """
    try:
        yield
    except (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
        if error.errno is None or root.is_dir():
            raise
        file = next((each for each in (root, *root.parents) if os.path.lexists(each) and not each.is_dir()), None)
        reason = f"{file} is no directory" if file else f"{error.filename or root}: {error.strerror}"
        message = f"no store can be made at {root}: {reason}; give a directory, or a path at which one can be made"
        raise OSError(error.errno, message) from error
