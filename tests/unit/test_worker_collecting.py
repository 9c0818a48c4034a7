"""gc in a worker: when it pays, and that it stands still while a save is made."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.repository import Repository
from store.upkeep.retention import Keep
from store.worker import tidying
from store.worker.collecting import Collector
from store.worker.tidying import Tidier
from tests.arrays import noise, read, save
from tests.pruning import is_pruned, prune

LAST = Keep(last=1)


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        yield repo


def pack_bytes(repo: Repository) -> int:
    return sum(path.stat().st_size for path in repo.layout.packs.iterdir())


def test_gc_gives_back_what_was_dropped_and_stands_still_for_saves(repo: Repository) -> None:
    states = [{"w": noise(number, 50_000)} for number in range(3)]
    for state in states[:2]:
        save(repo, state)
    prune(repo, LAST)
    collector = Collector(repo)
    with collector.standing_still():
        collector.start()
        collector.start()  # it is at work
        before_bytes = pack_bytes(repo)
        assert collector.is_running
        last = save(repo, states[2])
        assert collector.is_running
        assert pack_bytes(repo) > before_bytes
    assert collector._thread is not None
    collector._thread.join()
    assert pack_bytes(repo) < before_bytes + 10_000
    assert read(repo, last.commit) == states[2]
    assert not collector.is_running


def test_it_ends_where_it_is(repo: Repository) -> None:
    for number in range(2):
        save(repo, {"w": noise(number, 50_000)})
    prune(repo, LAST)
    before_bytes = pack_bytes(repo)
    collector = Collector(repo)
    with collector.standing_still():
        collector.start()
        collector._is_ended = True
    collector.end()
    assert not collector.is_running
    assert pack_bytes(repo) == before_bytes
    Collector(repo).end()  # of one that never began there is nothing to wait for


def test_gc_is_taken_once_enough_was_dropped(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidying, "AUTO_GC_BYTES", 300_000)
    tidier = Tidier(repo)
    taken = []
    for number in range(8):
        saved = save(repo, {"w": noise(number, 50_000)})  # 200 kB each
        tidier.note(LAST, saved.counts.stored_bytes)
        assert tidier.is_due
        tidier.prune()
        assert not tidier.is_due
        taken.append(tidier.takes_gc())
    # Two are 300 kB and a quarter of the store; then it takes as long again, as the store, never collected, has grown.
    assert taken == [False, False, True, False, True, False, True, False]


def test_without_a_policy_nothing_is_due(repo: Repository) -> None:
    tidier = Tidier(repo)
    commits = []
    for number in range(10):
        saved = save(repo, {"w": noise(number, 500)})
        commits.append(saved.commit)
        tidier.note(None, saved.counts.stored_bytes)
    assert not tidier.is_due and not tidier.is_overdue and not tidier.takes_gc()
    tidier.prune()
    assert is_pruned(repo, commits) == [False] * 10


def test_after_saves_without_a_pause_it_is_overdue(repo: Repository) -> None:
    tidier = Tidier(repo)
    for number in range(8):
        assert not tidier.is_overdue
        tidier.note(LAST, save(repo, {"w": noise(number, 500)}).counts.stored_bytes)
    assert tidier.is_overdue
    tidier.prune()
    assert not tidier.is_overdue
