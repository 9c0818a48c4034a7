"""What a method is given: items by name, and some of them by position as in the Rust engine. Pure, but for warnings."""

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, SupportsIndex

import torch

from store.errors import Incompatible

from ..state.items import state_of
from ..state.tensors import tensor_from

_log = logging.getLogger("moonclip")

POSITIONAL: Final = ("model", "optimizer", "scheduler", "scaler", "extra")
"""Items that may be given by position, in this order."""
_TAG_WORDS: Final = ("name", "tag")
"""What people call the first argument of ``save``, which has no name."""
_LIKE: Final = 0.85
"""How alike two names are of which one may be a slip of the other."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a ``save`` is asked for.

    Attributes:
        name: a tag for the commit.
        payload: items by name.
        step: training step.
        items: more of them.
    """

    name: str | None
    payload: Mapping[str, Any] | None
    step: int | None
    items: Mapping[str, Any]


def asked(
    name: str | SupportsIndex | None,
    payload: Any,
    objects: Sequence[Any],
    step: SupportsIndex | None,
    items: Mapping[str, Any],
) -> Asked:
    """What a ``save`` is asked for: ``save("tag", {…})``, ``save(step=5, model=…)`` or ``save(5, model, optimizer)``.

    Args:
        name: a tag, or the step.
        payload: items by name, or the first item.
        objects: the items after that.
        step: the step, by keyword.
        items: items by keyword.

    Raises:
        Incompatible: it cannot be meant so.
    """
    if name is not None and not isinstance(name, str):
        if step is not None:
            raise Incompatible(f"save is given two steps, {name!r:.40} and {step!r:.40}")
        step, name = name, None
        if payload is not None and (objects or not _is_items(payload)):
            objects, payload = (payload, *objects), None
    if objects and payload is not None:
        raise Incompatible("objects by position come after a step, as in save(step, model, optimizer); give a tag none")
    if payload is not None and not _is_items(payload):
        raise Incompatible(f"save(name, payload) takes items by name, as in {{'model': model}}, not {_kind(payload)}")
    return Asked(name, payload, _step_of(step), unfolded(placed(objects, items)))


def placed(objects: Sequence[Any], items: Mapping[str, Any]) -> dict[str, Any]:
    """Items by name: those that were given by position, and the others.

    Args:
        objects: in the order of :data:`POSITIONAL`.
        items: by name.

    Raises:
        Incompatible: there are too many, or one is given twice.
    """
    if len(objects) > len(POSITIONAL):
        raise Incompatible(f"by position there may be {', '.join(POSITIONAL)}; give what follows by name")
    by_place = {name: given for name, given in zip(POSITIONAL, objects, strict=False) if given is not None}
    twice = sorted(by_place.keys() & items.keys())
    if twice:
        raise Incompatible(f"items given twice: {', '.join(twice)}", items=twice)
    return by_place | dict(items)


def tell_of_slips(method: Callable[..., Any], items: Mapping[str, Any]) -> None:
    """Warn, once in a process, of items that are named almost like an argument: nobody would miss that.

    Args:
        method: the method that was called.
        items: what it was given by keyword and has no argument for, so that it is saved.
    """
    words = list(method.__kwdefaults__ or ())
    known = words if "tag" in words else [*words, *_TAG_WORDS]
    for name, given in items.items():
        near = get_close_matches(name, known, 1, _LIKE)
        if near and isinstance(given, bool | int | float | str | Mapping) and not hasattr(given, "state_dict"):
            _tell_of_slip(method.__name__, name, f"{near[0]}=…" if near[0] in words else "a tag, which comes first,")


@cache
def _tell_of_slip(method: str, name: str, meant: str) -> None:
    _log.warning("%s has no argument %s=…: it is saved as an item; if %s was meant, say that", method, name, meant)


def unfolded(items: Mapping[str, Any]) -> dict[str, Any]:
    """Items as they are saved: objects with a state dict inside ``extra``, where such are usual, by what that gives."""
    extra = items.get("extra")
    if extra is None or not _is_items(extra):
        return dict(items)
    return {**items, "extra": {name: state_of(each) for name, each in extra.items()}}


def tensor_of(given: Any) -> torch.Tensor:
    """A tensor, or what ``(shape, dtype name, bytes)`` says of one.

    Raises:
        Incompatible: it is neither, or the bytes are too few or too many.
    """
    if isinstance(given, torch.Tensor):
        return given
    try:
        shape, dtype, data = given
        return tensor_from(dtype, tuple(shape), bytearray(data))
    except (TypeError, ValueError, RuntimeError) as error:
        raise Incompatible(f"no tensor, and no (shape, dtype, bytes) of one: {error}") from error


# --- how ------------------------------------------------------------------------------------------------------------


def _step_of(given: Any) -> int | None:
    if given is None:
        return None
    try:
        return operator.index(given)
    except TypeError:
        raise Incompatible(
            f"a step is a whole number, not {_kind(given)}: say save(step, model, …) or save(step=5, model=…)"
        ) from None


def _is_items(given: Any) -> bool:
    return isinstance(given, Mapping) and not hasattr(given, "state_dict")


def _kind(given: Any) -> str:
    return f"a {type(given).__name__}"
