"""Boxes that a rank says are what they were in its last save: taken from there, unseen, or refused."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from moonclip.ranks.saving import RankPart
from store.boxes import Box
from store.errors import Incompatible, NotUnchanged
from store.parallel import Threads
from store.repository import Repository
from store.saving.rankbases import RankMemory
from store.saving.ranks import RankSaved, save_rank
from store.saving.shards import BoxInput, RankItem, ShardsInput
from tests.arrays import entries_of, read
from tools.crash.ranks import request

SHAPE = (8, 500)
HALVES = (Box((0, 0), (4, 500)), Box((4, 0), (4, 500)))
ARRAY = np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32)


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "s", thread_count=1) as opened:
        yield opened


def item(*given: np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None, stored: str | None = None) -> RankItem:
    """Both halves, by what they hold; ``None`` for one that is unchanged."""
    data = [None if half is None else memoryview(half.tobytes()) for half in given]
    return RankItem("model", {"w": ShardsInput(0, "float32", SHAPE, tuple(map(BoxInput, HALVES, data)), stored)})


def saved(repo: Repository, given: RankItem, last: RankMemory | None = None) -> RankSaved:
    with repo.create_snapshot(request(repo), 1, ranks_remember=last is not None) as snapshot:
        done = save_rank(repo.layout.root, snapshot.id, 0, [given], last=last, threads=repo.threads)
        snapshot.finalize()
    return done


@pytest.mark.parametrize("stored", [None, "bfloat16"])
def test_what_is_unchanged_costs_nothing_and_is_there(repo: Repository, stored: str | None) -> None:
    first = saved(repo, item(ARRAY[:4], ARRAY[4:], stored=stored))
    whole = read(repo, repo.resolve("main"))
    second = saved(repo, item(None, ARRAY[4:], stored=stored), first.memory)
    assert second.counts.chunk_count == second.counts.unchanged_count == 1
    third = saved(repo, item(None, None, stored=stored), second.memory)
    assert third.counts.chunk_count == 0
    assert read(repo, repo.resolve("main")) == whole
    changed = ARRAY[:4].copy()
    changed[0, 0] += 1
    fourth = saved(repo, item(changed, None, stored=stored), third.memory)  # against what only the store has by now
    assert (fourth.counts.chunk_count, fourth.counts.delta_count) == (1, 1)
    assert (
        entries_of(repo, repo.resolve("main"))["w"].chunks[1:]
        == entries_of(repo, repo.resolve("main~1"))["w"].chunks[1:]
    )


def test_what_is_not_known_to_be_unchanged_is_refused(repo: Repository) -> None:
    first = saved(repo, item(ARRAY[:4], ARRAY[4:]))
    with pytest.raises(NotUnchanged, match="model::w is not as it was in the last save"):
        saved(repo, item(None, ARRAY[4:]))
    with pytest.raises(NotUnchanged, match="model::w"):
        saved(repo, item(None, ARRAY[4:], stored="bfloat16"), first.memory)
    with pytest.raises(Incompatible, match="model::w: nothing tells a scale"):
        saved(repo, item(None, ARRAY[4:], stored="float8_e4m3fn"), first.memory)


def test_a_part_that_is_stored_again_is_asked_for_in_full(repo: Repository) -> None:
    asked: list[bool] = []

    def items(in_full: bool) -> list[RankItem]:
        asked.append(in_full)
        return [item(ARRAY[:4] if in_full else None, ARRAY[4:])]

    memory = saved(repo, item(ARRAY[:4], ARRAY[4:])).memory
    with repo.create_snapshot(request(repo), 1, ranks_remember=True) as snapshot, closing(Threads(1)) as threads:
        part = RankPart(repo.layout.root, snapshot.id, 0, items, memory, threads, repo.files)
        assert part.store() == part.store(again=True) == {"error": None}
        snapshot.finalize()
    assert asked == [False, True]
    assert read(repo, repo.resolve("main"))["w"].data == ARRAY.tobytes()
