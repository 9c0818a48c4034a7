"""From names and what they stand for to the entries of an item.

A name is a path: what it lies in becomes a container of the type ``dict``, so that whoever reads items as nested
dictionaries can read these.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..errors import Incompatible
from ..saving.inputs import ContainerInput, Input, ItemInput, ValueInput

ROOT = ""
"""Name of the item itself."""

SEPARATOR = "::"
"""Between an item and a name in it, where both are told together."""

Make = Callable[[str, int, Any], Input]
"""What is stored of something, from its full name, its place among its siblings and itself."""


def leaf_input(name: str, position: int, given: Any) -> Input:
    """What is stored of an array or plain value; see :data:`Make`.

    Raises:
        Incompatible: an array of a dtype that cannot be stored.
    """
    from .arrays import is_array, tensor_input  # which loads NumPy: files and trees do without

    return tensor_input(name, position, given) if is_array(given) else ValueInput(position, given)


def item_inputs(items: Mapping[str, Any], make: Make = leaf_input) -> list[ItemInput]:
    """What is stored of items.

    Args:
        items: by name: leaves by name, or one alone.
        make: gives what is stored of a leaf.

    Raises:
        Incompatible: a name that is no path, or that lies inside another leaf; and what ``make`` raises.
    """
    for name in items:
        _require_item_name(name)
    return [
        placed(name, given, make) if isinstance(given, Mapping) else ItemInput(name, {ROOT: make(name, 0, given)})
        for name, given in items.items()
    ]


def placed(item: str, leaves: Mapping[str, Any], make: Make) -> ItemInput:
    """An item that is a dictionary, nested as the names of its leaves say.

    Args:
        item: its name.
        leaves: by name, in the order in which they are to be kept.
        make: gives what is stored of a leaf.

    Raises:
        Incompatible: a name that is no path, or that lies inside another leaf; and what ``make`` raises.
    """
    entries: dict[str, Input] = {ROOT: ContainerInput(0, "dict")}
    counts: Counter[str] = Counter()
    for name, leaf in leaves.items():
        for container in _around(item, name):
            if container not in entries:
                entries[container] = ContainerInput(_next(counts, container), "dict")
            elif container in leaves:
                raise _inside(item, name, container)
        if name in entries:
            raise _inside(item, next(other for other in leaves if other.startswith(f"{name}/")), name)
        entries[name] = make(f"{item}{SEPARATOR}{name}", _next(counts, name), leaf)
    return ItemInput(item, entries)


def _require_item_name(name: Any) -> None:
    if not isinstance(name, str) or SEPARATOR in name:  # full names in it could be those of another item
        raise Incompatible(f"{name!r} is no name of an item; one is text without {SEPARATOR!r}", item=name)


def _around(item: str, name: Any) -> Iterator[str]:
    """Names of the containers around an entry, the root first."""
    if not isinstance(name, str) or not all(name.split("/")):
        raise Incompatible(f"{item}: {name!r} is no name; one is text, or parts of it joined by '/'", name=name)
    yield ROOT
    parts = name.split("/")[:-1]
    yield from ("/".join(parts[:count]) for count in range(1, len(parts) + 1))


def _next(counts: Counter[str], name: str) -> int:
    """The next free place in the container that an entry lies in."""
    parent = name.rpartition("/")[0]
    counts[parent] += 1
    return counts[parent] - 1


def _inside(item: str, name: str, leaf: str) -> Incompatible:
    return Incompatible(f"{item}: {name!r} lies in {leaf!r}, which is no container; rename one of them", name=name)
