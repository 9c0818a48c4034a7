"""Stores with garbage in them, for tests of what removes it."""

from hashlib import sha256
from pathlib import Path

from store.ids import CommitId
from store.naming.refnames import branch_name
from store.repository import Repository
from tests.arrays import State, drifted, noise, save
from tools.crash.operations import expire_reflogs

__all__ = ["content_of", "expire_reflogs", "forget_branch", "line", "pack_bytes"]


def forget_branch(repo: Repository, branch: str) -> None:
    """Delete a branch, long ago."""
    repo.delete_ref(branch_name(branch))
    expire_reflogs(repo)


def line(repo: Repository, branch: str, count: int, seed: object = 0, *, width: int = 3000) -> dict[CommitId, State]:
    """Commits on a branch: one tensor drifts, one is renewed each time, one stays."""
    state: State = {"drifts": noise(("drifts", seed), width), "stays": noise(("stays", seed), 400)}
    made: dict[CommitId, State] = {}
    last = None
    for step in range(count):
        state = {**state, "drifts": drifted(state["drifts"], step), "new": noise(("new", seed, step), 300)}
        saved = save(repo, state, branch=branch, step=step, last=last)
        made[saved.commit], last = state, saved.last
    return made


def pack_bytes(repo: Repository) -> int:
    """Length of all packs."""
    return sum(path.stat().st_size for path in repo.layout.packs.iterdir())


def content_of(root: Path) -> dict[str, bytes]:
    """Every file below a directory, LMDB's lock aside, which readers write to."""
    files = (path for path in root.rglob("*") if path.is_file() and path.name != "lock.mdb")
    return {str(path.relative_to(root)): sha256(path.read_bytes()).digest() for path in files}
