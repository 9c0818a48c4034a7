"""The branches of a remote, as they were last seen from here."""

from collections.abc import Collection

from ..ids import CommitId
from ..naming.refnames import REMOTES
from ..repository import DEFAULT_BRANCH, Repository
from .refmerge import is_of_one_store


def tracked_branches(repo: Repository, remote: str, diverged: Collection[str] = ()) -> dict[str, CommitId]:
    """Short names of a remote's branches, and their tips. None that one store alone has so.

    Args:
        repo: the store.
        remote: the remote's name.
        diverged: branches on which stores went different ways, as a fetch of all told.
    """
    prefix = f"{REMOTES}/{remote}/"
    tips = {name.removeprefix(prefix): commit for name, commit in repo.refs.list(prefix).items()}
    return {name: commit for name, commit in tips.items() if not is_of_one_store(name, diverged)}


def newest_branch(repo: Repository, remote: str, diverged: Collection[str] = ()) -> str | None:
    """The branch to begin with where nobody asked for one: ``main``, else the one with the latest commit.

    Args:
        repo: the store.
        remote: the remote's name.
        diverged: as for :func:`tracked_branches`.

    Returns:
        Its short name; ``None`` if there is none.
    """
    tips = tracked_branches(repo, remote, diverged)
    return max(tips, key=lambda name: (name == DEFAULT_BRANCH, repo.commit(tips[name]).time_ns, name), default=None)
