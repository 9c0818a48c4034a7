"""From the parts of all ranks to the entries of one commit. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..errors import Incompatible
from ..format.entries import ContainerEntry, Entry, ValueEntry
from ..format.trees import Ties
from .parts import EntryPart, Part, TensorPart
from .pieces import entry_of_bytes, entry_of_pieces, is_inline


class Assembled(NamedTuple):
    """One item, put together.

    Attributes:
        entries: by name.
        ties: groups of names of one tensor.
    """

    entries: Mapping[str, Entry]
    ties: Ties


class _Given(NamedTuple):
    """What one rank handed in under a name."""

    rank: int
    entry: EntryPart


def assemble(parts: Sequence[Part]) -> dict[str, Assembled]:
    """Put the parts of all ranks together, by item.

    Args:
        parts: in order of rank. What several ranks hand in under one name has the position that the first says.

    Raises:
        Incompatible: boxes of a tensor do not tile it, ranks disagree about its dtype or shape, or about what else is
            under a name. Names it, and the ranks.
    """
    found: dict[str, dict[str, list[_Given]]] = {}
    ties: dict[str, list[Ties]] = {}
    for part in parts:
        for item, held in part.items.items():
            ties.setdefault(item, []).append(held.ties)
            entries = found.setdefault(item, {})
            for name, entry in held.entries.items():
                entries.setdefault(name, []).append(_Given(part.rank, entry))
    return {
        item: Assembled({name: _entry(f"{item}::{name}", given) for name, given in named.items()}, _joined(ties[item]))
        for item, named in found.items()
    }


def _entry(what: str, given: Sequence[_Given]) -> Entry:
    first = given[0].entry
    if isinstance(first, TensorPart):
        return _tensor(what, given)
    for each in given[1:]:
        if type(each.entry) is not type(first):
            raise _disagreement(what, given[0], each)
        if replace(each.entry, position=first.position) != first:
            raise _disagreement(what, given[0], each)
    return first


def _tensor(what: str, given: Sequence[_Given]) -> Entry:
    first = given[0].entry
    assert isinstance(first, TensorPart)
    tensors: list[TensorPart] = []
    for each in given:
        if not isinstance(each.entry, TensorPart) or (*each.entry[1:3], each.entry.cast) != (*first[1:3], first.cast):
            raise _disagreement(what, given[0], each)
        tensors.append(each.entry)
    ranks = [each.rank for each in given]
    try:
        if is_inline(first.cast.stored or first.dtype, first.shape):
            boxes = [box for tensor in tensors for box in tensor.inline]
            return entry_of_bytes(what, *first[:3], boxes, first.cast)
        pieces = [piece for tensor in tensors for piece in tensor.pieces]
        return entry_of_pieces(what, *first[:3], pieces, first.cast)
    except Incompatible as error:
        raise Incompatible(f"{error}; it came from ranks {_listed(ranks)}", **error.details, ranks=ranks) from error


def _disagreement(what: str, one: _Given, other: _Given) -> Incompatible:
    return Incompatible(
        f"{what}: rank {one.rank} gives {_told(one.entry)}, rank {other.rank} gives {_told(other.entry)};"
        f" let one rank save it, or give it names of its own on each",
        name=what,
        ranks=[one.rank, other.rank],
    )


def _told(entry: EntryPart) -> str:
    if isinstance(entry, TensorPart):
        cast = "" if entry.cast.stored is None else f" stored as {entry.cast.stored}"
        return f"{entry.dtype} of shape {list(entry.shape)}{cast}"
    return "a value of its own" if isinstance(entry, ValueEntry) else f"a {_container(entry)}"


def _container(entry: ContainerEntry) -> str:
    return f"{entry.container} ({entry.info!r:.60})" if entry.info is not None else entry.container


def _joined(given: Sequence[Ties]) -> Ties:
    """Ties that any rank knows of; groups that share a name are one."""
    groups: list[dict[str, None]] = []
    for names in dict.fromkeys(tie for ties in given for tie in ties):
        joined = dict.fromkeys(names)
        apart = []
        for group in groups:
            if joined.keys().isdisjoint(group):
                apart.append(group)
            else:
                joined = {**group, **joined}
        groups = [*apart, joined]
    return tuple(tuple(group) for group in groups)


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
