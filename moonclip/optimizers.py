"""Optimizers: their state goes back as it was stored, into one that has stepped and into a fresh one alike.

``load_state_dict`` serves for groups and structure. It casts state to the dtype of its parameter, which would turn
fp32 moments of bf16 parameters into bf16 ones and a counter of 70001 into 70144, so wherever it did, the stored
tensor is put back.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from store.format.entries import TensorEntry

from .entries import FlatTensor
from .matching import Match, match
from .names import ROOT, join, last_segment, parent_of
from .policy import Policy
from .state import flatten
from .stored import StoredItem, is_container

_GROUPS: Final = "param_groups"
_STATE: Final = "state/"

State = dict[str, Any]
"""As ``Optimizer.state_dict`` gives it."""


def match_optimizer(optimizer: torch.optim.Optimizer, stored: StoredItem, policy: Policy) -> Match:
    """Compare an optimizer with its stored state. Writes nothing.

    Groups have to agree in number and size; of state, only what both have can disagree: a fresh optimizer has none.
    Tensors that agree in shape and dtype are written in place, all others come anew, in their stored dtype.

    Raises:
        Incompatible: the optimizer's present state cannot be described.
    """
    found = Match(stored.name)
    live = flatten(optimizer.state_dict(), policy, stored.name)
    compared = match(stored, live, strict=True)
    for name, entry in live.entries.items():
        there = stored.entries.get(name)
        if not name.startswith(_STATE) or not isinstance(entry, FlatTensor) or not isinstance(there, TensorEntry):
            continue
        if entry.source.shape != there.shape:
            shapes = f"shape {list(there.shape)} in the commit, {list(entry.source.shape)} in the target"
            found.mismatch(name, shapes)
    found.placements = {name: t for name, t in compared.placements.items() if name.startswith(_STATE)}
    found.aliases = {name: t for name, t in compared.aliases.items() if name.startswith(_STATE)}
    _compare_groups(optimizer, stored, found)
    return found


def _compare_groups(optimizer: torch.optim.Optimizer, stored: StoredItem, found: Match) -> None:
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    try:
        stored_sizes = [len(parameters) for parameters in _stored_parameters(stored)]
    except (TypeError, KeyError, ValueError):
        found.mismatch("param_groups", "not the state of an optimizer")
        return
    if sizes != stored_sizes:
        found.mismatch("param_groups", f"groups of {stored_sizes} parameters in the commit, {sizes} in the target")


def _stored_parameters(stored: StoredItem) -> list[Any]:
    """Parameter ids of each stored group, wherever the state has tensors: each container with one is an entry."""
    if not is_container(stored.entries.get(ROOT)):
        return [group["params"] for group in stored.values[ROOT][_GROUPS]]
    if not is_container(stored.entries.get(_GROUPS)):
        return [group["params"] for group in stored.values[_GROUPS]]
    names = sorted((name for name in stored.entries if parent_of(name) == _GROUPS), key=_index)
    groups = (stored.values.get(name) or {"params": stored.values[join(name, "params")]} for name in names)
    return [group["params"] for group in groups]


def _index(name: str) -> int:
    return int(last_segment(name))


def restore(optimizer: torch.optim.Optimizer, state: State) -> None:
    """Give an optimizer its state.

    Args:
        optimizer: the target.
        state: what was stored. Its tensors become the optimizer's own; those on another device are copied there.

    Raises:
        Exception: whatever the optimizer's ``load_state_dict`` raises.
    """
    groups = list(optimizer.param_groups)
    ready = _ready(optimizer, state) if _takes_state_plainly(optimizer) else frozenset()
    rest = {saved_id: saved for saved_id, saved in state["state"].items() if saved_id not in ready}
    optimizer.load_state_dict({**state, "state": rest})
    parameters = {saved_id: parameter for parameter, saved_id, _ in _by_parameter(optimizer, state)}
    for saved_id, saved in state["state"].items():  # in their order, which is that of the next state dict
        key = parameters.get(saved_id, saved_id)
        if saved_id in ready:
            optimizer.state[key] = saved
        elif key in optimizer.state:
            optimizer.state[key] = _as_stored(optimizer.state.pop(key), saved)
    for before, after in zip(groups, optimizer.param_groups, strict=True):
        _keep_tensors(before, after)


def _takes_state_plainly(optimizer: torch.optim.Optimizer) -> bool:
    """Whether ``load_state_dict`` is torch's own with nothing hooked into it: nobody else looks at the state."""
    return (
        getattr(optimizer.load_state_dict, "__func__", None) is torch.optim.Optimizer.load_state_dict
        and type(optimizer).__setstate__.__module__.startswith("torch.optim.")
        and not optimizer._optimizer_load_state_dict_pre_hooks  # noqa: SLF001 - torch tells of them nowhere else
        and not optimizer._optimizer_load_state_dict_post_hooks  # noqa: SLF001
    )


def _ready(optimizer: torch.optim.Optimizer, state: State) -> frozenset[Any]:
    """Ids of parameters whose state was written in place and is what torch would make of it again.

    It would look for each tensor's group anew, in a list of all parameters.
    """
    return frozenset(
        saved_id
        for parameter, saved_id, group in _by_parameter(optimizer, state)
        if _is_ready(optimizer.state.get(parameter), state["state"][saved_id], parameter, group)
    )


def _is_ready(live: Any, saved: Any, parameter: torch.Tensor, group: State) -> bool:
    if type(live) is not dict or type(saved) is not dict or live.keys() != saved.keys():
        return False
    return all(
        isinstance(tensor, torch.Tensor) and tensor is live[key] and _is_as_torch_has_it(key, tensor, parameter, group)
        for key, tensor in saved.items()
    )


def _is_as_torch_has_it(key: Any, tensor: torch.Tensor, parameter: torch.Tensor, group: State) -> bool:
    if key != "step":
        return tensor.device == parameter.device
    if group.get("fused") or group.get("capturable"):
        return tensor.device == parameter.device and tensor.dtype == torch.float32
    return True


def _by_parameter(optimizer: torch.optim.Optimizer, state: State) -> Iterator[tuple[torch.Tensor, Any, State]]:
    """Each parameter that state was stored for, its id there, and its group there."""
    saved_ids = ((saved_id, group) for group in state["param_groups"] for saved_id in group["params"])
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    for (saved_id, group), parameter in zip(saved_ids, parameters, strict=True):
        if saved_id in state["state"]:
            yield parameter, saved_id, group


def _as_stored(current: Any, saved: Any, key: Any = None) -> Any:
    """``current``, with the stored tensor wherever loading has changed a dtype.

    What torch makes of ``step`` stands: under ``fused`` and ``capturable`` it has to be an fp32 tensor on the device.
    """
    if isinstance(current, torch.Tensor) and isinstance(saved, torch.Tensor):
        return current if key == "step" or current.dtype == saved.dtype else saved.to(current.device)
    if isinstance(current, dict) and isinstance(saved, Mapping):
        for name in current.keys() & saved.keys():
            current[name] = _as_stored(current[name], saved[name], name)
        return current
    if type(current) in (list, tuple) and isinstance(saved, list | tuple) and len(current) == len(saved):
        return type(current)(map(_as_stored, current, saved))
    return current


def _keep_tensors(before: State, after: State) -> None:
    """Tensors among the settings of a group (a learning rate) stay the objects they were: graphs captured them."""
    for key, old in before.items():
        new = after.get(key)
        if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor) and _are_alike(old, new):
            after[key] = old.copy_(new)


def _are_alike(old: torch.Tensor, new: torch.Tensor) -> bool:
    return old.shape == new.shape and old.dtype == new.dtype
