"""The branches of a store as runs see them: where one is, and which others may be meant."""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches

from store.errors import MoonclipError, NotFound
from store.history.walks import first_parents
from store.ids import CommitId
from store.naming.meant import did_you_mean
from store.naming.refnames import BRANCHES, RefName, branch_name, short_name
from store.repository import Repository
from store.saving.publish import is_kept_for
from store.saving.underway import await_saves

from . import leaving

_log = logging.getLogger("moonclip")


def tip_of(repo: Repository, branch: str) -> CommitId | None:
    """The commit of a branch, by short name; ``None`` if there is no such branch yet."""
    return repo.refs.read(branch_name(branch))


def settled_tip(repo: Repository, branch: str) -> CommitId | None:
    """The same to go on from: not before saves under way there have ended, as one of a run that was killed may be."""
    leaving.await_saves(repo.layout.root)
    if not repo.read_only:
        await_saves(repo.layout.root, repo.files, branch)
    return tip_of(repo, branch)


def branches_of(repo: Repository) -> dict[str, CommitId]:
    """All branches, by short name."""
    return {short_name(RefName(name)): commit for name, commit in repo.refs.list(f"{BRANCHES}/").items()}


def require_branch(repo: Repository, branch: str) -> CommitId:
    """The commit of a branch that has to exist.

    Raises:
        NotFound: it does not; the message lists those that do.
    """
    tip = settled_tip(repo, branch)
    if tip is None:
        known = listed_for(branch, branches_of(repo)) or "none"
        raise NotFound(f"no branch {branch!r}; there are: {known}; make it with branch({branch!r})", branch=branch)
    return tip


def tell_what_was_kept(repo: Repository, branch: str, tip: CommitId) -> None:
    """Warn of commits that a run went on with elsewhere when somebody else had moved its branch: they may be meant.

    What is damaged is passed over: it has nothing to do with the branch, or whoever reads that will say so.
    """
    with suppress(MoonclipError, OSError):
        names = [name for name in map(short_name, repo.refs.names(f"{BRANCHES}/")) if is_kept_for(branch, name)]
        step = last_step(repo, tip) if names else None
        for name in names:
            with suppress(MoonclipError, OSError):
                _tell_if_ahead(repo, branch, step, name)


def _tell_if_ahead(repo: Repository, branch: str, step: int | None, name: str) -> None:
    """Warn of one branch that is named as if it had been made so, if it was and has got further than ``step``."""
    kept = tip_of(repo, name)
    kept_step = None if kept is None else last_step(repo, kept)
    first = repo.index.commits_with_prefix(name.rpartition("+")[2])
    was_meant_for = {row.branch for commit in first if (row := repo.index.commit(commit)) is not None}
    if kept_step is None or (step is not None and kept_step <= step) or branch not in was_meant_for:
        return
    if any(line.new == kept for line in repo.refs.reflog(branch_name(branch))):
        return  # somebody had the branch go on from there, and took it back
    _log.warning(
        "branch %r was moved while a run saved to it; that run went on as %r, to step %d, and this one goes on from %s."
        " To go on from there, resume(branch=%r, …)",
        branch,
        name,
        kept_step,
        "a commit without a step" if step is None else f"step {step}",
        name,
    )


def listed_for(name: str, known: Collection[str]) -> str:
    """Names that there are, for whoever gave one that there is not; those that may be meant once more."""
    near = get_close_matches(name, sorted(known))
    hint = f" ({did_you_mean(near)})" if near else ""
    return ", ".join(sorted(known)) + hint


@contextmanager
def telling_it_is_empty(repo: Repository) -> Iterator[None]:
    """Say of a store in which nothing was saved yet that it is one, and where it lies: another may be meant.

    Raises:
        NotFound: as it was raised inside.
    """
    try:
        yield
    except NotFound as error:
        if type(error) is not NotFound or repo.refs.names() or repo.refs.logged_names():
            raise
        revision = error.details.get("revision")
        named = "" if revision is None else f"{revision!r} names nothing: "
        raise NotFound(
            f"{named}the store at {repo.layout.root} has no commit yet; if it should have some, look at the path",
            **error.details,
        ) from error


def last_step(repo: Repository, commit: CommitId) -> int | None:
    """The step of a commit, or of the nearest one before it that has one."""
    return next((row.step for row in first_parents(repo.lookup, commit) if row.step is not None), None)
