"""Commits as the directories that other libraries resume from, for as long as they need one."""

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from store.disk.files import Files
from store.errors import Busy, Corrupt, Unsafe

from ..manager import CheckpointManager
from ..managing.upkeep import Revision
from ..state import rng
from ..state.items import GENERATORS

_PREFIX: Final = "moonclip-resume-"
_LOCK: Final = ".lock"


class Passing:
    """An empty directory until it is cleaned up. What a process that was killed has left, the next one removes.

    Args:
        parent: where; it has to have room for a checkpoint. The system's own place for such things if ``None``.

    Attributes:
        path: the directory.

    Raises:
        OSError: it could not be made.
    """

    def __init__(self, parent: str | Path | None) -> None:
        where = Path(gettempdir() if parent is None else parent)
        where.mkdir(parents=True, exist_ok=True)
        _sweep(where)
        self._directory = TemporaryDirectory(prefix=_PREFIX, dir=where)
        self.path = Path(self._directory.name)
        self._lock = Files().lock_exclusive(self.path / _LOCK)  # given up by the system however the process ends

    def clean_up(self) -> None:
        """Remove it; again does nothing."""
        self._directory.cleanup()
        self._lock.close()


def taken_up(
    manager: CheckpointManager, rev: Revision | None, branch: str | None, write: Callable[[str], Path]
) -> Path | None:
    """Go on from a commit that another library reads from a directory.

    If a branch's tip is damaged, the newest commit before it that is not is taken, as ``resume`` does.

    Args:
        manager: goes on from there.
        rev: the commit; the branch's tip if ``None``.
        branch: branch to go on with, as for :meth:`CheckpointManager.resume`.
        write: given the commit's id, writes the directory.

    Returns:
        The directory; ``None`` if the branch has no commit yet.

    Raises:
        Conflict: ``rev`` is not the tip of the branch to go on with; the message names the ways out.
        NotFound: ``rev`` names nothing, or the commit is none of such a library's.
        Corrupt: stored bytes are damaged, of ``rev`` or, without it, of all commits.
        OSError: the directory could not be written.
    """
    manager.resume(rev=rev, branch=branch)
    found = _resumed(manager)
    if found is None:
        return None
    try:
        return write(found)
    except Corrupt:
        if rev is not None:
            raise
    items = manager.snapshot(found).items
    targets: dict[str, Any] = {item: {} for item in items if item != GENERATORS}
    manager.resume(branch=branch, **targets)  # reads all of a commit to see whether it is whole
    found = _resumed(manager)
    assert found is not None
    return write(found)


def _resumed(manager: CheckpointManager) -> str | None:
    return None if manager.resumed is None else manager.resumed.commit


def put_files(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write a commit's files into a directory.

    Args:
        directory: where to; made if there is none.
        files: contents by path in it, parts joined by ``/``.

    Raises:
        Unsafe: a path leads out of the directory. Those before it were written.
        OSError: a file could not be written.
    """
    for name, content in files.items():
        path = directory / name
        if not path.resolve().is_relative_to(directory.resolve()):
            raise Unsafe(f"the commit has a file {name!r}, which leads out of {directory}", path=name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


class Streams(NamedTuple):
    """States of random number generators, each as its library gives it.

    Attributes:
        python: of ``random.getstate``.
        numpy: of ``numpy.random.get_state``.
        torch: of ``torch.get_rng_state``.
        cuda: of ``torch.cuda.get_rng_state``, by device.
    """

    python: tuple[Any, ...]
    numpy: Any
    torch: torch.Tensor
    cuda: list[torch.Tensor]


def streams(state: Mapping[str, Any]) -> Streams:
    """What an item of random number generators holds; those of this process stay as they are.

    Raises:
        Incompatible: it is no such item.
    """
    before = rng.capture()
    try:
        rng.restore({**state, "cuda": []})  # of devices, states are only passed on
        cuda = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in state["cuda"]]
        return Streams(random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda)
    finally:
        rng.restore(before)


def _sweep(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(Busy, OSError), Files().lock_exclusive(path, blocking=False, create=False):
            rmtree(path.parent)
