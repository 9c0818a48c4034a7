"""Stores of the Rust engine, read by that engine in an interpreter of its own."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from store.errors import Incompatible

from ..exchange.tensorinputs import DEFAULT_ITEM
from . import rustside
from .source import Found, Loaded
from .torchfiles import read_torch

_EXTRA: Final = "extra"
"""Item of what its users named themselves; that engine puts this and a slash before each name."""
_ALONE: Final = "tensors"
"""Item of tensors that were given to its engine by name."""


class RustStore:
    """A store that the Rust ``moonclip`` made.

    Args:
        root: its directory.
        python: an interpreter that can import that package and torch.

    Raises:
        Incompatible: it cannot, or its engine cannot read the store.
        OSError: there is no such program.
    """

    kind = "Rust moonclip store"
    passed_over: Sequence[str] = ()

    def __init__(self, root: Path, python: Path) -> None:
        self._root = root
        self._python = python
        self._directory = TemporaryDirectory(prefix="moonclip-migrate-")
        command = [str(python), "-I", rustside.__file__, str(root.absolute())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            self._snapshots = {each["id"]: each for each in self._answer()["snapshots"]}
        except BaseException:
            self.close()
            raise

    def found(self) -> list[Found]:
        """In the order in which they were made."""
        found = [Found(each["id"], each["step"], _time_ns(each["created_at"])) for each in self._snapshots.values()]
        return sorted(found, key=lambda each: (each.time_ns, each.step))

    def load(self, found: Found) -> Loaded:
        """Its state dicts; what its users named is in the item ``extra``.

        Raises:
            Incompatible: several ranks saved it, or the engine cannot read it.
        """
        snapshot = self._snapshots[found.name]
        if snapshot["ranks"] != 1:
            raise Incompatible(
                f"snapshot {found.name} was saved by {snapshot['ranks']} ranks, of which that engine gives one process"
                " the first alone; load it on as many ranks, gather it, and migrate what torch.save makes of that",
                snapshot=found.name,
            )
        path = Path(self._directory.name) / "snapshot.pt"
        self._ask([found.name, str(path)])
        try:
            read = read_torch(path)
        finally:
            path.unlink()
        items = _items(read["states"])
        if read["tensors"]:
            items[_ALONE if items else DEFAULT_ITEM] = read["tensors"]
        lossy = {"lossy": True} if snapshot["is_lossy"] else {}
        return Loaded(items, {**snapshot["metadata"], **lossy})

    def close(self) -> None:
        """End the other interpreter, and remove what it wrote."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._directory.cleanup()

    def _ask(self, request: list[str]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # then there is no answer either, and that is told
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Incompatible(f"{self._python} ended without reading {self._root}; what it said stands above")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Incompatible(f"the Rust engine of {self._python} cannot read {self._root}: {answer['error']}")
        return answer


def _items(states: Mapping[str, Any]) -> dict[str, Any]:
    own = f"{_EXTRA}/"
    items = {name: state for name, state in states.items() if not name.startswith(own)}
    extra = {name.removeprefix(own): state for name, state in states.items() if name.startswith(own)}
    return {**items, _EXTRA: extra} if extra else items


def _time_ns(text: str) -> int:
    """Nanoseconds since the epoch, of a time with as many digits as Python reads."""
    moment = datetime.fromisoformat(text)
    return int(moment.timestamp()) * 10**9 + moment.microsecond * 1_000
