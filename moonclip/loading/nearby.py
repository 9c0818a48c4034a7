"""Where else a thing is that a commit lacks: the nearest commit that has it, for whoever is told that it is missing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from typing import Final

from store.errors import MoonclipError, NotFound
from store.format.objects import Commit
from store.history.walks import newest_first
from store.ids import CommitId, short
from store.index import CommitRow
from store.naming.refnames import BRANCHES
from store.repository import Repository
from store.upkeep.absences import expected_items

from .stored import SEPARATOR

_LOOK_BACK: Final = 64
"""Commits before the one that was asked, beside tips of branches: an error may take some milliseconds, not more."""

Has = Callable[[Commit, CommitId], bool]


@contextmanager
def telling_where_else(repo: Repository, commit: Commit) -> Iterator[None]:
    """Add to what an error says of an item or name that a commit lacks which nearby commit has it, if one does.

    Raises:
        NotFound: as it was raised inside.
    """
    try:
        yield
    except NotFound as error:
        item, name = error.details.get("item"), error.details.get("name")
        where = "" if type(error) is not NotFound else _where(repo, commit, item, name)
        if not where:
            raise
        raise NotFound(f"{error}{where}", **error.details) from error


def item_elsewhere(repo: Repository, commit: Commit, item: str) -> str:
    """What to add to a line about an item that a commit lacks; empty if none that is near has it."""
    return _where(repo, commit, item, None)


def _where(repo: Repository, commit: Commit, item: str | None, name: str | None) -> str:
    with suppress(MoonclipError, OSError):  # that it is missing is what is told
        if item is not None:
            return _told(_nearest(repo, commit, lambda other, of: item in expected_items(other, repo.absences, of)))
        if name is not None:
            return _told(_nearest(repo, commit, _has_name(repo, name)))
    return ""


def _nearest(repo: Repository, commit: Commit, has: Has) -> CommitRow | None:
    """The newest of the commits before one, or else of the branches' tips. Reads nothing from remotes."""
    before = islice(newest_first(repo.lookup, commit.parents), _LOOK_BACK)
    tips = set(repo.refs.list(f"{BRANCHES}/").values())
    at_tips = filter(None, map(repo.lookup.commit, tips))
    newest_tips = sorted(at_tips, key=lambda row: row.sequence, reverse=True)
    for row in chain(before, islice(newest_tips, _LOOK_BACK)):
        if has(repo.commit(row.id), row.id):
            return row
    return None


def _has_name(repo: Repository, full_name: str) -> Has:
    """Whether a commit has a tensor, value or container of that name. Trees that were looked into are remembered."""
    of_item, separator, name = full_name.rpartition(SEPARATOR)
    known: dict[bytes, bool] = {}

    def has(commit: Commit, commit_id: CommitId) -> bool:
        for item, tree in expected_items(commit, repo.absences, commit_id).items():
            if separator and item != of_item:
                continue
            if tree not in known:
                known[tree] = name in repo.tree(commit, item)
            if known[tree]:
                return True
        return False

    return has


def _told(row: CommitRow | None) -> str:
    if row is None:
        return ""
    step = "" if row.step is None else f", step {row.step}"
    return f"; the nearest commit that has it is {short(row.id)} ({row.branch}{step})"
