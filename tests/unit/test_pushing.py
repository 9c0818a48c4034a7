"""How a push in the background makes way for saves, and what its trainer makes of what it is told."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.errors import Conflict, PushFailed, WorkerEnded
from store.repository import Repository
from store.saving.saver import SaveRequest
from store.worker import pushing
from store.worker.messages import Follow, Mark, Order, Outcome, PushEnded, Pushing, error_told
from store.worker.pushes import Pushes
from store.worker.pushing import Pusher
from tests.storing import save
from tests.workers import PATIENCE_S


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        yield repo


@pytest.fixture
def pushes(repo: Repository) -> Pushes:
    return Pushes(repo, Follow("origin"), 2)


def made(pushes: Pushes, repo: Repository, step: int) -> Mark:
    """A save that a worker made."""
    order = pushes.marked(Order(SaveRequest([], branch="main"), 0, None))
    pushes.note(order, Outcome(save(repo, step)), by_worker=True)
    assert order.mark is not None
    return order.mark


def failed(number: int) -> PushEnded:
    return PushEnded(number, "a push failed", {"remote": "origin"}, *error_told(Conflict("moved")))


def test_a_push_stands_still_while_a_save_is_made(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushing, "PUSH_YIELD_SECONDS", float(PATIENCE_S))
    pusher = Pusher(repo, Follow("origin"), lambda _: None)
    going = threading.Thread(target=pusher._get_on)
    with pusher.making_way():
        going.start()
        assert going.is_alive()
    going.join(PATIENCE_S)
    assert not going.is_alive()


def test_it_does_not_stand_still_for_long(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushing, "PUSH_YIELD_SECONDS", 0.0)
    pusher = Pusher(repo, Follow("origin"), lambda _: None)
    with pusher.making_way():
        pusher._get_on()  # a server would hang up


def test_a_push_tells_now_and_then_that_it_gets_on(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    pusher = Pusher(repo, Follow("origin"), told.append)
    for _ in range(100):
        pusher._get_on()
    assert told in ([Pushing()], [Pushing(), Pushing()])
    monkeypatch.setattr(pushing, "PUSH_TELL_SECONDS", 0.0)
    pusher._get_on()
    assert len(told) >= 2


def test_where_there_is_no_thread_to_be_had_it_is_made_by_the_caller(
    repo: Repository, pushes: Pushes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    for step in range(2):
        order = pushes.marked(Order(SaveRequest([], branch="main"), 0, None))
        pushes.note(order, Outcome(save(repo, step)), by_worker=False)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    pushes.start_here()
    assert pushes.taken_failure() is not None  # there is no remote: it was tried
    assert not pushes.is_under_way


def test_marks_count_saves_that_were_made(pushes: Pushes, repo: Repository) -> None:
    assert made(pushes, repo, 0) == Mark(1, is_due=False)
    lost = pushes.marked(Order(SaveRequest([], branch="main"), 0, None))
    assert lost.mark == Mark(2, is_due=True)
    pushes.note(lost, Outcome(error=WorkerEnded("gone")), by_worker=True)
    assert not pushes.is_under_way
    assert made(pushes, repo, 1) == Mark(2, is_due=True)
    assert pushes.is_under_way
    assert made(pushes, repo, 2) == Mark(3, is_due=False)
    pushes.hear(PushEnded(2))
    assert not pushes.is_under_way


def test_the_last_failure_is_told_once(pushes: Pushes, repo: Repository) -> None:
    for step in range(4):
        made(pushes, repo, step)
    pushes.hear(failed(2))
    assert pushes.is_under_way
    pushes.hear(failed(4))
    failure = pushes.taken_failure()
    assert isinstance(failure, PushFailed)
    assert isinstance(failure.__cause__, Conflict)
    assert pushes.taken_failure() is None


def test_a_push_that_went_well_takes_a_failure_back(pushes: Pushes) -> None:
    pushes.hear(failed(2))
    pushes.hear(PushEnded(4))
    assert pushes.taken_failure() is None


def test_the_same_failure_is_logged_once_in_a_row(pushes: Pushes, caplog: pytest.LogCaptureFixture) -> None:
    for number in (1, 2):
        pushes.hear(failed(number))
    assert len(caplog.records) == 1
    pushes.hear(PushEnded(3))
    pushes.hear(failed(4))
    assert len(caplog.records) == 2


def test_a_lost_worker_has_the_next_save_push(pushes: Pushes, repo: Repository) -> None:
    for step in range(2):
        made(pushes, repo, step)
    pushes.lose(WorkerEnded("gone"))
    pushes.await_all()
    assert pushes.has_failure
    assert made(pushes, repo, 2) == Mark(3, is_due=True)


def test_a_worker_that_had_nothing_to_push_is_no_loss(pushes: Pushes, repo: Repository) -> None:
    made(pushes, repo, 0)
    pushes.lose(WorkerEnded("gone"))
    assert not pushes.has_failure
