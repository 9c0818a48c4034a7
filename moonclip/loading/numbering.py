"""Which stored state belongs to which parameter of an optimizer: by name where both sides have names, else by place.

torch numbers parameters in the order in which they were given, which another world size, another pipeline stage or a
model that was put together differently does not share. Names are what an optimizer was given (``named_parameters()``),
what its state is keyed by, or what a module that is loaded beside it calls its parameters.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import torch

from ..state.names import ROOT, join, last_segment, parent_of, segment
from ..state.wrappers import bare
from .matching import Match
from .stored import StoredItem, is_container

GROUPS: Final = "param_groups"
STATE: Final = "state"
_DECOUPLED: Final = "decoupled_weight_decay"
_KINDS_SETTINGS: Final = frozenset({
    "alpha", "amsgrad", "beta2_decay", "betas", "centered", "d", "dampening", "etas", "history_size", "lambd",
    "lr_decay", "max_iter", "momentum", "momentum_decay", "nesterov", "ns_steps", "rho", "step_sizes", "t0",
})  # fmt: skip
"""Settings that some of torch's optimizers have and others have not."""

Ids = list[list[Any]]
"""The stored id of each parameter of each group, in the optimizer's own order."""


def parameter_names(modules: Mapping[str, Any]) -> dict[int, str]:
    """What the modules among some items call their parameters, by the ``id`` of each parameter."""
    return {
        id(parameter): bare(name)
        for module in modules.values()
        if isinstance(module, torch.nn.Module)
        for name, parameter in module.named_parameters()
    }


def is_torchs(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is one of torch's own, whose settings and state are known."""
    return f"{type(optimizer).__module__}.".startswith("torch.optim.")


class Parameters(NamedTuple):
    """What is known of parameters by name.

    Attributes:
        names: as :func:`parameter_names` gives them.
        elsewhere: names of those that optimizers of other ranks have, by item.
    """

    names: Mapping[int, str]
    elsewhere: Mapping[str, Collection[str]]


def stored_ids(optimizer: torch.optim.Optimizer, stored: StoredItem, parameters: Parameters, found: Match) -> Ids:
    """Find the stored id of each parameter.

    Args:
        optimizer: the target.
        stored: its state in a commit.
        parameters: what they are called here, and what other ranks have.
        found: told what does not fit, and what others have.

    Returns:
        The ids; no group if something does not fit.
    """
    try:
        there = _by_group(stored, "params")
        sizes, stored_sizes = [len(group["params"]) for group in optimizer.param_groups], [len(ids) for ids in there]
    except (TypeError, KeyError, ValueError):
        found.mismatch(GROUPS, "not the state of an optimizer")
        return []
    _require_same_kind(optimizer, _stored_settings(stored), found)
    known = _stored_names(stored, there)
    own = _own_names(optimizer, parameters.names, set(chain.from_iterable(known or ())))
    if sizes != stored_sizes and not (known and own and len(known) == len(own)):
        found.mismatch(GROUPS, f"groups of {stored_sizes} parameters in the commit, {sizes} in the target")
        return []
    if not known or not own or len(known) != len(own):
        return there
    id_of = [dict(zip(names, group, strict=True)) for names, group in zip(known, there, strict=True)]
    _pass_over(id_of, own, parameters.elsewhere.get(stored.name, ()), found)
    ids = [_in_order(f"{GROUPS}/{number}", id_of[number], own[number], found) for number in range(len(there))]
    return [] if found.mismatches else ids


def _require_same_kind(optimizer: torch.optim.Optimizer, stored: Sequence[Mapping[str, Any]], found: Match) -> None:
    """Refuse what another of torch's optimizers saved: torch takes it, and fails in the next step or goes on as that.

    By settings that the target has no use for. What the commit lacks tells nothing: versions of torch add settings.
    """
    if not is_torchs(optimizer):
        return
    for number, (settings, own) in enumerate(zip(stored, optimizer.param_groups, strict=False)):
        group, kind = f"{GROUPS}/{number}", type(optimizer).__name__
        strange = sorted((settings.keys() & _KINDS_SETTINGS) - own.keys() - optimizer.defaults.keys())
        there, here = settings.get(_DECOUPLED), own.get(_DECOUPLED)
        if strange:
            found.mismatch(group, f"of another optimizer than the target, which is {kind}: it has {', '.join(strange)}")
        elif there is not None and here is not None and there != here:
            found.mismatch(group, f"{_DECOUPLED} is {there} in the commit and {here} in the target: one is AdamW's")


def _pass_over(
    id_of: Sequence[dict[str, Any]], own: Sequence[Sequence[str]], elsewhere: Collection[str], found: Match
) -> None:
    """Take out, of each group, parameters that only other ranks have: with their state."""
    for ids, names in zip(id_of, own, strict=True):
        for name in (ids.keys() & set(elsewhere)) - set(names):
            state = join(STATE, segment(ids.pop(name)))
            found.unexpected.append(state)
            found.elsewhere.add(state)


def _in_order(group: str, id_of: Mapping[str, Any], own: Sequence[str], found: Match) -> list[Any]:
    for name in own:
        if name not in id_of:
            found.mismatch(group, f"no parameter {name!r} in the commit, but in the target")
    for name in id_of.keys() - set(own):
        found.mismatch(group, f"parameter {name!r} in the commit, but not in the target")
    return [id_of[name] for name in own if name in id_of]


def _stored_names(stored: StoredItem, ids: Ids) -> list[list[str]] | None:
    if ids and all(isinstance(each, str) for each in chain.from_iterable(ids)):
        return _unique(ids)
    try:
        names = _by_group(stored, "param_names")
    except KeyError:
        return None
    return _unique(names) if [len(group) for group in names] == [len(group) for group in ids] else None


def _own_names(optimizer: torch.optim.Optimizer, names: Mapping[int, str], stored: set[str]) -> list[list[str]] | None:
    groups = optimizer.param_groups
    if all("param_names" in group for group in groups):
        return _unique([group["param_names"] for group in groups])
    if not all(id(parameter) in names for group in groups for parameter in group["params"]):
        return None
    found = _unique([[names[id(parameter)] for parameter in group["params"]] for group in groups])
    if found is None or stored.isdisjoint(chain.from_iterable(found)):
        return None  # the optimizer that was saved called its parameters by names that were not the module's
    return found


def _unique(groups: Sequence[Sequence[Any]]) -> list[list[str]] | None:
    """Names without wrappers, if each is one parameter's."""
    names = [[bare(name) for name in group] for group in groups]
    every = list(chain.from_iterable(names))
    return names if len(set(every)) == len(every) else None


def _by_group(stored: StoredItem, key: str) -> Ids:
    """A list that each stored group has, wherever the state has tensors: each container with one is an entry.

    Raises:
        KeyError: a group has none. TypeError, ValueError: it is no state of an optimizer.
    """
    values: Any = stored.values
    if not is_container(stored.entries.get(ROOT)):
        return [group[key] for group in values[ROOT][GROUPS]]
    if not is_container(stored.entries.get(GROUPS)):
        return [group[key] for group in values[GROUPS]]
    names = sorted((name for name in stored.entries if parent_of(name) == GROUPS), key=_index)
    return [values[name][key] if name in values else values[join(name, key)] for name in names]


def _stored_settings(stored: StoredItem) -> list[Mapping[str, Any]]:
    """What the stored groups say, by key; ``None`` for what has an entry of its own, as a learning rate may."""
    values: Any = stored.values
    if not is_container(stored.entries.get(ROOT)):
        return list(values[ROOT][GROUPS])
    if not is_container(stored.entries.get(GROUPS)):
        return list(values[GROUPS])
    names = sorted((name for name in stored.entries if parent_of(name) == GROUPS), key=_index)
    return [values[name] if name in values else _below(stored, name) for name in names]


def _below(stored: StoredItem, group: str) -> dict[str, Any]:
    return {last_segment(name): stored.values.get(name) for name in stored.entries if parent_of(name) == group}


def _index(name: str) -> int:
    return int(last_segment(name))
