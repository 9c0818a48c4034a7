"""The refs of a remote, as one store sees them. Pure.

Where all stores share refs there is nothing to merge. Where each store keeps its own, one name may stand for several
commits: if one of these has all the others among its ancestors, that is it. Otherwise lines *diverge*: each store goes
on with its own, and sees those of others under the first digits of their ids.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ..ids import CommitId
from ..naming.refnames import BRANCHES, REMOTES, RefName, is_full_name, remote_name, short_name
from .names import RefKey

SHORT_STORE_DIGITS = 8
"""Digits of a store's id that tell it from the others of a remote."""

Contains = Callable[[CommitId, CommitId], bool]
"""Whether the first commit is the second, or has it among its ancestors."""


@dataclass(slots=True)
class Merged:
    """What a remote's refs come to.

    Attributes:
        tips: what each branch and tag names, by its full name there.
        others: of those that diverge, what other stores have, by the digits of the store and full name.
        gone: what was there and was deleted.
    """

    tips: dict[RefName, CommitId] = field(default_factory=dict)
    others: dict[tuple[str, RefName], CommitId] = field(default_factory=dict)
    gone: set[RefName] = field(default_factory=set)

    @property
    def diverged(self) -> list[str]:
        """Short names of branches that diverge."""
        names = {name for _, name in self.others if name.startswith(f"{BRANCHES}/")}
        return sorted(short_name(name) for name in names)


def merge(refs: Mapping[RefKey, CommitId | None], own: str, contains: Contains) -> Merged:
    """Merge the refs of all stores.

    Args:
        refs: what each holds; ``None`` if it was deleted.
        own: id of the store that asks.
        contains: answers for the commits that they name.
    """
    merged = Merged()
    for name, by_store in _by_name(refs).items():
        if not by_store:
            merged.gone.add(name)
        elif (newest := _newest(set(by_store.values()), contains)) is not None:
            merged.tips[name] = newest
        else:
            _take_apart(merged, name, by_store, own)
    return merged


def tracking_name(remote: str, name: RefName, store: str | None = None) -> RefName | None:
    """The ref here that remembers where a branch of a remote is.

    Args:
        remote: the remote's name.
        name: the branch's full name there.
        store: digits of the one store that has it so; ``None`` if it is everybody's.

    Returns:
        Its full name; ``None`` for a tag, and for a branch after which no ref can be called.
    """
    short = short_name(name) if store is None else f"{store}/{short_name(name)}"
    is_branch = name.startswith(f"{BRANCHES}/")
    return remote_name(remote, short) if is_branch and is_full_name(f"{REMOTES}/{remote}/{short}") else None


def is_of_one_store(short: str, diverged: Collection[str]) -> bool:
    """Whether a remote-tracking branch is what one store alone has, of branches on which stores went different ways.

    Args:
        short: what it is called behind the remote's name.
        diverged: short names of these branches.
    """
    digits, _, branch = short.partition("/")
    return branch in diverged and re.fullmatch(rf"[0-9a-f]{{{SHORT_STORE_DIGITS}}}", digits) is not None


def _by_name(refs: Mapping[RefKey, CommitId | None]) -> dict[RefName, dict[str | None, CommitId]]:
    """What each store has under each name; nothing if it was deleted."""
    found: dict[RefName, dict[str | None, CommitId]] = {}
    for key, commit in refs.items():
        held = found.setdefault(key.name, {})
        if commit is not None:
            held[key.store] = commit
    return found


def _newest(commits: Iterable[CommitId], contains: Contains) -> CommitId | None:
    """The one that contains the others."""
    newest, *others = sorted(commits)
    for other in others:
        if contains(other, newest):
            newest = other
    return newest if all(contains(newest, other) for other in others) else None


def _take_apart(merged: Merged, name: RefName, by_store: Mapping[str | None, CommitId], own: str) -> None:
    plain = by_store.get(None, by_store.get(own))
    if plain is not None:
        merged.tips[name] = plain
    for store, commit in by_store.items():
        if store is not None and store != own and commit != plain:
            merged.others[store[:SHORT_STORE_DIGITS], name] = commit
