"""Values that differ, by path. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Final

from ..format import values
from ..format.objects import Commit
from ..format.values import Plain, Tagged
from ..limits import DIFF_CHILDREN_COUNT, DIFF_NUMBERS_COUNT
from .differences import Status, ValueDiff

_ABSENT: Final = object()
_CONTAINERS: Final = (list, tuple, dict, Tagged)


def value_changes(name: str, before: Plain, after: Plain) -> Iterator[ValueDiff]:
    """What differs between two values, bit for bit: NaN equals itself, 0.0 differs from -0.0 and from 0.

    Mappings, lists and tuples are compared member by member, and so are those that a tag's payload holds second, after
    what else there is to say of them (an ``OrderedDict``). Long lists of numbers (a sampler's permutation) are one
    difference, and so is another order of keys where nothing else differs.

    Args:
        name: name of the entry that they are.
        before: plain value.
        after: plain value.
    """
    return _changes(name, (), before, after)


def header_changes(before: Commit, after: Commit) -> Iterator[ValueDiff]:
    """What differs in the commits themselves: step, branch, message and metadata."""
    for name in ("step", "branch", "message"):
        yield from _changes(name, (), getattr(before, name), getattr(after, name))
    yield from _changes("metadata", (), dict(before.metadata), dict(after.metadata))


def _changes(name: str, keys: tuple[Plain, ...], before: Plain, after: Plain) -> Iterator[ValueDiff]:
    children = _children(*_contents(before, after))
    is_found = False
    for key, one, other in children:
        for change in _child_changes(name, (*keys, key), one, other):
            is_found = True
            yield change
    if not is_found and values.encode(before) != values.encode(after):
        yield ValueDiff(name, keys, "changed", before, after)


def _contents(before: Plain, after: Plain) -> tuple[Plain, Plain]:
    """What is compared member by member: the body of tagged containers that are otherwise the same, else themselves."""
    if not (type(before) is Tagged and type(after) is Tagged and before.tag == after.tag):
        return before, after
    match before.payload, after.payload:
        case (info, body), (other_info, other_body) if values.encode(info) == values.encode(other_info):
            return body, other_body
    return before, after


def _child_changes(name: str, keys: tuple[Plain, ...], before: Plain, after: Plain) -> Iterator[ValueDiff]:
    if before is _ABSENT or after is _ABSENT:
        status: Status = "added" if before is _ABSENT else "removed"
        yield ValueDiff(name, keys, status, *(None if side is _ABSENT else side for side in (before, after)))
    else:
        yield from _changes(name, keys, before, after)


def _children(before: Plain, after: Plain) -> Iterator[tuple[Plain, Plain, Plain]]:
    """Members of both, by key or index; none where they are to be compared as a whole."""
    if type(before) is not type(after):
        return
    if isinstance(before, dict):
        yield from _members(before, after)
    elif isinstance(before, list | tuple) and _is_walked(before) and _is_walked(after):
        for number, (one, other) in enumerate(zip_longest(before, after, fillvalue=_ABSENT)):
            yield number, one, other


def _members(before: Mapping[Plain, Plain], after: Mapping[Plain, Plain]) -> Iterator[tuple[Plain, Plain, Plain]]:
    """Keys are told apart as they are stored: ``True`` is not ``1``."""
    left, right = ({values.encode(key): (key, value) for key, value in side.items()} for side in (before, after))
    for encoded in left | right:
        key = (left.get(encoded) or right[encoded])[0]
        yield key, left.get(encoded, (key, _ABSENT))[1], right.get(encoded, (key, _ABSENT))[1]


def _is_walked(sequence: Sequence[Plain]) -> bool:
    if len(sequence) <= DIFF_NUMBERS_COUNT:
        return True
    return len(sequence) <= DIFF_CHILDREN_COUNT and all(isinstance(child, _CONTAINERS) for child in sequence)
