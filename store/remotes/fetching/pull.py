"""Fetching a branch, and moving the local one forward to it."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import Conflict, NotFound
from ...history.walks import reached_among
from ...ids import CommitId, short
from ...naming.refnames import REMOTES, RefName, branch_name, remote_name, short_name
from ...repository import Repository
from ..remote import Remote
from .fetch import Fetched, fetch
from .obtaining import Progress


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull did.

    Attributes:
        branch: short name of the branch.
        old: what it held; ``None`` if it is new.
        new: what it holds.
        fetched: what was fetched.
    """

    branch: str
    old: CommitId | None
    new: CommitId
    fetched: Fetched


def pull(
    repo: Repository,
    remote: Remote,
    branch: str | None = None,
    *,
    items: Sequence[str] | None = None,
    depth: int | None = None,
    progress: Progress | None = None,
) -> Pulled:
    """Fetch a branch and move the local one of that name forward. What is ahead of the remote's stays as it is.

    Args:
        repo: the store.
        remote: the remote.
        branch: short name; the current branch if ``None``.
        items: as for :func:`~store.remotes.fetching.fetch.fetch`.
        depth: likewise.
        progress: likewise.

    Raises:
        Conflict: each of the two has commits that the other lacks, or stores of the remote differ; what was fetched
            stays.
        NotFound: the remote has no such branch.
        Corrupt: something of it is damaged there, or here.
        ReadOnly: the store cannot be written from here.
        RemoteError: the remote failed.
        OSError: the disk failed.
    """
    name = branch_name(repo.refs.head() if branch is None else branch)
    short_branch = short_name(name)
    fetched = fetch(repo, remote, [short_branch], items=items, depth=depth, progress=progress)
    fetched.require_sound()
    tracking = remote_name(remote.name, short_branch)
    tip, held = repo.refs.read(tracking), repo.refs.read(name)
    if short_branch in fetched.diverged:
        raise _different_ways(fetched, short_branch, name, tracking, is_here=held is not None)
    if tip is None:
        raise NotFound(f"{remote.name} has no branch {short_branch!r} that could be fetched", ref=tracking)
    if held is None or (held != tip and reached_among(repo.index, [tip], [held])):
        repo.set_ref(name, held, tip, "pull", f"from {remote.name}")
    elif held != tip and not reached_among(repo.index, [held], [tip]):
        raise Conflict(
            f"branch {short_branch!r} is at {short(held)} here and at {short(tip)} on {remote.name}, and each has"
            f" commits that the other lacks; go on from there on a branch of its own, `moonclip branch <name>"
            f" {short_name(tracking)}`, or average the weights of both, which leaves optimizers behind:"
            f" `moonclip merge --average {short_branch} {short_name(tracking)}`",
            ref=name,
            expected=held.hex(),
            got=tip.hex(),
        )
    new = repo.refs.read(name)
    assert new is not None
    return Pulled(short_branch, held, new, fetched)


def _different_ways(fetched: Fetched, branch: str, name: RefName, tracking: RefName, *, is_here: bool) -> Conflict:
    seen = [change.name for change in fetched.changes if change.name.startswith(f"{REMOTES}/")]
    others = sorted(short_name(each) for each in seen if each != tracking)
    ours = branch if is_here else short_name(tracking)
    return Conflict(
        f"stores that push to {fetched.remote} went different ways on branch {branch!r}; see {', '.join(others)}, and"
        f" merge what you want of them: `moonclip merge --average {' '.join([ours, *others])}`",
        ref=name,
    )
