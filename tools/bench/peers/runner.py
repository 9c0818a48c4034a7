"""Saves recorded states with one library and loads them back; prints what it took, as JSON.

    python runner.py LIBRARY ROOT STATE...

A script of its own: it runs in the environments of the peers, where nothing of this repository can be imported — one
of them has our package's name. It needs torch and the library.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any, Protocol

import torch


class Recorded:
    """A recorded state in place of the object that it was taken from."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        """The state."""
        return self._state


class Library(Protocol):
    """One checkpoint library, opened on a directory with its default settings."""

    def __init__(self, root: str) -> None: ...

    def save(self, step: int, items: dict[str, Recorded]) -> None:
        """Save, and return when it is durable."""

    def steps(self) -> list[int]:
        """Steps it lists, in the order they were saved."""

    def load(self, step: int) -> dict[str, Any]:
        """State dicts by item."""


class Ours:
    """This repository."""

    def __init__(self, root: str) -> None:
        from moonclip import CheckpointManager

        self._manager = CheckpointManager(root)

    def save(self, step: int, items: dict[str, Recorded]) -> None:
        """See :class:`Library`."""
        self._manager.save(None, items, step=step)
        self._manager.flush()

    def steps(self) -> list[int]:
        """See :class:`Library`."""
        return [snapshot.step for snapshot in self._manager.list_snapshots() if snapshot.step is not None]

    def load(self, step: int) -> dict[str, Any]:
        """See :class:`Library`."""
        return self._manager.load(f"step:{step}")


class Rust:
    """``moonclip`` as the index has it."""

    def __init__(self, root: str) -> None:
        import moonclip

        self._manager: Any = moonclip.CheckpointManager(root)

    def save(self, step: int, items: dict[str, Recorded]) -> None:
        """See :class:`Library`."""
        self._manager.save(step=step, **items)
        self._manager.flush()

    def steps(self) -> list[int]:
        """See :class:`Library`."""
        return [snapshot["step"] for snapshot in self._manager.list_snapshots()]

    def load(self, step: int) -> dict[str, Any]:
        """See :class:`Library`."""
        ids = {snapshot["step"]: snapshot["id"] for snapshot in self._manager.list_snapshots()}
        state: dict[str, Any] = self._manager.load(ids[step])
        return state


LIBRARIES: dict[str, type[Library]] = {"ours": Ours, "rust": Rust}


def main() -> None:
    """Save everything, reopen, load everything."""
    name, root, *paths = sys.argv[1:]
    library = LIBRARIES[name](root)
    growth_bytes: list[int] = []
    for step, path in enumerate(paths):
        library.save(step, {item: Recorded(state) for item, state in _state(path).items()})
        growth_bytes.append(_directory_bytes(root) - sum(growth_bytes))
    del library
    reopened = LIBRARIES[name](root)
    for step in reopened.steps():
        _require_same(reopened.load(step), _state(paths[step]), f"step {step}")
    print(json.dumps({"growth_bytes": growth_bytes, "steps": reopened.steps()}))


def _state(path: str) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def _directory_bytes(root: str) -> int:
    """All that lies below: packs, index, manifest, whatever is kept in reserve."""
    return sum((Path(folder) / name).stat().st_size for folder, _, names in os.walk(root) for name in names)


def _require_same(got: Any, saved: Any, where: str) -> None:
    """Compare bit for bit (a NaN equals itself)."""
    if isinstance(saved, torch.Tensor):
        same = got.dtype == saved.dtype and got.shape == saved.shape and torch.equal(_bits(got), _bits(saved))
    elif isinstance(saved, dict):
        same = got.keys() == saved.keys()
        for key in saved:
            _require_same(got[key], saved[key], f"{where}/{key}")
    elif isinstance(saved, list | tuple):
        same = len(got) == len(saved)
        for position, child in enumerate(saved):
            _require_same(got[position], child, f"{where}/{position}")
    else:
        same = got == saved
    if not same:
        sys.exit(f"{where}: not what was saved")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


if __name__ == "__main__":
    main()
