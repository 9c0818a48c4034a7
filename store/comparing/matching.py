"""Two trees of one item, name by name: what was added, removed or changed, as far as that can be told without numbers.

Ids of chunks tell nearly always. Only where tensors are cut in different ways are the bytes read that lie in different
chunks.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..errors import telling
from ..format.entries import ContainerEntry, Entry, ValueEntry
from ..format.trees import Tree
from ..repository import Repository
from .differences import ValueDiff
from .segments import Pair, are_cut_alike, cast_of, load, segments, windows
from .values import value_changes


class Match(NamedTuple):
    """One name of either tree."""

    name: str
    before: Entry | None
    after: Entry | None


def matches(before: Tree | None, after: Tree | None, is_wanted: Callable[[str], bool]) -> Iterator[Match]:
    """All names of both trees that are wanted, in order. Holds one leaf of each tree at a time."""
    left, right = (_named(tree, is_wanted) for tree in (before, after))
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one[0].encode() < other[0].encode()):
            assert one is not None
            yield Match(one[0], one[1], None)
            one = next(left, None)
        elif one is None or other[0].encode() < one[0].encode():
            yield Match(other[0], None, other[1])
            other = next(right, None)
        else:
            yield Match(one[0], one[1], other[1])
            one, other = next(left, None), next(right, None)


def _named(tree: Tree | None, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, Entry]]:
    return (pair for pair in tree or () if is_wanted(pair[0]))


def is_same_tensor(repository: Repository, pair: Pair) -> bool:
    """Whether dtype, shape and content are equal, however either tensor is cut.

    Raises:
        NotFound: a chunk is missing; the message names the tensor.
        Corrupt: a chunk is damaged; likewise.

    Cost: nothing is read of tensors that are cut alike, else what lies in different chunks.
    """
    before, after = pair.before, pair.after
    if (before.dtype, before.shape) != (after.dtype, after.shape):
        return False
    if before.inline is not None and after.inline is not None and cast_of(before) == cast_of(after):
        return before.inline == after.inline
    if are_cut_alike(before, after):
        return before.chunks == after.chunks
    doubtful = (each for each in segments(0, pair) if not each.is_same)
    return all(one.before == one.after for window in windows(doubtful) for one in load(repository, window))


def changed_values(repository: Repository, where: str, match: Match) -> list[ValueDiff]:
    """What differs in values and containers of one name; nothing of tensors.

    Args:
        repository: where large values are read from.
        where: what messages call the name.
        match: the name.

    Raises:
        NotFound: a chunk is missing; the message names the value.
        Corrupt: a value is damaged; likewise.
    """
    before, after = match.before, match.after
    if isinstance(before, ContainerEntry) or isinstance(after, ContainerEntry):
        return _container_changes(match)
    is_before, is_after = isinstance(before, ValueEntry), isinstance(after, ValueEntry)
    if not (is_before or is_after) or (is_before and is_after and _same_bytes(before, after)):
        return []
    one, other = (_value(repository, where, entry) for entry in (before, after))
    if is_before and is_after:
        return list(value_changes(match.name, one, other))
    return [ValueDiff(match.name, (), "added" if is_after else "removed", one, other)]


def _container_changes(match: Match) -> list[ValueDiff]:
    """Of one that is new or gone, what is in it tells."""
    before, after = match.before, match.after
    if not isinstance(before, ContainerEntry) or not isinstance(after, ContainerEntry):
        return []
    if before.container != after.container:
        return [ValueDiff(match.name, (), "changed", before.container, after.container)]
    return list(value_changes(match.name, before.info, after.info))


def _same_bytes(before: Entry | None, after: Entry | None) -> bool:
    assert isinstance(before, ValueEntry)
    assert isinstance(after, ValueEntry)
    return (before.inline, before.chunks) == (after.inline, after.chunks)


def _value(repository: Repository, where: str, entry: Entry | None) -> object:
    if not isinstance(entry, ValueEntry):
        return None
    with telling(where):
        return repository.read_value(entry)
