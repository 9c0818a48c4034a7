"""Putting loaded values into the containers that a person gave, each container and tensor staying the object it was."""

from collections import deque
from collections.abc import MutableMapping, MutableSequence
from itertools import islice
from typing import Any, Final

import numpy as np
import torch

SKIPPED: Final = torch.empty(0, device="cpu")
"""Stands for whatever is not loaded or was written in place, so that its neighbours in a list keep their places."""


_SEQUENCES: Final = (list, tuple, deque)

_Sequence = list[Any] | tuple[Any, ...] | deque[Any]


def fill(target: Any, loaded: Any) -> Any:
    """Put what was loaded in the place of ``target``.

    Args:
        target: the template. Tensors of it that could be written in place have been.
        loaded: what was read, ``SKIPPED`` in the place of those tensors; of the same structure, as was checked.

    Returns:
        ``target``, if it could take everything in; else what belongs in its place.
    """
    if loaded is SKIPPED:
        return target
    if isinstance(target, np.ndarray):
        return _fill_array(target, loaded)
    if isinstance(target, MutableMapping) and isinstance(loaded, MutableMapping):
        return _fill_mapping(target, loaded)
    if isinstance(target, MutableSequence) and isinstance(loaded, _SEQUENCES):
        return _fill_sequence(target, loaded)
    if isinstance(target, tuple) and isinstance(loaded, _SEQUENCES):
        return _fill_tuple(target, loaded)
    return loaded


def has_tensors(obj: Any) -> bool:
    """Whether there is a tensor or an array in nested mappings and sequences."""
    if isinstance(obj, MutableMapping):
        return any(map(has_tensors, obj.values()))
    if isinstance(obj, _SEQUENCES):
        return any(map(has_tensors, obj))
    return isinstance(obj, torch.Tensor | np.ndarray)


def _fill_mapping(target: MutableMapping[Any, Any], loaded: MutableMapping[Any, Any]) -> Any:
    """Keys that the target lacks are left out, unless it is empty: then it takes all."""
    if not target:
        target.update(loaded)
        return target
    for key in loaded.keys() & target.keys():
        put = fill(target[key], loaded[key])
        if put is not target[key]:
            target[key] = put
    return target


def _fill_sequence(target: MutableSequence[Any], loaded: _Sequence) -> Any:
    if not has_tensors(target):
        if isinstance(target, deque) and target.maxlen is not None and len(loaded) > target.maxlen:
            return loaded  # it would drop the first of them
        target.clear()
        target.extend(loaded)
        return target
    for index, value in enumerate(islice(loaded, len(target))):
        put = fill(target[index], value)
        if put is not target[index]:
            target[index] = put
    return target


def _fill_tuple(target: tuple[Any, ...], loaded: _Sequence) -> Any:
    if not has_tensors(target):
        return loaded
    filled = [fill(old, new) for old, new in zip(target, loaded, strict=False)]
    filled += target[len(filled) :]
    if all(new is old for new, old in zip(filled, target, strict=True)):
        return target
    return type(target)._make(filled) if hasattr(target, "_make") else tuple(filled)


def _fill_array(target: Any, loaded: Any) -> Any:
    fits = isinstance(loaded, np.ndarray) and loaded.shape == target.shape and loaded.dtype == target.dtype
    if not fits or not target.flags.writeable:
        return loaded
    target[...] = loaded
    return target
