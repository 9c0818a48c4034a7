"""Remotes in directories, seen from outside: what they hold, and pushes that are held up."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from store.disk.files import Files
from store.ids import CommitId
from store.naming.refnames import branch_name
from store.remotes.configured import RemoteConfig, add_remote
from store.remotes.remote import open_remote
from store.repository import Repository


def remote_at(repo: Repository, path: Path) -> Path:
    """Make a directory the remote ``origin`` of a store."""
    path.mkdir(exist_ok=True)
    add_remote(repo.layout, repo.files, RemoteConfig("origin", str(path)))
    return path


def remote_tips(repo: Repository) -> dict[str, CommitId | None]:
    """What the refs of ``origin`` name, as the remote says."""
    with open_remote(repo, "origin") as remote:
        return {key.name: ref.commit for key, ref in remote.refs().items()}


def remote_tip(root: Path, branch: str = "main") -> CommitId | None:
    """Where a branch of the remote ``origin`` of a store is; ``None`` if it is not there."""
    with Repository.open(root, thread_count=1) as repo:
        return remote_tips(repo).get(branch_name(branch))


@contextmanager
def refs_of_remote_held(path: Path) -> Iterator[None]:
    """No push to a directory gets further than its last step inside: the ref."""
    with Files().lock_exclusive(path / ".lock"):
        yield


def push_count(repo: Repository, branch: str = "main") -> int:
    """How many pushes have moved a branch of ``origin`` from here."""
    return sum(line.action == "push" for line in repo.refs.reflog(f"remotes/origin/{branch}"))
