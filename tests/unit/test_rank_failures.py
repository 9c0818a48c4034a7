"""One rank fails at a bad moment: the others hear of it, and all go on together."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from moonclip import CheckpointManager
from moonclip.ranks.choosing import Chooser
from moonclip.ranks.holdings import Holdings, Terms
from moonclip.saving.binding import Binding
from moonclip.saving.precision import Precision
from moonclip.saving.wishes import Wish
from moonclip.state.policy import SAFE
from store.errors import Corrupt, DeadlinePassed, SaveFailed
from store.repository import Repository
from tests.lines import managing

MODEL = {"w": torch.arange(300)}


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("at", [0, 1])
def test_b9_an_interrupt_of_the_copy_is_a_failure_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    def act(mgr: CheckpointManager, rank: int) -> Any:
        mgr.save(step=0, model=MODEL).result(10)
        if rank == at:
            with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
                patched.setattr(mgr._staging, "capture", failing(KeyboardInterrupt()))
                mgr.save(step=1, model=MODEL)
        else:
            assert isinstance(mgr.save(step=1, model=MODEL).exception(10), SaveFailed)
            with pytest.raises(SaveFailed, match=f"step 1 failed: rank {at}: KeyboardInterrupt"):
                mgr._recorder.raise_failure()
        return mgr.save(step=2, model=MODEL).result(10)

    first, second = managing(monkeypatch, tmp_path / "store", act)
    assert isinstance(first, str), first
    assert first == second


def test_a_commit_that_one_rank_cannot_read_is_loaded_by_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(mgr: CheckpointManager, rank: int) -> Any:
        mgr.save(step=0, model=MODEL).result(10)
        with monkeypatch.context() as patched, pytest.raises(Corrupt, match="rank 1: torn" if rank == 0 else "torn"):
            if rank == 1:
                patched.setattr(mgr._repo, "commit", failing(Corrupt("torn")))
            mgr.load()
        return mgr.load()["model"]["w"].equal(MODEL["w"])

    assert managing(monkeypatch, tmp_path / "store", act) == [True, True]


@pytest.mark.parametrize("at", [0, 1])
def test_a_deadline_that_passes_on_one_rank_passes_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    def act(mgr: CheckpointManager, rank: int) -> Any:
        with monkeypatch.context() as patched, pytest.raises(DeadlinePassed, match="was not begun"):
            if rank == at:
                patched.setattr(mgr._recorder, "wait", lambda *_: False)
            mgr.save_final(7, model=MODEL, deadline_s=60)
        return mgr.save_final(8, model=MODEL, deadline_s=60)

    first, second = managing(monkeypatch, tmp_path / "store", act)
    assert isinstance(first, str), first
    assert first == second


def test_b10_what_is_told_at_the_end_says_what_was_committed_and_what_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(mgr: CheckpointManager, rank: int) -> Any:
        mgr.save(step=3, model=MODEL)
        told = mgr._recorder.drain()
        with suppress(SaveFailed):
            mgr._recorder.raise_failure()  # else closing would
        return told

    told, _ = managing(monkeypatch, tmp_path / "after", act, finalize=failing(ValueError("told")))
    [line] = told
    assert re.search("ValueError: told; it is committed all the same, as [0-9a-f]{8}$", line), line
    told, _ = managing(monkeypatch, tmp_path / "before", act, pre_finalize=failing(ValueError("told")))
    assert told == ["the save of step 3 failed: ValueError: told; it was not committed"]


def test_b10_an_interrupt_of_the_wait_at_the_end_is_told_as_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(mgr: CheckpointManager, rank: int) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(mgr._recorder, "_join", failing(KeyboardInterrupt()))
            return mgr._recorder.drain()

    told = ["waiting for the last save was cut short by KeyboardInterrupt: it may be lost"]
    assert managing(monkeypatch, tmp_path / "store", act) == [told, told]


def test_a_save_that_was_begun_in_vain_holds_no_lease(tmp_path: Path) -> None:
    with Repository.init(tmp_path / "store") as repo:
        chooser = Chooser(repo, Binding(repo, "main"), SAFE, 1)
        items = {"model": MODEL}
        offer = Holdings(items, Terms(SAFE, 0, set(), Precision(), {}, {})).offer()
        said = [{"offer": offer.encode(), "remembers": False}]
        for step in range(2):  # between these, an interrupt ended it before it was published
            chooser.answers(Wish(items, step=step), said)
        assert len(list(repo.layout.parts.iterdir())) == 1
        chooser.forget()
        assert list(repo.layout.parts.iterdir()) == list(repo.layout.writers.iterdir()) == []


def test_a_future_that_its_caller_ended_ends_the_save_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(mgr: CheckpointManager, rank: int) -> Any:
        recorder: Any = mgr._recorder
        recorder.save(Wish({"model": MODEL}, step=0)).result(10)
        wish = Wish({"model": MODEL}, step=1)
        wish.future.set_exception(ValueError())  # as for whoever is told of saves
        with monkeypatch.context() as patched, pytest.raises(MemoryError):
            patched.setattr(mgr._staging, "capture", failing(MemoryError()))
            recorder.save(wish)
        recorder.wait()
        return recorder._chooser._last is not None

    assert managing(monkeypatch, tmp_path / "store", act) == [True, False]
