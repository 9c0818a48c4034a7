"""Models of a store as a family: what each of them takes, and what it comes from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from store.history.family import Member, members
from store.ids import CommitId
from store.naming.refnames import BRANCHES, short_name
from store.repository import Repository

from .lineage import Derived, derived


@dataclass(frozen=True, slots=True)
class Listed:
    """A model.

    Attributes:
        names: what it was asked for as, or the branches whose tip it is.
        takes: what it takes beside those listed before it.
        derived: what it says of its base, if anything.
        base_names: names of that, if it is listed too.
    """

    names: tuple[str, ...]
    takes: Member
    derived: Derived | None
    base_names: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        takes, base = self.takes, self.derived
        return {
            "names": list(self.names),
            "commit": takes.commit.hex(),
            "lacks": list(takes.lacks),
            "base": None if base is None else base.base.hex(),
            "base_names": list(self.base_names),
            "found_by": None if base is None else base.how,
            "estimate": None if base is None else base.estimate,
            "raw_bytes": takes.raw_bytes,
            "inline_bytes": takes.inline_bytes,
            "shared_bytes": takes.shared_bytes,
            "delta_bytes": takes.delta_bytes,
            "own_bytes": takes.own_bytes,
            "added_bytes": takes.added_bytes,
        }


def family(repo: Repository, revisions: Sequence[str]) -> list[Listed]:
    """Models in the order in which they came into the store.

    Args:
        repo: the store.
        revisions: which; the tips of all branches if none is given.

    Raises:
        NotFound: there is no such revision; or something is missing.
        Incompatible: something that is no revision.
        Corrupt: something is damaged.
    """
    names = _named(repo, revisions)
    ordered = sorted(names, key=lambda commit: _arrival(repo, commit))
    listed = []
    for takes in members(repo, ordered):
        base = derived(repo.commit(takes.commit))
        base_names = names.get(base.base, []) if base is not None else []
        listed.append(Listed(tuple(names[takes.commit]), takes, base, tuple(base_names)))
    return listed


def _named(repo: Repository, revisions: Sequence[str]) -> dict[CommitId, list[str]]:
    pairs = [(text, repo.resolve(text)) for text in revisions]
    if not revisions:
        pairs = [(short_name(name), commit) for name, commit in repo.refs.list(f"{BRANCHES}/").items()]
    names: dict[CommitId, list[str]] = {}
    for text, commit in pairs:
        names.setdefault(commit, []).append(text)
    return names


def _arrival(repo: Repository, commit: CommitId) -> int:
    row = repo.lookup.commit(commit)
    return row.sequence if row is not None else 0
