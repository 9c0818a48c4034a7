"""Saves recorded states with one library, and looks whether they all come back."""

import sys
from pathlib import Path
from typing import Any

import torch

from ..peers.libraries import adapter
from ..workloads.run import Held
from .telling import tell


def series(library: str, root: str, paths: list[str]) -> None:
    """Save everything, reopen, load everything."""
    opened = adapter(library)(Path(root))
    growth_bytes: list[int] = []
    for step, path in enumerate(paths):
        opened.save(step, {item: Held(state) for item, state in _state(path).items()})()
        growth_bytes.append(directory_bytes(Path(root)) - sum(growth_bytes))
    opened.close()
    reopened = adapter(library)(Path(root))
    steps = reopened.steps()
    for step in steps:
        require_same(reopened.load_state(step), _state(paths[step]), f"step {step}")
    reopened.close()
    tell("stored", growth_bytes=growth_bytes, steps=steps)


def directory_bytes(root: Path) -> int:
    """All that lies below: packs, index, manifest, whatever is kept in reserve."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def require_same(got: Any, saved: Any, where: str) -> None:
    """Compare bit for bit (a NaN equals itself), and exit at what differs."""
    if isinstance(saved, torch.Tensor):
        same = got.dtype == saved.dtype and got.shape == saved.shape and torch.equal(_bits(got), _bits(saved))
    elif isinstance(saved, dict):
        same = got.keys() == saved.keys()
        for key in saved:
            require_same(got[key], saved[key], f"{where}/{key}")
    elif isinstance(saved, list | tuple):
        same = len(got) == len(saved)
        for position, child in enumerate(saved):
            require_same(got[position], child, f"{where}/{position}")
    else:
        same = got == saved
    if not same:
        sys.exit(f"{where}: not what was saved")


def _state(path: str) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)
