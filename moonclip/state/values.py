"""Values: whatever is not a tensor, to the engine's plain values and back. Nothing is pickled unless asked for.

Kept exactly: ``None``, numbers, text, bytes, list, tuple, set, frozenset, dict, ``OrderedDict`` with its
``_metadata``, ``defaultdict`` of a built-in factory, ``Counter``, ``deque``, named tuples, enums, slices, ranges,
paths, dates and times, NumPy scalars, and torch's sizes, dtypes, devices, layouts and generators. Classes (of enums
and named tuples) are looked up among the imported modules and never imported. Anything else is refused, by its path.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from store.errors import Corrupt, Incompatible
from store.format.values import Plain, Tagged

from . import containers
from .leaves import PLAIN_LEAVES, from_tagged_leaf
from .policy import SAFE, Policy
from .refusals import Refused, located
from .tensors import is_tensor_like
from .walk import Walk


def to_plain(obj: object, policy: Policy = SAFE, what: str = "value") -> Plain:
    """Plain form of a value.

    Args:
        obj: anything without tensors or arrays in it, or one without dims: that is taken as its number.
        policy: whether unknown objects may be pickled.
        what: named in errors.

    Raises:
        Incompatible: there is something in it that cannot be kept; the message names its path and type.
    """
    if isinstance(obj, torch.Tensor | np.ndarray) and obj.ndim == 0:
        obj = obj.item()  # ``metadata={"loss": loss}`` means how large the loss is
    with located(what):
        return Walk(_refuse_tensor, policy).plain(obj)


def from_plain(plain: Plain, policy: Policy = SAFE, what: str = "value") -> Any:
    """Inverse of :func:`to_plain`. Runs no code but that of the standard types and of classes found by name.

    Raises:
        Unsafe: it holds a pickle, or a class that is not imported, and the policy does not list it.
        Incompatible: a type or class that is not what it was.
        Corrupt: a payload that does not fit its type.
    """
    with located(what):
        return rebuilt(plain, policy)


def rebuilt(plain: Plain, policy: Policy) -> Any:
    """:func:`from_plain` for callers that add to the path themselves.

    Raises:
        Refused: as :func:`from_plain` raises.
    """
    kind = type(plain)
    if kind in PLAIN_LEAVES:
        return plain
    if kind is Tagged:
        return _rebuilt_tagged(plain, policy)
    try:
        if kind is dict:
            return {rebuilt(key, policy): _child(key, value, policy) for key, value in plain.items()}
        if kind is list or kind is tuple:
            return kind(_child(index, value, policy) for index, value in enumerate(plain))
        if kind is set or kind is frozenset:
            return kind(rebuilt(member, policy) for member in plain)
    except TypeError as error:
        raise Refused(Corrupt, f"a key or member that cannot be one ({error})") from error
    raise Refused(Incompatible, f"{kind.__name__} is no plain value")


def _child(key: Plain, value: Plain, policy: Policy) -> Any:
    try:
        return rebuilt(value, policy)
    except Refused as refused:
        raise refused.inside(str(key)) from refused.__cause__


def _rebuilt_tagged(value: Tagged, policy: Policy) -> Any:
    if value.tag not in containers.BUILDERS:
        return from_tagged_leaf(value, policy)
    if type(value.payload) is not tuple or len(value.payload) != 2:
        raise Refused(Corrupt, f"malformed {value.tag}")
    info, body = value.payload
    return containers.build(value.tag, rebuilt(body, policy), rebuilt(info, policy), policy)


def _refuse_tensor(obj: object) -> None:
    if is_tensor_like(obj):
        raise Refused(Incompatible, f"a {type(obj).__name__} cannot be here; save it as an item of its own")


def plain_metadata(metadata: Mapping[str, Any], policy: Policy) -> dict[str, Plain]:
    """Metadata as plain values.

    Raises:
        Incompatible: a key is no text, or a value has no stored form.
    """
    if not all(isinstance(key, str) for key in metadata):
        raise Incompatible("metadata needs text for keys")
    return {key: to_plain(value, policy, f"metadata {key!r}") for key, value in metadata.items()}
