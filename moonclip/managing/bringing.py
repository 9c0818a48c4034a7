"""What a store without any branch gets from a remote before a run is taken up: history, and the content it needs."""

from collections.abc import Sequence
from typing import Final

from store.errors import Conflict, NotFound
from store.naming.refnames import branch_name
from store.remotes.configured import set_lazy
from store.remotes.fetching.fetch import fetch
from store.remotes.remote import Remote
from store.remotes.tracked import newest_branch, tracked_branches
from store.repository import Repository

_FIRST: Final = ("model",)
"""Items that come before all others: with these somebody can go on, whatever becomes of the connection."""


def bring(
    repo: Repository, remote: Remote, branch: str, items: Sequence[str], *, rev: str | None = None, is_asked: bool
) -> str | None:
    """Bring a branch of a remote, with some items of its tip; what else it reaches is read from there when asked for.

    The branch is made last: if that does not come about, another try goes on from here.

    Args:
        repo: a store without any branch.
        remote: the remote.
        branch: the branch.
        items: names of the items that are needed first; all if there are none.
        rev: the commit whose items these are; the branch's tip if ``None``.
        is_asked: whether somebody asked for that very branch. Else it is the remote's ``main``, or its newest, if it
            has none of that name.

    Returns:
        The branch; ``None`` if the remote has none.

    Raises:
        Conflict: stores that push there went different ways on it, or on all that it has.
        NotFound: the remote has branches, but not the one that was asked for; or ``rev`` names nothing.
        RemoteError: it did not do what was asked of it.
        Corrupt: what it has is damaged.
    """
    fetched = fetch(repo, remote, lazy=True)
    fetched.require_sound()
    tips = tracked_branches(repo, remote.name, fetched.diverged)
    if branch not in tips:
        if branch in fetched.diverged or (fetched.diverged and not tips):
            raise _diverged(remote.name, fetched.diverged)
        newest = newest_branch(repo, remote.name, fetched.diverged)
        if newest is None:
            return None
        if is_asked:
            known = ", ".join(sorted(tips))
            raise NotFound(f"remote {remote.name!r} has no branch {branch!r}; it has: {known}", branch=branch)
        branch = newest
    if rev is None:
        _bring_items(repo, remote, branch, list(repo.commit(tips[branch]).items), items)
    set_lazy(repo.layout, repo.files, remote.name, lazy=True)
    repo.set_ref(branch_name(branch), None, tips[branch], "fetch", f"from {remote.name}")
    if rev is not None:
        fetch(repo, remote, commits=[repo.resolve(rev, branch)]).require_sound()
    return branch


def _bring_items(repo: Repository, remote: Remote, branch: str, known: Sequence[str], asked: Sequence[str]) -> None:
    wanted = [item for item in known if item in asked] or list(known)
    first = [item for item in wanted if item in _FIRST]
    for items in (first, [item for item in wanted if item not in first]):
        if items:
            fetch(repo, remote, [branch], items=items, depth=1).require_sound()


def _diverged(remote: str, branches: Sequence[str]) -> Conflict:
    return Conflict(
        f"stores that push to {remote!r} went different ways on {', '.join(map(repr, branches))}: `moonclip branch -r`"
        " has what each of them has; make a branch from one, or merge them",
        remote=remote,
    )
