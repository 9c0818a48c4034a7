"""Tensors and values of a commit, by name."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from store.errors import Ambiguous, NotFound
from store.format.entries import ContainerEntry, Entry
from store.format.objects import Commit
from store.format.trees import Tree
from store.naming.meant import did_you_mean
from store.repository import Repository

from ..loading.selecting import is_called
from ..loading.stored import SEPARATOR, full_name

_NEAR_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry of a commit.

    Attributes:
        item: the item it is in.
        name: its name there.
        entry: what is stored.
    """

    item: str
    name: str
    entry: Entry

    @property
    def full_name(self) -> str:
        """``item::name``."""
        return full_name(self.item, self.name)


def entries_of(repo: Repository, commit: Commit, patterns: Sequence[str] = ()) -> list[Listed]:
    """Tensors and values, by item and name; containers are left out, since their content has names of its own.

    Args:
        repo: the store.
        commit: the commit.
        patterns: as for :func:`moonclip.loading.stored.names_matching`; all if there are none.

    Raises:
        NotFound: a pattern that matches nothing.
        Pruned: the commit was pruned.
        Corrupt: a tree is damaged.
    """
    listed = [one for one in _all(repo, commit) if not isinstance(one.entry, ContainerEntry)]
    if not patterns:
        return listed
    wanted: set[tuple[str, str]] = set()
    for pattern in patterns:
        hits = {(one.item, one.name) for one in listed if is_called(one.item, one.name, pattern)}
        if not hits:
            raise _unknown(pattern, [one.full_name for one in listed])
        wanted |= hits
    return [one for one in listed if (one.item, one.name) in wanted]


def find(repo: Repository, commit: Commit, text: str) -> Listed:
    """The one entry that is called so: ``item::name``, an item that is itself a value, or a name in any item.

    Raises:
        NotFound: there is none.
        Pruned: the commit was pruned.
        Ambiguous: several items have it.
        Corrupt: a tree is damaged.
    """
    trees = {each: repo.tree(commit, each) for each in _here(repo, commit)}
    found = _called(trees, text)
    if not found:
        raise _unknown(text, _full_names(trees))
    if len(found) > 1:
        candidates = [one.full_name for one in found]
        raise Ambiguous(f"{text!r} is in several items: {', '.join(candidates)}", candidates=candidates)
    return found[0]


def holds(repo: Repository, commit: Commit, text: str) -> bool:
    """Whether any entry is called so, as :func:`find` understands it."""
    return bool(_called({each: repo.tree(commit, each) for each in repo.items(commit)}, text))


def _here(repo: Repository, commit: Commit) -> Iterable[str]:
    """Items that can be read; raises Pruned if all of them are gone."""
    items = repo.items(commit)
    if not items:
        repo.absences.require(commit.id)
    return items


def _called(trees: Mapping[str, Tree], text: str) -> list[Listed]:
    item, separator, name = text.rpartition(SEPARATOR)
    found = [
        Listed(each, name, tree[name])
        for each, tree in trees.items()
        if (not separator or each == item) and name in tree
    ]
    if not separator and text in trees and "" in trees[text]:
        found.append(Listed(text, "", trees[text][""]))
    return found


def _all(repo: Repository, commit: Commit) -> Iterator[Listed]:
    for item in _here(repo, commit):
        for name, entry in repo.tree(commit, item):
            yield Listed(item, name, entry)


def _full_names(trees: dict[str, Tree]) -> Iterator[str]:
    return (full_name(item, name) for item, tree in trees.items() for name, _ in tree)


def _unknown(text: str, known: Iterable[str]) -> NotFound:
    listed = list(known)
    elsewhere = [name for name in listed if name.rpartition(SEPARATOR)[2] == text.rpartition(SEPARATOR)[2]]
    near = list(dict.fromkeys([*elsewhere, *difflib.get_close_matches(text, listed)]))[:_NEAR_SHOWN]
    hint = did_you_mean(near) if near else "`moonclip ls` lists them"
    return NotFound(f"no tensor or value is named {text!r}; {hint}", name=text)
