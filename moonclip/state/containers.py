"""Containers: how each is taken apart into keyed or ordered children, and built again.

A container that holds no tensor is kept as one value, else its children have entries of their own; both ways use
:func:`split` and :func:`build`.
"""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from store.errors import Corrupt, Incompatible

from .classes import dotted, name_of, resolve
from .policy import Policy
from .refusals import Refused

Body = Mapping[Any, Any] | Sequence[Any]
"""Children: by key, or in order."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A container taken apart.

    Attributes:
        kind: word for what it is, kept in its entry.
        body: its children.
        info: what else building it again takes; anything that is a value.
    """

    kind: str
    body: Body
    info: Any = None


_CALLABLE: Final = (int, float, complex, bool, str, bytes, list, tuple, set, dict, OrderedDict, Counter, deque)
_FACTORIES: Final[dict[str, type]] = {factory.__name__: factory for factory in _CALLABLE}
"""A default factory is *called* later on, so a name read from a store may stand for these only."""


def split(obj: object) -> Parts | None:
    """Parts of a container; ``None`` if it is none that is known here.

    Raises:
        Refused: it has something that would be lost (a factory or an attribute that cannot be kept).
    """
    kind = type(obj)
    if kind in _SPLITTERS:
        return _SPLITTERS[kind](obj)
    if isinstance(obj, tuple) and (fields := _fields_of(kind)) is not None:
        return Parts("namedtuple", obj, (name_of(kind), fields))
    return None


def build(kind: str, body: Body, info: Any, policy: Policy) -> object:
    """Inverse of :func:`split`.

    Args:
        kind: as in :class:`Parts`; a key of ``BUILDERS``.
        body: the children: a ``dict``, or a ``list`` or ``tuple``; the result may be it.
        info: as in :class:`Parts`.
        policy: whether classes may be imported.

    Raises:
        Refused: the parts do not fit together, or a class is not there.
    """
    try:
        return BUILDERS[kind](body, info, policy)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise Refused(Corrupt, f"malformed {kind} ({error})") from error


def _fields_of(kind: type) -> tuple[str, ...] | None:
    """Fields of a named tuple's class; ``None`` for any other."""
    fields = getattr(kind, "_fields", None)
    return fields if isinstance(fields, tuple) and all(type(field) is str for field in fields) else None


def _split_ordered(obj: OrderedDict[Any, Any]) -> Parts:
    """The one attribute that survives is ``_metadata``, which ``Module.state_dict`` puts there."""
    attributes = vars(obj)
    if attributes.keys() - {"_metadata"}:
        raise Refused(Incompatible, f"an OrderedDict with attributes that would be lost: {sorted(attributes)}")
    return Parts("OrderedDict", obj, attributes.get("_metadata"))


def _split_default(obj: defaultdict[Any, Any]) -> Parts:
    factory = obj.default_factory
    if factory is None:
        return Parts("defaultdict", obj)
    for name, known in _FACTORIES.items():
        if factory is known:
            return Parts("defaultdict", obj, name)
    raise Refused(Incompatible, f"a defaultdict whose factory {factory!r} cannot be kept; make it a plain dict")


def _build_ordered(body: Any, info: Any, policy: Policy) -> object:
    made: OrderedDict[Any, Any] = OrderedDict(body)
    if info is not None:
        made._metadata = info  # type: ignore[attr-defined]
    return made


def _build_default(body: Any, info: Any, policy: Policy) -> object:
    return defaultdict(None if info is None else _FACTORIES[info], body)


def _build_namedtuple(body: Any, info: Any, policy: Policy) -> object:
    name, fields = info
    cls = resolve(name, tuple, policy)
    if _fields_of(cls) != fields or len(fields) != len(body):
        raise Refused(Incompatible, f"{dotted(name)} no longer has the fields {fields}")
    return tuple.__new__(cls, body)  # not cls(...): a class's own __new__ is not to run


_SPLITTERS: Final[dict[type, Callable[[Any], Parts]]] = {
    dict: lambda obj: Parts("dict", obj),
    list: lambda obj: Parts("list", obj),
    tuple: lambda obj: Parts("tuple", obj),
    OrderedDict: _split_ordered,
    defaultdict: _split_default,
    Counter: lambda obj: Parts("Counter", obj),
    deque: lambda obj: Parts("deque", list(obj), obj.maxlen),
    slice: lambda obj: Parts("slice", [obj.start, obj.stop, obj.step]),
}


BUILDERS: Final[dict[str, Callable[[Any, Any, Policy], object]]] = {
    "dict": lambda body, info, policy: body,
    "list": lambda body, info, policy: list(body),
    "tuple": lambda body, info, policy: tuple(body),
    "OrderedDict": _build_ordered,
    "defaultdict": _build_default,
    "Counter": lambda body, info, policy: Counter(body),
    "deque": lambda body, info, policy: deque(body, info),
    "slice": lambda body, info, policy: slice(*body),
    "namedtuple": _build_namedtuple,
}

OPEN: Final = frozenset(BUILDERS) - {"slice"}
"""Containers whose tensors are written one by one; the tensors of any other make up one object, built anew."""
