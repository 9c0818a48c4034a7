"""A large table of which every save finds few rows changed: it takes what changed, and stays readable whatever goes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from store.fsck import repair
from store.gc import collect
from store.ids import CommitId
from store.limits import SAVE_CHAIN_DEPTH
from store.repository import Repository
from store.saving.saver import Saved
from store.upkeep.retention import Keep
from tests.arrays import Array, State, chunk_of, damage, depths, entries_of, read, require_whole, save
from tests.collecting import expire_reflogs
from tests.pruning import prune

ROWS: Final = 8192
COLUMNS: Final = 128
TOUCHED: Final = ROWS // 100
SAVE_COUNT: Final = 30


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        yield repo


def tables(count: int) -> Iterator[State]:
    """A table, and what it is after each time that some rows were written anew."""
    chance = np.random.default_rng(0)
    table = chance.standard_normal((ROWS, COLUMNS), np.float32)
    for _ in range(count):
        yield {"table": Array("float32", table.shape, table.tobytes())}
        table[chance.integers(ROWS, size=TOUCHED)] = chance.standard_normal((TOUCHED, COLUMNS), np.float32)


def run(repo: Repository, count: int) -> tuple[dict[CommitId, State], list[Saved]]:
    made: dict[CommitId, State] = {}
    saves: list[Saved] = []
    for state in tables(count):
        saves.append(save(repo, state, last=saves[-1].last if saves else None))
        made[saves[-1].commit] = state
    return made, saves


def test_b7_thirty_saves_of_which_each_changed_one_row_in_a_hundred(repo: Repository) -> None:
    made, saves = run(repo, SAVE_COUNT)
    raw_bytes = ROWS * COLUMNS * 4
    assert sum(saved.counts.stored_bytes for saved in saves[1:]) / (SAVE_COUNT - 1) <= 0.03 * raw_bytes
    assert max(saved.counts.stored_bytes for saved in saves[1:]) <= 0.1 * raw_bytes  # no save is like the first
    assert max(max(depths(repo, commit)) for commit in made) == SAVE_CHAIN_DEPTH
    require_whole(repo, made)


def test_what_older_bases_belong_to_may_be_dropped(repo: Repository) -> None:
    made, _ = run(repo, 12)
    tip = list(made)[-1]
    assert min(depths(repo, tip)) > 0  # it stands on chunks of the first commit
    assert prune(repo, Keep(last=1)) == list(made)[:-1]
    expire_reflogs(repo)
    collect(repo)
    require_whole(repo, {tip: made[tip]})
    last = save(repo, made[tip]).last
    state = {"table": _nudged(made[tip]["table"])}
    saved = save(repo, state, last=last)
    assert saved.counts.delta_count == saved.counts.chunk_count
    require_whole(repo, {tip: made[tip], saved.commit: state})


def test_what_stands_on_a_base_in_quarantine_is_stored_in_full(repo: Repository) -> None:
    made, saves = run(repo, 8)
    first, tip = saves[0].commit, saves[-1].commit
    chunk_count = len(entries_of(repo, first)["table"].chunks)
    for number in range(chunk_count):
        damage(repo, chunk_of(repo, first, "table", number))
    repo.close()
    repair(repo.layout.root)
    with Repository.open(repo.layout.root) as mended:
        state = {"table": _nudged(made[tip]["table"])}
        saved = save(mended, state, last=saves[-1].last)  # what was last saved is still in memory
        assert (saved.counts.chunk_count, saved.counts.delta_count) == (chunk_count, 0)
        assert read(mended, saved.commit) == state


def _nudged(array: Array) -> Array:
    words = np.frombuffer(array.data, np.float32).copy()
    words[::ROWS] += 1
    return Array(array.dtype, array.shape, words.tobytes())
