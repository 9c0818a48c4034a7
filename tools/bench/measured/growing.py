"""Trains a run live and saves it again and again, with some of its parts saved apart beside it, to see what grows."""

from pathlib import Path
from typing import Any

from ..peers.libraries import adapter
from ..peers.library import Library
from ..workloads import warmed_up
from ..workloads.run import WHOLE, Items, state_bytes
from .digests import digest, spoil
from .series import directory_bytes
from .telling import tell


class _Store:
    """One library's store of one choice of items."""

    def __init__(self, library: str, root: Path) -> None:
        self._library: Library = adapter(library)(root)
        self._root = root
        self.growth_bytes: list[int] = []
        self.raw_bytes: list[int] = []

    def save(self, step: int, items: Items) -> None:
        self._library.save(step, items)()
        self.growth_bytes.append(directory_bytes(self._root) - sum(self.growth_bytes))
        self.raw_bytes.append(state_bytes(items))

    def close(self) -> dict[str, Any]:
        steps = self._library.steps()
        self._library.close()
        return {"growth_bytes": self.growth_bytes, "raw_bytes": self.raw_bytes, "steps": steps}


def grow(library: str, root: str, workload: str, count: int, distance: int) -> None:
    """Save ``count`` times, ``distance`` steps apart, then reopen and compare the last save with the run."""
    run = warmed_up(workload)
    choices = {WHOLE: lambda: run.items, **run.parts}
    stores = {name: _Store(library, Path(root) / f"{number}") for number, name in enumerate(choices)}
    for step in range(count):
        run.step(distance)
        for name, choice in choices.items():
            stores[name].save(step, choice())
    expected = digest(run.items)
    for name, store in stores.items():
        tell("grown", what=name, **store.close())
    reopened = adapter(library)(Path(root) / "0")
    spoil(run.items)
    reopened.load(count - 1, run.items)
    reopened.close()
    tell("last", is_same=digest(run.items) == expected)
