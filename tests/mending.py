"""Stores with a past that are damaged, and copies of them from before."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from store.fsck import StoreSource, fsck
from store.ids import CommitId
from store.naming.refnames import tag_name
from store.repository import Repository
from tests.arrays import Array, chunk_of, damage, drifted, flip, noise, pack_file, read, save

STATE = {"encoder/w": noise("w", 3000), "head/w": noise("h", 400), "b": noise("b", 7)}
NEXT = {**STATE, "encoder/w": drifted(STATE["encoder/w"], 1), "head/w": noise("h2", 400)}
LAST = {**NEXT, "encoder/w": drifted(NEXT["encoder/w"], 2)}

States = dict[CommitId, dict[str, Array]]


def fill(repo: Repository) -> States:
    """Three commits on ``main``, the last with deltas, each in a pack of its own; the tag ``best`` is on the first."""
    made: States = {}
    last = None
    for step, state in enumerate((STATE, NEXT, LAST)):
        saved = save(repo, state, step=step, last=last)
        made[saved.commit], last = state, saved.last
    repo.set_ref(tag_name("best"), None, next(iter(made)), "tag")
    return made


@contextmanager
def copied(root: Path, to: Path) -> Iterator[Repository]:
    """A copy of a store, open to be read."""
    shutil.copytree(root, to)
    with Repository.open(to, read_only=True) as copy:
        yield copy


def harm(repo: Repository, states: States) -> None:
    """Damage of every kind; what the first commit holds can still be read."""
    first, second, third = states
    damage(repo, chunk_of(repo, second, "head/w"))
    flip(pack_file(repo, repo.index.places(third)[0].pack), -3)
    flip(pack_file(repo, repo.index.places(first)[0].pack), 3)
    (repo.layout.root / "refs" / "tags" / "best").write_text("garbage\n")
    (repo.layout.root / "HEAD").write_text("garbage\n")


def require_sound(root: Path, states: States) -> None:
    """All is there and nothing is wrong."""
    with Repository.open(root, thread_count=1) as repo:
        assert {commit: read(repo, commit) for commit in states} == states
        assert fsck(repo, full=True).findings == []


def require_no_less(root: Path, states: States) -> None:
    """What could be read after :func:`harm` can be."""
    first = next(iter(states))
    with Repository.open(root, thread_count=1, read_only=True) as repo:
        assert read(repo, first) == states[first]


__all__ = [
    "LAST",
    "NEXT",
    "STATE",
    "States",
    "StoreSource",
    "copied",
    "fill",
    "harm",
    "require_no_less",
    "require_sound",
]
