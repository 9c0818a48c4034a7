"""A training run as the benches see it: what is saved, the two halves of a step, and parts worth a look."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

Items = dict[str, Any]
"""What is handed to a library: objects with ``state_dict`` and ``load_state_dict``, by item."""

WHOLE: Final = "all of it"
"""What the items of a run are called beside its parts."""

SEED: Final = 7
"""Of the steps that are trained live; the warm-up has its own."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run that is warmed up.

    Attributes:
        items: everything that is saved.
        optimizer: makes the step.
        learn: the first half of a step: gradients of one batch.
        update: the other half: the optimizer's step and what follows from it.
        aside: what the run needs besides to go on, and no save holds.
        parts: some of what ``items`` hold, by what people call it; each call takes the state of that moment.
    """

    items: Items
    optimizer: torch.optim.Optimizer
    learn: Callable[[], object]
    update: Callable[[], object]
    aside: Items = field(default_factory=dict)
    parts: Mapping[str, Callable[[], Items]] = field(default_factory=dict)

    def step(self, count: int = 1) -> None:
        """Train on."""
        for _ in range(count):
            self.learn()
            self.update()


class Held:
    """State in place of the object that it was taken from."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def state_dict(self) -> Any:
        """The state."""
        return self._state


def tensors(state: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested state dicts, in order; one that is tied comes once."""
    seen: set[int] = set()
    for tensor in _walk(state):
        if tensor.data_ptr() not in seen or not tensor.numel():
            seen.add(tensor.data_ptr())
            yield tensor


def states(items: Items) -> dict[str, Any]:
    """State dicts by item."""
    return {item: value.state_dict() for item, value in items.items()}


def state_bytes(items: Items) -> int:
    """Bytes of all tensors that a save has to keep."""
    return sum(tensor.nbytes for tensor in tensors(states(items)))


def _walk(node: Any) -> Iterator[torch.Tensor]:
    if isinstance(node, torch.Tensor):
        yield node
    elif isinstance(node, dict):
        for child in node.values():
            yield from _walk(child)
    elif isinstance(node, list | tuple):
        for child in node:
            yield from _walk(child)
