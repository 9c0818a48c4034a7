"""Directories of files of which each is a checkpoint: ``step_100.pt``, and Lightning's ``epoch=1-step=100.ckpt``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..exchange.tensorinputs import by_item
from .source import Found, Loaded, in_order, numbers_in, step_in, step_of
from .torchfiles import read_torch

_MODEL = "state_dict"
_LISTS = {"optimizer_states": "optimizer", "lr_schedulers": "scheduler"}
"""What Lightning keeps in lists, and what an item of it is called here."""
_REST = "trainer"
_STEP = "global_step"


class StepFiles:
    """Files of ``torch.save`` in a directory, with the step in their names.

    Args:
        paths: the files.
        root: the directory that their names are told from.
    """

    kind = "files of torch.save"

    def __init__(self, paths: Sequence[Path], root: Path) -> None:
        self._paths = {path.relative_to(root).as_posix(): path for path in paths}

    @property
    def passed_over(self) -> Sequence[str]:
        """Files without a number in their names."""
        return sorted(name for name, path in self._paths.items() if step_in(path.stem) is None)

    def found(self) -> list[Found]:
        """By step."""
        steps = {name: step_in(path.stem) for name, path in self._paths.items()}
        return in_order([found_at(name, self._paths[name], step) for name, step in steps.items() if step is not None])

    def load(self, found: Found) -> Loaded:
        """Keys of the dictionary in the file are items; numbers are metadata, too."""
        items = by_item(read_torch(self._paths[found.name]), None)
        return Loaded(items, numbers_in(items))

    def close(self) -> None:
        """Nothing is open."""


class Lightning:
    """Checkpoints of a Lightning run. Those without a step in their names (``last.ckpt``) are looked into for it.

    Args:
        paths: the files.
        root: the directory that their names are told from.
    """

    kind = "Lightning checkpoints"
    passed_over: Sequence[str] = ()

    def __init__(self, paths: Sequence[Path], root: Path) -> None:
        self._paths = {path.relative_to(root).as_posix(): path for path in paths}

    def found(self) -> list[Found]:
        """By step."""
        return in_order([found_at(name, path, _lightning_step(path)) for name, path in self._paths.items()])

    def load(self, found: Found) -> Loaded:
        """The model, the optimizers and the schedulers are items; all else is the item ``trainer``."""
        state = read_torch(self._paths[found.name])
        items = dict(_lightning_items(state)) if isinstance(state, Mapping) else by_item(state, None)
        return Loaded(items, numbers_in(items.get(_REST, {})))

    def close(self) -> None:
        """Nothing is open."""


def found_at(name: str, path: Path, step: int | None) -> Found:
    """A checkpoint that is a file or directory, with the time when that was last written to."""
    return Found(name, step, path.stat().st_mtime_ns)


def _lightning_step(path: Path) -> int | None:
    if "step" in path.stem:
        return step_in(path.stem)
    state = read_torch(path)
    return step_of(state.get(_STEP)) if isinstance(state, Mapping) else None


def _lightning_items(state: Mapping[str, Any]) -> list[tuple[str, Any]]:
    lists = {key: states for key in _LISTS if isinstance(states := state.get(key), list)}
    rest = {key: value for key, value in state.items() if key != _MODEL and key not in lists}
    items = [("model", state[_MODEL])] if _MODEL in state else []
    for key, states in lists.items():
        items += _numbered(_LISTS[key], states)
    return [*items, (_REST, rest)]


def _numbered(item: str, states: Sequence[Any]) -> list[tuple[str, Any]]:
    """One is called like the item, several have numbers."""
    if len(states) == 1:
        return [(item, states[0])]
    return [(f"{item}_{number}", state) for number, state in enumerate(states)]
