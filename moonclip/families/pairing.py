"""Which tensor of one model resembles which of another, by their names and shapes. Pure.

Libraries put models into each other, so that one tensor is ``encoder.0.weight``, ``bert.encoder.0.weight`` or
``module.encoder.0.weight``; and what is one dotted name in a file may be nested in a commit. So names are compared as
their parts, from the end: two tensors are one where they have most of these in common.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from store.format.entries import TensorEntry
from store.saving.inputs import ItemInput, MadeInput

from ..state.names import ROOT, key_of

Key = tuple[str, str]
"""A tensor: its item's name, and its own within that."""

Parts = tuple[str, ...]

_CASTS: Final = frozenset({"float32", "bfloat16", "float16"})
"""Dtypes of which one is stored against a cast of another."""

_WRAPPERS: Final = frozenset(
    {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_forward_module", "base_layer"}
)
"""Parts that libraries put in the middle of names: no module of one's own is called so."""

_KEPT: Final = 65_536
"""Names whose parts are remembered: models of a family have the same ones."""


class Kind(NamedTuple):
    """What a tensor is made of.

    Attributes:
        dtype: dtype name.
        shape: its shape.
    """

    dtype: str
    shape: tuple[int, ...]

    def fits(self, other: "Kind") -> bool:
        """Whether rows of one may be rows of the other, as they are or cast."""
        same_rows = len(self.shape) == len(other.shape) and self.shape[1:] == other.shape[1:]
        return same_rows and (self.dtype == other.dtype or {self.dtype, other.dtype} <= _CASTS)


class _Match(NamedTuple):
    """Tensors that may be one.

    Attributes:
        wanted: one.
        held: and the other.
        common: how many parts their names have in common, from the end.
        votes: how many pairs differ by the same parts in front.
    """

    wanted: Key
    held: Key
    common: int
    votes: int


def against(items: Sequence[ItemInput], pairs: Mapping[Key, TensorEntry]) -> list[ItemInput]:
    """The same items, whose tensors say which stored ones they resemble.

    Args:
        items: what is to be imported.
        pairs: of a tensor the stored one, as ``base_for`` found them.
    """
    return [
        item._replace(
            entries={
                name: given._replace(like=pairs[item.name, name])
                if isinstance(given, MadeInput) and (item.name, name) in pairs
                else given
                for name, given in item.entries.items()
            }
        )
        for item in items
    ]


def pair(wanted: Mapping[Key, Kind], held: Mapping[Key, Kind]) -> dict[Key, Key]:
    """Of each wanted tensor the held one that it resembles, if there is one. No tensor is in two pairs.

    The most parts in common come first. Where several tensors have as many, what is in front decides: most pairs of two
    models differ there by the same parts.
    """
    matches = _voted(_matches(wanted, held))
    pairs: dict[Key, Key] = {}
    taken: set[Key] = set()
    for match in sorted(matches, key=lambda match: (-match.common, -match.votes)):
        if match.wanted not in pairs and match.held not in taken:
            pairs[match.wanted] = match.held
            taken.add(match.held)
    return pairs


@lru_cache(_KEPT)
def parts_of(name: str) -> Parts:
    """Parts of a name, whether it is dotted or nested, without what wrappers put there."""
    keys = () if name == ROOT else (str(key_of(segment)) for segment in name.split("/"))
    return tuple(part for key in keys for part in key.split(".") if part not in _WRAPPERS)


def _matches(wanted: Mapping[Key, Kind], held: Mapping[Key, Kind]) -> list[_Match]:
    ends = _by_ends(held)
    found: list[_Match] = []
    for key, kind in wanted.items():
        path = _path(key)
        for common in range(len(path), 0, -1):
            hits = [other for other in ends.get(path[-common:], ()) if kind.fits(held[other])]
            if hits:
                found += [_Match(key, other, common, 0) for other in hits if _is_enough(common, path, _path(other))]
                break
    return found


def _is_enough(common: int, path: Parts, other: Parts) -> bool:
    """Whether so many parts say anything: ``weight`` alone does only if that is all of a name."""
    return common > 1 or min(len(path), len(other)) <= 2  # of which one is the item


def _voted(matches: Sequence[_Match]) -> list[_Match]:
    fronts = [(_path(m.wanted)[: -m.common], _path(m.held)[: -m.common]) for m in matches]
    votes = Counter(fronts)
    return [match._replace(votes=votes[front]) for match, front in zip(matches, fronts, strict=True)]


def _by_ends(held: Iterable[Key]) -> dict[Parts, list[Key]]:
    """Tensors by each end that their names have."""
    ends: dict[Parts, list[Key]] = {}
    for key in held:
        path = _path(key)
        for start in range(len(path)):
            ends.setdefault(path[start:], []).append(key)
    return ends


def _path(key: Key) -> Parts:
    return (key[0], *parts_of(key[1]))
