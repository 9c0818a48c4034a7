"""Seconds by phase."""

import threading
from pathlib import Path

import pytest

from store.repository import Repository
from store.saving import phases
from store.saving.phases import Laps, Phases
from tests.arrays import drifted, noise, save


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(phases.time, "thread_time", clock)
    monkeypatch.setattr(phases.time, "perf_counter", clock)
    return clock


def test_seconds_of_a_phase_add_up(clock: Clock) -> None:
    spent = Phases()
    with spent.computing("plan"):
        clock.now += 2
    with spent.waiting("sync"):
        clock.now += 3
    with spent.computing("plan"):
        clock.now += 1
    assert spent.seconds == {"plan": 3, "sync": 3}


def test_a_phase_that_fails_counts(clock: Clock) -> None:
    spent = Phases()
    with pytest.raises(KeyError), spent.waiting("sync"):
        clock.now += 3
        raise KeyError
    assert spent.seconds == {"sync": 3}


def test_laps_follow_one_another(clock: Clock) -> None:
    laps = Laps()
    for phase in ("hash", "encode", "hash"):
        clock.now += 1
        laps.end(phase)
    assert laps.seconds == {"hash": 2, "encode": 1}


def test_threads_add_to_the_same_phases() -> None:
    spent = Phases()
    threads = [threading.Thread(target=lambda: [spent.add({"hash": 1}) for _ in range(1000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert spent.seconds == {"hash": 4000}


def test_a_save_says_where_its_time_went(tmp_path: Path) -> None:
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        state = {"w": noise("w", 1000), "same": noise("same", 1000)}
        first = save(repo, state)
        second = save(repo, {**state, "w": drifted(state["w"], 1)}, last=first.last)
    for saved in (first, second):
        computed = {"plan", "compare", "hash", "lookup", "encode", "write", "trees"}
        assert set(saved.seconds) == computed | {"lease", "sync", "index", "ref"}
        assert all(seconds > 0 for seconds in saved.seconds.values())
