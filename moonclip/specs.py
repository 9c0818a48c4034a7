"""What a person may say of items beforehand: how they are copied, stored, checked, laid out over ranks and exported.

Plain data; loads no torch.
"""

import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex, get_args

from store.boxes import Box, is_inside, overlap_among
from store.errors import Incompatible
from store.format.entries import check_name

from .sharding.layouts import Part

if TYPE_CHECKING:
    import torch

Kind = Literal["torch", "json", "raw", "safetensors"]
"""Files that an item can be exported as: ``torch.save``; JSON text; its bytes or UTF-8 text; tensors by name."""

SUFFIXES: Final[Mapping[str, str]] = {"torch": ".pt", "json": ".json", "raw": ".bin", "safetensors": ".safetensors"}
"""What the file of an item ends in, unless a path is given."""


_UNFIT: Final = re.compile(r"[\0\\\ud800-\udfff]")
"""What no path may hold: the end of a name, another system's separator, and half letters, which have no UTF-8."""

_MOST_ELEMENTS: Final = 2**59
"""Of the largest elements, 16 bytes each, so many are more than can be addressed, and torch counts wrong."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """What a rank's tensor holds of a global one.

    Attributes:
        shape: of the global tensor.
        parts: boxes of it, none of which overlap, and the index in the rank's own tensor at which each begins. What
            the own tensor has beyond them, as padding, is neither stored nor written. None if the rank holds nothing.

    Raises:
        Incompatible: a box reaches outside of the shape, or two overlap; or what is given is no shape, or no parts.
    """

    shape: tuple[int, ...]
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        try:
            shape, parts = _whole_numbers(self.shape), tuple(map(_part, self.parts))
        except (TypeError, ValueError) as error:
            raise Incompatible(
                f"{self!r:.200} is no sharding; give a shape, and parts like Part(Box((0, 4), (2, 4)), (0, 0))"
            ) from error
        object.__setattr__(self, "shape", shape)  # as plain tuples: they are keys, and compared with others
        object.__setattr__(self, "parts", parts)
        self._require_apart()

    def _require_apart(self) -> None:
        boxes = sorted(part.box for part in self.parts)
        outside = next((box for box in boxes if not is_inside(box, self.shape)), None)
        if outside is not None:
            raise Incompatible(f"{outside} reaches outside of shape {list(self.shape)}")
        if min(self.shape, default=0) < 0 or prod(self.shape) > _MOST_ELEMENTS:
            raise Incompatible(f"no tensor has the shape {list(self.shape)}")
        if (found := overlap_among(boxes)) is not None:
            raise Incompatible(f"{found[0]} and {found[1]} of shape {list(self.shape)} overlap")

    def require_within(self, own: tuple[int, ...]) -> None:
        """Check that a rank's own tensor of this shape has all the parts, each in a place of its own.

        Raises:
            Incompatible: it has not; or two lie in one place, where a load would write one over the other.
        """
        places = [Box(local, box.sizes) for box, local in self.parts]
        for part, place in zip(self.parts, places, strict=True):
            if not is_inside(place, own):
                raise Incompatible(
                    f"{part.box} would begin at {list(part.local)} of the rank's own tensor of shape {list(own)}"
                )
        if (found := overlap_among(sorted(places))) is not None:
            raise Incompatible(f"two boxes would lie in one place of the rank's own tensor, {found[0]} and {found[1]}")


def _part(given: Any) -> Part:
    """A part, of whichever sequences and whole numbers it was given as. Others raise TypeError or ValueError."""
    (offsets, sizes), local = given
    if len(offsets) != len(sizes):
        raise ValueError("a box with offsets and sizes of different numbers of dims")
    return Part(Box(_whole_numbers(offsets), _whole_numbers(sizes)), _whole_numbers(local))


def _whole_numbers(given: Iterable[SupportsIndex]) -> tuple[int, ...]:
    return tuple(int(operator.index(each)) for each in given)


Resharder = Callable[[str, "torch.Tensor"], "Sharding | None"]
"""Says of a tensor, by its name in the item, what of a global tensor this rank holds in it; ``None``: it is whole.

Asked on save and on load, for each tensor that is neither a DTensor nor a component of something else, as arrays and
sparse tensors have them. It has to answer the same each time for tensors of one
name and shape, talks to nobody, and alters nothing.
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """How an item is written when a commit is exported as a directory.

    Attributes:
        kind: the file's format.
        path: where it goes below the directory, with ``/`` between parts. ``None`` for the item's name and a suffix.

    Raises:
        Incompatible: there is no such kind, or the path is none or leaves the directory.
    """

    kind: Kind
    path: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise Incompatible(f"a layout is one of {', '.join(get_args(Kind))}, not {self.kind!r}", layout=self.kind)
        if self.path is not None:
            _require_inside(self.path)

    def path_for(self, item: str) -> str:
        """Where an item goes, relative to the directory, in its shortest spelling.

        Raises:
            Incompatible: the item's own name leaves the directory; give a path.
        """
        path = item + SUFFIXES[self.kind] if self.path is None else self.path
        _require_inside(path)
        return str(PurePosixPath(path))


def file_paths(layouts: Mapping[str, Layout]) -> dict[str, str]:
    """Where each item goes, relative to the directory that they are exported to.

    Args:
        layouts: by item.

    Raises:
        Incompatible: a path leaves the directory, or two items' paths are one, or one lies below the other.
    """
    paths: dict[str, str] = {}
    owners: dict[str, str] = {}
    for item, layout in layouts.items():
        paths[item] = layout.path_for(item)
        key = paths[item].casefold()  # there are file systems that do not tell A from a
        if key in owners:
            raise Incompatible(f"{owners[key]} and {item} would both be written to {paths[item]}", path=paths[item])
        owners[key] = item
    for path, item in owners.items():
        for above in map(str, PurePosixPath(path).parents):
            if above in owners:
                raise Incompatible(f"{item} would be written to {paths[item]}, below {owners[above]}'s file")
    return paths


def _require_inside(path: object) -> None:
    parts = PurePosixPath(path).parts if isinstance(path, str) and _UNFIT.search(path) is None else ()
    if not parts or parts[0] in {"/", "//"} or ".." in parts:
        raise Incompatible(
            f"{path!r} is no path of a file below the directory; give one like 'parts/model.pt'", path=path
        )


@dataclass(frozen=True, slots=True)
class ItemSpec:
    """What holds for one item in all saves and loads of a manager.

    Attributes:
        requires_copy: whether the item is copied before ``save`` returns. If not, the caller promises to leave its
            tensors as they are until the save's Future is done, and they are copied behind ``save``. A broken promise
            is noticed where a version counter or a sampled word tells, and fails that save with ``StateChanged``.
        layout: the file that the item becomes when a commit is exported as a directory; ``torch`` if ``None``.
        resharder: says which boxes of a global tensor this rank's tensors hold, where they are no DTensors.
        required: whether a save or load without the item is refused.
        dtype: what the item's floats are stored as, see ``save_dtype``; goes before that. ``None`` to leave it to that.

    Raises:
        Incompatible: the layout or the resharder is none.
    """

    requires_copy: bool = True
    layout: Layout | None = None
    resharder: Resharder | None = None
    required: bool = False
    dtype: str | None = None

    def __post_init__(self) -> None:
        if self.layout is not None and not isinstance(self.layout, Layout):
            raise Incompatible(f"an item's layout is a Layout, not {self.layout!r:.80}; as in Layout('json')")
        if self.resharder is not None and not callable(self.resharder):
            raise Incompatible(f"an item's resharder is a function, not {self.resharder!r:.80}")


@dataclass(frozen=True, slots=True)
class Schema:
    """What was said of all items.

    Attributes:
        specs: by item.
        is_strict: whether items that nothing was said of are refused.
        exempt: items that nothing need be said of even so.

    Raises:
        Incompatible: an item whose name or spec is none, or two layouts that write to one path.
    """

    specs: Mapping[str, ItemSpec] = field(default_factory=lambda: MappingProxyType({}))
    is_strict: bool = False
    exempt: Collection[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.specs, Mapping):
            raise Incompatible(f"items is a mapping of ItemSpecs by item's name, not {self.specs!r:.80}")
        for item, spec in self.specs.items():
            if not isinstance(item, str):
                raise Incompatible(f"items: {item!r:.80} is no name of an item")
            check_name(item)
            if not isinstance(spec, ItemSpec):
                raise Incompatible(f"items: {item!r} has a {type(spec).__name__}; give an ItemSpec")
        file_paths(self.layouts)

    @property
    def layouts(self) -> dict[str, Layout]:
        """Those that were given, by item."""
        return {item: spec.layout for item, spec in self.specs.items() if spec.layout is not None}

    @property
    def dtypes(self) -> dict[str, str]:
        """Those that were given, by item."""
        return {item: spec.dtype for item, spec in self.specs.items() if spec.dtype is not None}

    @property
    def resharders(self) -> dict[str, Resharder]:
        """Those that were given, by item."""
        return {item: spec.resharder for item, spec in self.specs.items() if spec.resharder is not None}

    @property
    def lent(self) -> frozenset[str]:
        """Items that are copied behind ``save``."""
        return frozenset(item for item, spec in self.specs.items() if not spec.requires_copy)

    def require(self, items: Iterable[str], what: str, *, allow_unknown: bool = False) -> None:
        """Check that the items of a save or load are those that there are to be.

        Args:
            items: their names.
            what: where they are, for people: ``"the save"``.
            allow_unknown: whether those that nothing was said of are nothing to complain of here.

        Raises:
            Incompatible: required ones are missing, or unknown ones there; the message lists all.
        """
        given = list(items)
        missing = [item for item, spec in self.specs.items() if spec.required and item not in given]
        known = {*self.specs, *self.exempt}
        unknown = [item for item in given if item not in known] if self.is_strict and not allow_unknown else []
        problems = [f"  {item}: required, and missing in {what}" for item in missing]
        problems += [f"  {item}: in {what}, and not among the manager's items" for item in unknown]
        if problems:
            lines = "\n".join(problems)
            raise Incompatible(
                f"items do not fit the schema; nothing was changed:\n{lines}", missing=missing, unknown=unknown
            )
