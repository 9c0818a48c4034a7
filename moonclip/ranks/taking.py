"""What each rank takes of a commit, told to all others: only what no rank takes is missing a target."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from store.format.canonical import Node

from ..loading.elsewhere import Elsewhere
from ..loading.numbering import parameter_names
from ..loading.targets import target_state
from ..state.flattening import flatten
from ..state.items import is_stateful
from ..state.policy import Policy
from ..state.refusals import located
from ..state.wrappers import canonical_state
from .stages import groups_of
from .talk import Talk


def taken_by_all(talk: Talk, targets: Mapping[str, Any], policy: Policy) -> Elsewhere:
    """What all ranks take, where they do not take the same. Collective.

    Raises:
        MoonclipError: the targets of any rank cannot be described, on all ranks.
        RankLost: a rank cannot be reached.
    """

    def answers(said: Sequence[Node]) -> list[Node]:
        same = all(each == said[0] for each in said)
        kinds = ("entries", "parameters")
        told = {kind: {} if same else _union([each[kind] for each in said]) for kind in kinds}
        return [told] * talk.group.world_size

    told = talk.exchange(lambda: _taken(targets, policy), answers)
    entries, parameters = (
        {item: frozenset(names) for item, names in told[kind].items()} for kind in ("entries", "parameters")
    )
    return Elsewhere(entries, parameters)


def _taken(targets: Mapping[str, Any], policy: Policy) -> Node:
    entries: dict[str, list[str]] = {}
    parameters: dict[str, list[str]] = {}
    names = parameter_names(targets)
    for item, target in targets.items():
        if isinstance(target, torch.optim.Optimizer):
            groups = groups_of(target, names)
            parameters[item] = [name for group in groups if group.is_named for name in group.names]
        elif isinstance(target, torch.nn.Module) or (target is not None and not is_stateful(target)):
            with located(item):
                state = target_state(target) if isinstance(target, torch.nn.Module) else target
            entries[item] = list(flatten(canonical_state(state), policy, item, is_target=True).entries)
    return {"entries": entries, "parameters": parameters}


def _union(of_ranks: Sequence[Mapping[str, Sequence[str]]]) -> Node:
    found: dict[str, dict[str, None]] = {}
    for items in of_ranks:
        for item, names in items.items():
            found.setdefault(item, {}).update(dict.fromkeys(names))
    return {item: list(names) for item, names in found.items()}
