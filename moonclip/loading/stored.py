"""Items as they lie in a commit: entries by name, read from the store; their tensors not yet."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from store.errors import NotFound
from store.format.entries import ContainerEntry, Entry, ValueEntry
from store.format.objects import Commit
from store.format.trees import Ties
from store.format.values import Plain
from store.repository import Repository

from ..state.names import ROOT, parent_of, select

SEPARATOR = "::"
"""Between an item and a name in it, where both are written as one: ``model::encoder.weight``."""


@dataclass(frozen=True, slots=True)
class StoredItem:
    """One item of a commit.

    Attributes:
        name: the item's name.
        entries: by name, in name order.
        ties: groups of names of one tensor.
        values: decoded values, by name.
    """

    name: str
    entries: Mapping[str, Entry]
    ties: Ties
    values: Mapping[str, Plain]


def read_item(repo: Repository, commit: Commit, item: str) -> StoredItem:
    """Read an item's tree and values, no tensor.

    Raises:
        NotFound: the commit has no such item. Corrupt: no intact copy.
    """
    tree = repo.tree(commit, item)
    entries = dict(tree)
    stored = {name: entry for name, entry in entries.items() if isinstance(entry, ValueEntry)}
    repo.bring(stored.values())
    values = {name: repo.read_value(entry) for name, entry in stored.items()}
    return StoredItem(item, entries, tree.ties, values)


def respelled(item: StoredItem, spelling: Mapping[str, str]) -> StoredItem:
    """An item with some of its entries under other names, which no entry of it has."""
    return StoredItem(
        item.name,
        {spelling.get(name, name): entry for name, entry in item.entries.items()},
        tuple(tuple(spelling.get(name, name) for name in group) for group in item.ties),
        {spelling.get(name, name): value for name, value in item.values.items()},
    )


def full_name(item: str, name: str) -> str:
    """How messages and callers name an entry: ``item::name``; an item that is no container is its own name."""
    return item if name == ROOT else f"{item}{SEPARATOR}{name}"


def items_matching(commit: Commit, patterns: Iterable[str] | None) -> list[str]:
    """Names of a commit's items that patterns ask for, or of all.

    Args:
        commit: the commit.
        patterns: names, or globs as in ``fnmatch``; ``None`` for all.

    Raises:
        NotFound: a pattern that matches no item.
    """
    if patterns is None:
        return list(commit.items)
    found: set[str] = set()
    for pattern in patterns:
        hits = [item for item in commit.items if item == pattern or fnmatchcase(item, pattern)]
        if not hits:
            raise no_such_item(commit, pattern)
        found.update(hits)
    return [item for item in commit.items if item in found]


def no_such_item(commit: Commit, item: str) -> NotFound:
    """The error for an item that a commit lacks; it lists those there are."""
    names = ", ".join(commit.items) or "none"
    return NotFound(f"no item {item!r} in commit {commit.id.hex()[:8]}; it has {names}", item=item)


def names_matching(items: Iterable[StoredItem], patterns: Iterable[str]) -> dict[str, set[str]]:
    """Names that patterns ask for, with all below them and the containers around them, by item.

    Args:
        items: where to look.
        patterns: ``name`` in any item or ``item::name`` in those items; globs on either side.

    Returns:
        Items in which something matched, in order.

    Raises:
        NotFound: a pattern that matches nothing anywhere.
    """
    listed = list(items)
    found: dict[str, set[str]] = {}
    for pattern in patterns:
        hits = {item.name: names for item in listed if (names := _selected(item, pattern))}
        if not hits:
            raise NotFound(f"no tensor or value is named {pattern!r}; list the names with `moonclip ls`", name=pattern)
        for item, names in hits.items():
            found.setdefault(item, set()).update(names)
    return {item.name: found[item.name] for item in listed if item.name in found}


def _selected(item: StoredItem, pattern: str) -> list[str]:
    of_item, separator, name = pattern.rpartition(SEPARATOR)
    if separator and not fnmatchcase(item.name, of_item):
        return []
    try:
        return select(item.entries, [name])
    except NotFound:
        return list(item.entries) if not separator and item.name == pattern else []


def ancestors(name: str) -> Iterator[str]:
    """Names of the containers around an entry, the nearest first, the root last; the root has none."""
    while name != ROOT:
        name = parent_of(name)
        yield name


def is_container(entry: Entry | None) -> bool:
    """Whether a stored entry is a container with tensors below."""
    return isinstance(entry, ContainerEntry)
