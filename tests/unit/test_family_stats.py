"""What models take beside those before them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.history.family import Member, members
from store.history.stats import collect
from store.ids import CommitId
from store.repository import Repository
from store.upkeep.retention import Keep
from tests.arrays import Array, drifted, noise, save
from tests.pruning import prune

ZEROS = Array("float32", (5000,), bytes(20_000))
STATE = {"noise": noise("w", 3000), "zeros": ZEROS, "tiny": noise("t", 5)}


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        yield repo


def require_balance(repo: Repository, commits: list[CommitId]) -> list[Member]:
    """Every byte is in one of the parts, and all commits of a store together take what the store takes."""
    listed = list(members(repo, commits))
    for one in listed:
        assert one.raw_bytes == one.inline_bytes + one.shared_bytes + one.delta_bytes + one.own_bytes
    stats = collect(repo)
    assert sum(one.added_bytes for one in listed) == stats.chunk_stored_bytes + stats.tree_stored_bytes
    return listed


def test_a_base_and_what_comes_from_it(repo: Repository) -> None:
    base = save(repo, STATE)
    moved = {**STATE, "noise": drifted(STATE["noise"], "d")}
    tuned = save(repo, moved, last=base.last)
    again = save(repo, {**moved, "copy": ZEROS}, last=tuned.last)
    first, second, third = require_balance(repo, [base.commit, tuned.commit, again.commit])
    assert (first.raw_bytes, first.inline_bytes, first.shared_bytes, first.own_bytes) == (32_020, 20, 0, 32_000)
    assert (second.shared_bytes, second.delta_bytes, second.own_bytes) == (20_000, 12_000, 0)
    assert second.delta_stored_bytes < 12_000
    assert (third.shared_bytes, third.delta_bytes, third.own_bytes) == (52_000, 0, 0)
    assert third.added_bytes == third.tree_stored_bytes > 0


def test_the_order_decides_whose_bytes_they_are(repo: Repository) -> None:
    first = save(repo, STATE)
    second = save(repo, {**STATE, "more": noise("m", 1000)}, last=first.last)
    turned = require_balance(repo, [second.commit, first.commit])
    assert (turned[0].own_bytes, turned[1].own_bytes) == (36_000, 0)
    (twice, nothing) = members(repo, [first.commit, first.commit])
    assert (twice.own_bytes, nothing.added_bytes) == (32_000, 0)


def test_what_was_pruned_counts_for_nothing(repo: Repository) -> None:
    first = save(repo, STATE)
    second = save(repo, {"other": noise("o", 3000)}, last=first.last)
    prune(repo, Keep(last=1))
    gone, here = members(repo, [first.commit, second.commit])
    assert (gone.raw_bytes, gone.own_bytes, here.own_bytes) == (0, 0, 12_000)
    assert gone.lacks == tuple(repo.commit(first.commit).items)
    assert here.lacks == ()
