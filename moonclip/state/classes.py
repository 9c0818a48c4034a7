"""Classes by name: how they are written down and how they are found again without running anything."""

import importlib
import sys
from typing import Final, TypeVar

from store.errors import Corrupt, Incompatible, Unsafe

from .policy import Policy
from .refusals import Refused

ClassName = tuple[str, str]
"""Module and qualified name, e.g. ``("torch.optim.swa_utils", "AveragedModel")``."""

_UNSET: Final = object()
_Base = TypeVar("_Base")


def dotted(name: ClassName) -> str:
    """The name as people write it in ``allow=[...]``."""
    return ".".join(name)


def name_of(cls: type) -> ClassName:
    """Name under which a class can be found again.

    Raises:
        Refused: it cannot be (a class made inside a function, or hidden behind another one of its name).
    """
    name = (cls.__module__, cls.__qualname__)
    if _look_up(name) is not cls:
        text = dotted(name)
        raise Refused(Incompatible, f"the class {text} cannot be found by its name; define it at a module's top level")
    return name


def resolve(name: object, base: type[_Base], policy: Policy) -> type[_Base]:
    """Class of that name, if its module is imported already or the policy lists it.

    Only the modules' and classes' own dictionaries are consulted: attribute access could trigger a lazy import.

    Args:
        name: what :func:`name_of` gave, as read from a store.
        base: what it has to be a subclass of.
        policy: its ``classes`` may be imported.

    Raises:
        Refused: unknown, not imported, or no subclass of ``base``.
    """
    if not (type(name) is tuple and len(name) == 2 and all(type(part) is str for part in name)):
        raise Refused(Corrupt, f"a class name expected, got {name!r:.80}")
    if dotted(name) in policy.classes:
        _import(name[0])
    cls = _look_up(name)
    if cls is _UNSET:
        text = dotted(name)
        raise Refused(Unsafe, f"the class {text} is not imported; import {name[0]} first or pass allow=[{text!r}]")
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise Refused(Incompatible, f"{dotted(name)} is no subclass of {base.__name__}")
    return cls


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except Exception as error:  # a module's body may raise anything
        raise Refused(Incompatible, f"{module} cannot be imported ({error})") from error


def _look_up(name: ClassName) -> object:
    found: object = sys.modules.get(name[0], _UNSET)
    for part in name[1].split("."):
        members = getattr(found, "__dict__", None)
        found = members.get(part, _UNSET) if members is not None else _UNSET
    return found
