"""Lightning's checkpoint, one dictionary, as items that a manager loads too. Pure."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from ..state.items import GENERATORS

REST: Final = "lightning"
"""Item of whatever has no item of its own: loops, callbacks, hyper-parameters, what hooks added."""

_MODEL: Final = ("state_dict", "model")
_SINGLE: Final = {"optimizer_states": "optimizer", "lr_schedulers": "scheduler"}
"""Lists that are an item if one is in them, by key: then it goes by the name that a manager calls it by."""
_METADATA: Final = "state_dict_metadata"
"""Key of the versions of modules, which torch hangs on a state dict as an attribute."""


def items_of(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """The items that a checkpoint is saved as."""
    rest = dict(checkpoint)
    items: dict[str, Any] = {}
    key, item = _MODEL
    if isinstance(rest.get(key), Mapping):
        weights = rest.pop(key)
        items[item] = dict(weights)  # plain: names stay as they are, also those of wrapped modules
        if isinstance(weights, OrderedDict):
            rest[_METADATA] = getattr(weights, "_metadata", None)
    for key, item in _SINGLE.items():
        if isinstance(rest.get(key), list) and len(rest[key]) == 1:
            (items[item],) = rest.pop(key)
    if GENERATORS in rest:
        items[GENERATORS] = rest.pop(GENERATORS)
    return {**items, REST: rest}


def checkpoint_of(items: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of :func:`items_of`; items that it does not know are passed over."""
    checkpoint = dict(items.get(REST, {}))
    key, item = _MODEL
    if item in items:
        checkpoint[key] = items[item]
        if _METADATA in checkpoint:
            metadata = checkpoint.pop(_METADATA)
            weights: Any = OrderedDict(items[item])
            if metadata is not None:
                weights._metadata = metadata
            checkpoint[key] = weights
    for key, item in _SINGLE.items():
        if item in items:
            checkpoint[key] = [items[item]]
    if GENERATORS in items:
        checkpoint[GENERATORS] = items[GENERATORS]
    return checkpoint
