"""Items: what a person may name in ``save``, ``resume`` and ``load``, and how each takes its state back.

Anything with ``state_dict`` is saved by what that gives; all else — mappings, lists, tensors, numbers, text, bytes —
by itself.
"""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeGuard

import torch

from store.errors import Incompatible
from store.format.values import Plain

from ..loading import optimizers
from ..loading.filling import SKIPPED, fill
from ..loading.matching import Match, match
from ..loading.numbering import Ids, Parameters
from ..loading.stored import StoredItem, respelled
from ..loading.targets import target_state
from ..sharding.placed import place
from ..specs import Resharder
from . import rng
from .entries import FlatState
from .flattening import flatten
from .policy import Policy
from .wrappers import canonical_state, respelled_paths, respelling


class Stateful(Protocol):
    """A module, optimizer, scheduler, scaler, data loader: whatever has a state dict."""

    def state_dict(self) -> Any:
        """Its state."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Take a state."""
        ...


GENERATORS: Final = "rng"
"""Item that the random number generators are saved as."""


class GlobalGenerators:
    """The process's random number generators, as an object with a state."""

    def state_dict(self) -> dict[str, Plain]:
        """State of all of them."""
        return rng.capture()

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Continue all streams where the state found them.

        Raises:
            Incompatible: it is no such state.
        """
        rng.restore(state)


Finish = Callable[[Any], Any]
"""Puts what was read into the target and returns what the caller gets."""


def gathered(payload: Mapping[str, Any] | None, items: Mapping[str, Any], *, rng: bool) -> dict[str, Any]:
    """All items of one call, the random number generators last: restoring the others may draw from them.

    Args:
        payload: items by name.
        items: more of them; those that are ``None`` are left out.
        rng: whether the generators are to be among them.

    Raises:
        Incompatible: an item is given twice, its name is no text, or ``rng`` is a state.
    """
    if not isinstance(rng, bool):
        raise Incompatible(
            f"rng is True or False, not a {type(rng).__name__}: it restores the random number generators; their states"
            " are read by load(items=['rng'])"
        )
    given = dict(payload or {})
    more = {name: obj for name, obj in items.items() if obj is not None}
    if rng:
        more[GENERATORS] = GlobalGenerators()
    if not all(isinstance(name, str) for name in given):
        raise Incompatible("items need text for names")
    twice = sorted(given.keys() & more.keys())
    if twice:
        raise Incompatible(f"items given twice: {', '.join(twice)}", items=twice)
    return given | more


def state_of(obj: Any) -> Any:
    """What is saved of an item: its state dict if it has one, else itself."""
    return obj.state_dict() if hasattr(obj, "state_dict") and not isinstance(obj, type) else obj


def flattened(items: Mapping[str, Any], policy: Policy) -> dict[str, FlatState]:
    """Entries of each item. Copies no tensor.

    Raises:
        Incompatible: something cannot be kept; the message names it.
    """
    return {item: flatten(canonical_state(state_of(obj)), policy, item) for item, obj in items.items()}


def is_stateful(obj: Any) -> TypeGuard[Stateful]:
    """Whether an object takes its state through ``load_state_dict``."""
    return not isinstance(obj, type) and hasattr(obj, "state_dict") and hasattr(obj, "load_state_dict")


@dataclass(frozen=True, slots=True)
class Prepared:
    """An item that was compared with its target.

    Attributes:
        stored: the item, under the names that the target has.
        names: names to load, likewise; ``None`` for all.
        match: how they fit.
        finish: how the target takes in what was read.
    """

    stored: StoredItem
    names: set[str] | None
    match: Match
    finish: Finish


def prepare(
    stored: StoredItem,
    target: Any,
    policy: Policy,
    *,
    strict: bool,
    names: set[str] | None,
    parameters: Parameters,
    resharder: Resharder | None = None,
) -> Prepared:
    """Compare a target with what is stored for it, and say how it will take that in. Writes nothing.

    Args:
        stored: the item.
        target: an object with ``load_state_dict``, or a template.
        policy: whether classes may be imported.
        strict: see :func:`moonclip.loading.matching.match`.
        names: names to load, or ``None`` for all.
        parameters: what is known of parameters by name.
        resharder: says what of a global tensor the target's hold.

    Raises:
        Incompatible: the target holds something that has no stored form, or what the resharder says does not fit it.
    """
    if isinstance(target, torch.optim.Optimizer):
        found, ids = optimizers.match_optimizer(target, stored, policy, parameters)
        found = _whole(found, stored, names, resharder)
        return Prepared(stored, names, found, lambda state: _load_optimizer(target, state, ids))
    if is_stateful(target) and not isinstance(target, torch.nn.Module):
        match_nothing = _whole(Match(stored.name), stored, names, resharder)
        return Prepared(stored, names, match_nothing, lambda state: _load_object(target, state))
    is_module = isinstance(target, torch.nn.Module)
    live = flatten(target_state(target) if is_module else target, policy, stored.name, is_target=True)
    if resharder is not None:
        place(live, resharder, stored.name)
    spelling = respelling(stored.entries.keys(), live.entries)
    if spelling:
        stored = respelled(stored, spelling)
        names = None if names is None else {spelling.get(name, name) for name in names}
    found = match(stored, live, strict=strict, names=names, any_value=is_module)
    if not is_module:
        return Prepared(stored, names, found, lambda loaded: fill(target, loaded))
    found.module = target
    return Prepared(stored, names, found, lambda state: _load_module(target, state))


def _whole(found: Match, stored: StoredItem, names: set[str] | None, resharder: Resharder | None) -> Match:
    if names is not None and not stored.entries.keys() <= names:
        found.mismatch("", "its object takes its state whole, not by names")
    if resharder is not None:
        found.mismatch("", "its object takes its state whole, not resharded; give its state_dict() as the target")
    return found


def _load_module(module: torch.nn.Module, state: Any) -> torch.nn.Module:
    """Tensors were written in place; this is for what else a module keeps, and for its hooks.

    Not strict: what is missing or unexpected was told already, or was meant to be relaxed. A module that keeps nothing
    but tensors is ready: handing it its own memory would copy that onto itself, and look at all names for each module.
    """
    if _takes_tensors_only(module):
        return module
    taken = copy(state)  # with its versions of modules, which hang on it as an attribute
    for key in [key for key, value in state.items() if value is SKIPPED]:
        del taken[key]
    if isinstance(metadata := getattr(taken, "_metadata", None), dict):
        taken._metadata = respelled_paths(metadata, (path for path, _ in module.named_modules()))
    module.load_state_dict(taken, strict=False)
    return module


def _takes_tensors_only(module: torch.nn.Module) -> bool:
    """Whether ``load_state_dict`` is torch's own, all the way down, with nothing hooked into it."""
    plain = torch.nn.Module
    return type(module).load_state_dict is plain.load_state_dict and all(
        type(part)._load_from_state_dict is plain._load_from_state_dict  # noqa: SLF001 - what subclasses override
        and type(part).set_extra_state is plain.set_extra_state
        and not part._load_state_dict_pre_hooks  # noqa: SLF001 - torch tells of them nowhere else
        and not part._load_state_dict_post_hooks  # noqa: SLF001
        for part in module.modules()
    )


def _load_optimizer(optimizer: torch.optim.Optimizer, state: Any, ids: Ids) -> torch.optim.Optimizer:
    optimizers.restore(optimizer, state, ids)
    return optimizer


def _load_object(obj: Stateful, state: Any) -> Stateful:
    obj.load_state_dict(state)
    return obj
