"""What differs between any two commits: tensors, values, and what the change takes to store.

Content is compared, not how it is cut or stored. What has the same ids is the same, and is not read.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from ..errors import Pruned
from ..format.entries import Entry, ValueEntry
from ..format.objects import Commit
from ..format.trees import Tree
from ..ids import ChunkId, CommitId
from ..repository import Repository
from ..sizes import Sizes
from .comparing import ItemComparison
from .differences import CommitDiff, Form, ItemDiff, Measures, TensorDiff, ValueDiff
from .matching import matches
from .segments import Pair
from .values import header_changes

__all__ = ["CommitDiff", "Form", "ItemDiff", "Measures", "TensorDiff", "ValueDiff", "diff"]

Wanted = Callable[[str, str], bool]
"""Whether an item's entry, by name, is to be looked at."""


def everything(item: str, name: str) -> bool:  # noqa: ARG001 - as asked
    """All entries of all items."""
    return True


def diff(
    repository: Repository,
    before: CommitId,
    after: CommitId,
    *,
    is_wanted: Wanted = everything,
    measured: bool = True,
) -> CommitDiff:
    """Compare two commits.

    Args:
        repository: the store.
        before: one of them.
        after: the other.
        is_wanted: which entries to look at.
        measured: whether to read changed tensors and say how far they have changed.

    Raises:
        NotFound: there is no such commit, or a chunk is missing.
        Corrupt: something is damaged; the message names the tensor or value.

    Cost: both trees, of which one leaf each is held at a time, and all chunk ids of the first. ``measured``: see
    :func:`store.comparing.measuring.measure`.
    """
    one, other = repository.commit(before), repository.commit(after)
    growth = partial(Sizes(repository.reader, repository.is_awaited).total_bytes, held=_chunks_of(repository, one))
    items: list[ItemDiff] = []
    grown: list[Entry] = []
    for name in sorted({*one.items, *other.items}):
        found = _placed(name, one, other)
        try:
            trees = _trees(repository, name, one, other)
        except Pruned as error:
            items.append(replace(found, absent=error.message))
            continue
        in_item = partial(is_wanted, name)
        repository.bring(_read_whole(*trees, in_item, measured=measured))
        comparison = ItemComparison(repository, name, growth)
        if comparison.compare(*trees, in_item):
            told = replace(comparison.told(found), ties_differ=_ties_differ(*trees))
            items.append(_measured(repository, told, comparison.pairs) if measured else told)
            grown += comparison.grown
    return CommitDiff(before, after, tuple(header_changes(one, other)), tuple(items), growth(grown))


def _placed(name: str, before: Commit, after: Commit) -> ItemDiff:
    is_same_tree = before.items.get(name) == after.items.get(name)
    return ItemDiff(name, name in before.items, name in after.items, is_same_tree=is_same_tree)


def _trees(repository: Repository, name: str, before: Commit, after: Commit) -> tuple[Tree | None, Tree | None]:
    one, other = (repository.tree(commit, name) if name in commit.items else None for commit in (before, after))
    return one, other


def _read_whole(
    before: Tree | None, after: Tree | None, is_wanted: Callable[[str], bool], *, measured: bool
) -> Iterator[Entry]:
    """Entries that are going to be read: values that differ, and tensors that are measured."""
    for _, one, other in matches(before, after, is_wanted):
        sides = [side for side in (one, other) if side is not None]
        if one is None or other is None or one.chunks != other.chunks:
            is_read = measured and len(sides) == 2
            yield from (side for side in sides if is_read or isinstance(side, ValueEntry))


def _ties_differ(before: Tree | None, after: Tree | None) -> bool:
    return before is not None and after is not None and sorted(before.ties) != sorted(after.ties)


def _measured(repository: Repository, item: ItemDiff, pairs: Mapping[str, Pair]) -> ItemDiff:
    """The item with how far its tensors have changed. Names of one tensor are measured once."""
    if not pairs:
        return item
    from .measuring import measure  # needs NumPy, which who only compares ids does not

    contents = {name: pair.content for name, pair in pairs.items()}
    distinct = {content: pairs[name] for name, content in contents.items()}
    measures = dict(zip(distinct, measure(repository, list(distinct.values())), strict=True))
    tensors = tuple(
        replace(tensor, measures=measures[contents[tensor.name]]) if tensor.name in contents else tensor
        for tensor in item.tensors
    )
    return replace(item, tensors=tensors)


def _chunks_of(repository: Repository, commit: Commit) -> set[ChunkId]:
    """All chunks of a commit, as far as its items are here."""
    chunks: set[ChunkId] = set()
    for item in commit.items:
        with suppress(Pruned):
            for _, entry in repository.tree(commit, item):
                chunks.update(entry.chunks)
    return chunks
