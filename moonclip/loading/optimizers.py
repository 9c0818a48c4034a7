"""Optimizers: their state goes back as it was stored, into one that has stepped and into a fresh one alike.

``load_state_dict`` serves for groups and structure. It casts state to the dtype of its parameter, which would turn
fp32 moments of bf16 parameters into bf16 ones and a counter of 70001 into 70144, so wherever it did, the stored
tensor is put back.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final

import torch

from store.format.entries import TensorEntry

from ..state.composites import is_distributed
from ..state.entries import FlatTensor
from ..state.flattening import flatten
from ..state.names import last_segment, segment
from ..state.policy import Policy
from ..state.tensors import torch_dtype
from .matching import Match, match
from .numbering import GROUPS, Ids, Parameters, is_torchs, stored_ids
from .stored import StoredItem
from .targets import like

_STATE: Final = "state/"
_MOMENTS: Final = frozenset({
    "acc_delta", "ax", "exp_avg", "exp_avg_sq", "exp_inf", "max_exp_avg_sq", "momentum_buffer", "prev", "square_avg",
    "sum",
})  # fmt: skip
"""State that torch's own optimizers make in the shape of its parameter."""

State = dict[str, Any]
"""As ``Optimizer.state_dict`` gives it."""


def match_optimizer(
    optimizer: torch.optim.Optimizer, stored: StoredItem, policy: Policy, parameters: Parameters
) -> tuple[Match, Ids]:
    """Compare an optimizer with its stored state. Writes nothing.

    Groups have to agree in number and size, and come of the same kind of optimizer where that is torch's; of state,
    only what both have can disagree: a fresh optimizer has none. Tensors that agree in shape and dtype are written in
    place, all others come anew, in their stored dtype. What belongs to a DTensor comes anew as one, laid out alike.

    Args:
        optimizer: the target.
        stored: its state in a commit.
        policy: what decoding may do.
        parameters: what is known of parameters by name.

    Returns:
        How they fit, and the stored id of each parameter.

    Raises:
        Incompatible: the optimizer's present state cannot be described.
    """
    found = Match(stored.name)
    if any(parameter.is_meta for group in optimizer.param_groups for parameter in group["params"]):
        found.mismatch("", "its parameters are on the meta device; load the model first, then make the optimizer")
        return found, []
    ids = stored_ids(optimizer, stored, parameters, found)
    live = flatten(_under(optimizer.state_dict(), ids), policy, stored.name, is_target=True)
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
    if ids:
        _refuse_numbers_in_words(stored, ids, found)
        _place_new_state(optimizer, stored, ids, found)
    return found, ids


def _refuse_numbers_in_words(stored: StoredItem, ids: Ids, found: Match) -> None:
    """State under the text ``"0"`` is nobody's where parameters are numbered: it would be passed over in silence."""
    numbers = {segment(str(each)): each for each in chain.from_iterable(ids) if type(each) is int}
    keys = {name.split("/")[1] for name in stored.entries if name.startswith(_STATE)}
    for key in sorted(numbers.keys() & keys):
        found.mismatch(_STATE + key, f"its key is the text '{numbers[key]}', and no parameter's, as these are numbered")


def _under(state: State, ids: Ids) -> State:
    """A state dict with its parameters called as they are in the commit."""
    new = dict(
        zip(chain.from_iterable(group["params"] for group in state[GROUPS]), chain.from_iterable(ids), strict=bool(ids))
    )
    if all(own == there for own, there in new.items()):
        return state
    groups = [{**group, "params": there} for group, there in zip(state[GROUPS], ids, strict=True)]
    return {**state, "state": {new.get(own, own): value for own, value in state["state"].items()}, GROUPS: groups}


def _place_new_state(optimizer: torch.optim.Optimizer, stored: StoredItem, ids: Ids, found: Match) -> None:
    """What a fresh optimizer does not have yet: of which shape it has to be, and on which ranks it lies."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    owner = {segment(there): parameter for there, parameter in zip(chain.from_iterable(ids), parameters, strict=True)}
    for name, entry in stored.entries.items():
        if not name.startswith(_STATE) or not isinstance(entry, TensorEntry):
            continue
        parameter = owner.get(name.split("/")[1])
        if parameter is None or name in found.placements or name in found.aliases:
            continue
        key, shape = last_segment(name), tuple(parameter.shape)
        if is_torchs(optimizer) and key in _MOMENTS and entry.shape != shape:
            shapes = f"shape {list(entry.shape)} in the commit, and its parameter {list(shape)} in the target"
            found.mismatch(name, shapes)
        elif is_distributed(parameter) and _is_made_beside(key, entry, parameter):
            found.placements[name] = like(parameter, torch_dtype(entry.dtype), entry.shape)


def _is_made_beside(key: str, entry: TensorEntry, parameter: torch.Tensor) -> bool:
    """Whether an optimizer makes it of its parameter; counters it makes as plain tensors."""
    return key != "step" and (bool(entry.shape) or not parameter.shape)


def restore(optimizer: torch.optim.Optimizer, state: State, ids: Ids) -> None:
    """Give an optimizer its state.

    Args:
        optimizer: the target.
        ids: the stored id of each parameter, as :func:`match_optimizer` found them.
        state: what was stored. Its tensors become the optimizer's own; those on another device are copied there.

    Raises:
        Exception: whatever the optimizer's ``load_state_dict`` raises.
    """
    groups = list(optimizer.param_groups)
    state = {**state, GROUPS: [_regrouped(*each) for each in zip(state[GROUPS], ids, groups, strict=True)]}
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


def _regrouped(saved: State, ids: list[Any], own: State) -> State:
    """A stored group with its parameters in the optimizer's own order, and under its own names."""
    regrouped = {**saved, "params": ids}
    if len(saved.get("param_names", ())) == len(saved["params"]):
        names = dict(zip(saved["params"], saved["param_names"], strict=True))
        regrouped["param_names"] = own.get("param_names") or [names[each] for each in ids]
    return regrouped


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
    saved_ids = ((saved_id, group) for group in state[GROUPS] for saved_id in group["params"])
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
