"""The one walk over what a person saves: values fold together, containers with tensors below stay open."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from store.errors import Incompatible
from store.format.values import Plain, Tagged
from store.limits import MAX_VALUE_NESTING

from .containers import Parts, split
from .leaves import PLAIN_LEAVES, to_plain_leaf
from .names import segment
from .policy import Policy
from .refusals import Refused
from .tensors import TensorSource

_MAX_DEPTH: Final = MAX_VALUE_NESTING - 4
"""Levels of containers; a tagged leaf at the bottom takes up to four more in its encoding."""

_NEVER_TENSORS: Final = frozenset({dict, list, tuple})
"""Not asked whether they are tensors: an optimizer has a dict for each of its parameters."""

_NATIVE: Final = frozenset({"dict", "list", "tuple"})
"""Containers that the engine's values have a type for; all others are tagged, which takes three levels."""


@dataclass(slots=True, eq=False)
class Branch:
    """A container with tensors somewhere below.

    Attributes:
        kind: what it is.
        info: what else builds it again, a plain value.
        children: key (a plain value, or the index) and child.
    """

    kind: str
    info: Plain
    children: "list[tuple[Plain, Node]]"


Node = Plain | Branch | TensorSource
TakeTensor = Callable[[object], TensorSource | Parts | None]
"""What to do with a tensor: describe it, take it apart, refuse it; ``None`` for whatever is none."""


@dataclass(frozen=True, slots=True)
class Walk:
    """A walk and what it does with tensors and unknown objects.

    Attributes:
        take_tensor: called with everything that is neither a plain leaf nor a plain container.
        policy: whether unknown objects may be pickled.
    """

    take_tensor: TakeTensor
    policy: Policy

    def visit(self, obj: object, depth: int = _MAX_DEPTH) -> Node:
        """Plain form of ``obj``, or a branch or source if there are tensors in it.

        Raises:
            Refused: something inside cannot be kept.
        """
        kind = type(obj)
        if kind in PLAIN_LEAVES:
            return obj
        if kind is set or kind is frozenset:
            return self._members(obj, depth)
        taken = None if kind in _NEVER_TENSORS else self.take_tensor(obj)
        if isinstance(taken, TensorSource):
            return taken
        parts = split(obj) if taken is None else taken
        if parts is None:
            return to_plain_leaf(obj, self.policy)
        return self._container(parts, depth)

    def plain(self, obj: object, depth: int = _MAX_DEPTH) -> Plain:
        """Plain form of something that has no entry of its own to hold a tensor: a key, a member, an info.

        Raises:
            Refused: something inside cannot be kept, or is a tensor.
        """
        node = self.visit(obj, depth)
        if type(node) is TensorSource or type(node) is Branch:
            raise Refused(Incompatible, "a tensor cannot be a key, a member of a set or an attribute")
        return node

    def _info(self, info: object, depth: int) -> Plain:
        try:
            return self.plain(info, depth)
        except Refused as refused:
            refused.segments.clear()  # they lead through something that has no name
            raise

    def _members(self, members: Any, depth: int) -> Plain:
        if depth <= 0:
            raise _too_deep()
        plain = type(members)(self.plain(member, depth - 1) for member in members)
        if len(plain) != len(members):
            raise Refused(Incompatible, "members of a set that differ, but not once they are stored")
        return plain

    def _container(self, parts: Parts, depth: int) -> Node:
        below = depth - (1 if parts.kind in _NATIVE else 3)
        if below < 0:
            raise _too_deep()
        info = None if parts.info is None else self._info(parts.info, below)
        children = self._children(parts.body, below)
        for _, child in children:
            if type(child) is TensorSource or type(child) is Branch:
                return Branch(parts.kind, info, children)
        return _folded(parts, info, children)

    def _children(self, body: Any, depth: int) -> list[tuple[Plain, Node]]:
        children: list[tuple[Plain, Node]] = []
        key: Any = None
        pairs = body.items() if isinstance(body, Mapping) else enumerate(body)
        try:
            for key, child in pairs:
                plain_key = key if type(key) is str or type(key) is int else self.plain(key, depth)
                children.append((plain_key, self.visit(child, depth)))
        except Refused as refused:
            raise refused.inside(_readable(key)) from refused.__cause__
        return children


def _folded(parts: Parts, info: Plain, children: list[tuple[Plain, Node]]) -> Plain:
    """The plain form of a container without tensors."""
    body: Plain
    if isinstance(parts.body, Mapping):
        body = dict(children)
        if len(body) != len(children):
            raise Refused(Incompatible, "keys that differ, but not once they are stored")
    else:
        in_order = (child for _, child in children)
        body = list(in_order) if parts.kind == "list" else tuple(in_order)  # a tuple, so that a key can be tagged
    return body if parts.kind in _NATIVE else Tagged(parts.kind, (info, body))


def _readable(key: object) -> str:
    """A key's part in an error's path: its segment, or its text where it has none."""
    return segment(key) if type(key) is str or type(key) is int else repr(key)[:80]


def _too_deep() -> Refused:
    return Refused(Incompatible, f"nested deeper than {_MAX_DEPTH} levels, or it contains itself")
