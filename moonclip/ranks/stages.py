"""Optimizers whose parameters differ from rank to rank, as those of pipeline stages do.

torch numbers parameters, and each stage begins at 0. So where stages have an optimizer under one name, their state is
kept under the names of the parameters, and each group lists those of all stages. Any other number of stages, and one
process, takes that up by name.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Any, Final, NamedTuple

import torch

from store.errors import Incompatible
from store.format.canonical import Node

from ..loading.numbering import GROUPS
from ..state.wrappers import bare

_OWN: Final = frozenset({"params", "param_names"})


class ParameterGroup(NamedTuple):
    """A group of one rank's optimizer.

    Attributes:
        names: of its parameters, in order; numbers where no names are known.
        is_named: whether these are names.
        settings: equal for equal settings; of those that are tensors nothing is known.
    """

    names: tuple[str, ...]
    is_named: bool
    settings: bytes

    def encode(self) -> Node:
        """As a message."""
        return [list(self.names), self.is_named, self.settings]

    @classmethod
    def decode(cls, node: Node) -> "ParameterGroup":
        """Inverse of :meth:`encode`."""
        names, is_named, settings = node
        return cls(tuple(names), is_named, settings)


Groups = tuple[ParameterGroup, ...]
Joined = Mapping[str, Sequence[Sequence[str]]]
"""By optimizer, names of the parameters of all ranks in each group; only where these differ."""


def groups_of(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> Groups:
    """An optimizer's groups.

    Args:
        optimizer: the optimizer.
        names: what modules that are saved beside it call their parameters, by ``id``.
    """
    own = _names(optimizer, names)
    numbers = iter(range(sum(len(group["params"]) for group in optimizer.param_groups)))
    return tuple(
        ParameterGroup(
            tuple(str(next(numbers)) for _ in group["params"]) if own is None else own[place],
            own is not None,
            _settings(group),
        )
        for place, group in enumerate(optimizer.param_groups)
    )


def joined(of_ranks: Sequence[Mapping[str, Groups]]) -> Joined:
    """The groups of all ranks put together, for optimizers that have others on some ranks than on others.

    Args:
        of_ranks: each rank's groups, by optimizer.

    Raises:
        Incompatible: names of their parameters are not known, or their groups differ in number or settings.
    """
    known: dict[str, list[tuple[int, Groups]]] = {}
    for rank, optimizers in enumerate(of_ranks):
        for item, groups in optimizers.items():
            known.setdefault(item, []).append((rank, groups))
    return {
        item: _joined(item, given)
        for item, given in known.items()
        if any(_names_of(groups) != _names_of(given[0][1]) for _, groups in given)
    }


def with_names(optimizer: torch.optim.Optimizer, state: Any, groups: Groups, together: Any) -> Any:
    """An optimizer's state with names of its parameters, if they are known.

    Args:
        optimizer: the optimizer.
        state: its state dict.
        groups: as :func:`groups_of` gives them.
        together: names of the parameters of all ranks, by group, to keep state under; ``None`` to keep it under numbers
            and to say beside these what they are called: a model that is put together differently takes it up, too.
    """
    if not all(group.is_named for group in groups):
        return state
    if together is None:
        if any("param_names" in group for group in optimizer.param_groups):
            return state
        return {**state, GROUPS: [_beside(*pair) for pair in zip(state[GROUPS], groups, strict=True)]}
    numbers = chain.from_iterable(group["params"] for group in state[GROUPS])
    names = dict(zip(numbers, chain.from_iterable(group.names for group in groups), strict=True))
    return {
        **state,
        "state": {names.get(number, number): value for number, value in state["state"].items()},
        GROUPS: [_of_all(*pair) for pair in zip(state[GROUPS], together, strict=True)],
    }


# --- how ----------------------------------------------------------------------------------------------------------


def _names(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> list[tuple[str, ...]] | None:
    """What it was told, or else what modules call them; ``None`` unless each has a name of its own."""
    groups = optimizer.param_groups
    if all("param_names" in group for group in groups):
        found = [tuple(map(bare, group["param_names"])) for group in groups]
    else:
        if not all(id(parameter) in names for group in groups for parameter in group["params"]):
            return None
        found = [tuple(names[id(parameter)] for parameter in group["params"]) for group in groups]
    every = list(chain.from_iterable(found))
    return found if len(set(every)) == len(every) else None


def _settings(group: Mapping[str, Any]) -> bytes:
    plain = {key: value for key, value in group.items() if key not in _OWN and not isinstance(value, torch.Tensor)}
    return blake2b(repr(sorted(plain.items(), key=str)).encode(), digest_size=16).digest()


def _names_of(groups: Groups) -> list[tuple[str, ...]]:
    return [group.names for group in groups]


def _joined(item: str, given: Sequence[tuple[int, Groups]]) -> list[list[str]]:
    first_rank, first = given[0]
    for rank, groups in given:
        where = {"item": item, "ranks": [first_rank, rank]}
        if not all(group.is_named for group in groups):
            raise Incompatible(
                f"{item}: ranks {first_rank} and {rank} have different parameters in it, as pipeline stages do, and"
                f" nothing says what those of rank {rank} are called: save the model beside it, or make it of"
                " model.named_parameters()",
                **where,
            )
        if [group.settings for group in groups] != [group.settings for group in first]:
            raise Incompatible(
                f"{item}: ranks {first_rank} and {rank} have different parameters in it, as pipeline stages do, and"
                " groups that differ in number or settings; give each stage's optimizer an item of its own",
                **where,
            )
    groups_at = range(len(first))
    return [list(dict.fromkeys(name for _, groups in given for name in groups[at].names)) for at in groups_at]


def _beside(group: Mapping[str, Any], named: ParameterGroup) -> dict[str, Any]:
    others = {key: value for key, value in group.items() if key != "params"}
    return {**others, "param_names": list(named.names), "params": group["params"]}


def _of_all(group: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    told = {**group, "params": list(names)}
    return {**told, "param_names": list(names)} if "param_names" in group else told
