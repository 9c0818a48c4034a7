"""Where what torch saves lies in a commit, so that it is where :class:`~moonclip.CheckpointManager` would put it. Pure.

torch flattens ``{"model": {"fc.weight": …}}`` to ``model.fc.weight`` and remembers the path, ``("model",
"fc.weight")``: its first key is the item, the rest a name in that. A module's state dict that is saved as it is,
``{"fc.weight": …}``, would make an item of each tensor; its keys have dots in them, and go into the item ``model``.
"""

from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from torch.distributed.checkpoint.planner import SavePlan

from store.format.values import Plain

from ..loading.numbering import GROUPS, STATE
from ..sharding.writers import Name
from ..state.names import ROOT, join, segment

Path = tuple[str | int, ...]
"""Keys and, in lists, indexes that lead to a leaf."""

MODEL: Final = "model"
BARE: Final = "bare"
"""The item ``model`` is a module's state dict that was saved without a name of its own."""
WHOLE: Final = "whole"
"""torch was told not to flatten: every item is one leaf."""

_RECORD: Final = "dcp"
"""Key of a commit's metadata that says so. Most commits need none."""


class Layout:
    """Where the leaves of one state dict lie.

    Args:
        planner_data: what the planner noted, a mapping of each flattened name to its path if it is torch's own and
            flattens; anything else makes every flattened name an item.

    Attributes:
        kind: ``BARE``, ``WHOLE`` or neither.
        numbered: items that are an optimizer's state by the numbers of its parameters, which torch makes text of.
    """

    def __init__(self, planner_data: object) -> None:
        self._paths: Mapping[str, Path] = {}
        self.kind: str | None = WHOLE
        self.numbered: frozenset[str] = frozenset()
        if isinstance(planner_data, Mapping):
            self._paths = {fqn: path for fqn, path in planner_data.items() if _is_path_of(fqn, path)}
            firsts = {path[0] for path in self._paths.values()}
            has_bare = MODEL not in firsts and any(map(_is_bare, self._paths.values()))
            self.kind = BARE if has_bare else None
            self.numbered = _numbered(self._paths.values())

    def path(self, fqn: str) -> Path:
        """Keys that lead to a leaf; the first is its item."""
        path = self._paths.get(fqn, (fqn,))
        return (MODEL, *path) if self.kind == BARE and _is_bare(path) else path

    def name(self, fqn: str) -> Name:
        """A leaf's item, and its name in that."""
        item, *keys = self.path(fqn)
        if item in self.numbered and keys[0] == STATE:
            keys[1] = int(keys[1])
        name = ROOT
        for key in keys:
            name = join(name, segment(key))
        return Name(str(item), name)

    def in_order(self, fqns: Iterable[str]) -> list[str]:
        """Leaves as the state dict had them, as far as that is known."""
        order = {fqn: number for number, fqn in enumerate(self._paths)}
        return sorted(fqns, key=lambda fqn: order.get(fqn, len(order)))

    @property
    def metadata(self) -> dict[str, Plain]:
        """What a commit's metadata have to say of it."""
        return {} if self.kind is None else {_RECORD: self.kind}


def together(plans: Sequence[SavePlan]) -> list[SavePlan]:
    """Plans of which each says what all of them say of paths, so that all ranks' layouts are one.

    Plans that are not usable stand for earlier ones, which say it already. What a planner of one's own notes otherwise
    stays as it is.
    """
    noted = [plan.planner_data for plan in plans if plan.usable]
    if not all(isinstance(each, Mapping) for each in noted):
        return list(plans)
    merged = dict(ChainMap(*noted))
    return [replace(plan, planner_data=merged) if plan.usable else plan for plan in plans]


def kind_of(metadata: Mapping[str, Plain]) -> str | None:
    """The :attr:`Layout.kind` that a commit was saved with, from its metadata."""
    kind = metadata.get(_RECORD)
    return kind if isinstance(kind, str) else None


def top_level(state: dict[str, Any], kind: str | None) -> dict[str, Any]:
    """Items as the state dict that was saved."""
    if kind != BARE or not isinstance(state.get(MODEL), Mapping):
        return state
    return {**{item: value for item, value in state.items() if item != MODEL}, **state[MODEL]}


def _numbered(paths: Collection[Path]) -> frozenset[str]:
    """Items that have groups of parameters, and a state for each number of one."""
    grouped = {path[0] for path in paths if path[1:2] == (GROUPS,)}
    named = {path[0] for path in paths if path[1:2] == (STATE,) and not _has_number(path)}
    return frozenset(str(item) for item in grouped - named)


def _has_number(path: Path) -> bool:
    key = path[2] if len(path) > 3 else None
    return isinstance(key, str) and key.isascii() and key.isdecimal() and str(int(key)) == key


def _is_path_of(fqn: str, path: object) -> bool:
    return (
        isinstance(path, tuple)
        and bool(path)
        and isinstance(path[0], str)
        and all(type(key) is str or type(key) is int for key in path)
        and ".".join(map(str, path)) == fqn
    )


def _is_bare(path: Path) -> bool:
    return len(path) == 1 and "." in str(path[0])
