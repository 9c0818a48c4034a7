"""The last save of a run whose time is short, while the remote is behind."""

import sys
import threading
from pathlib import Path

import pytest
import torch

from moonclip import CheckpointManager, MoonclipError
from store.worker import pushes as pushes_module
from store.worker.pushes import Pushes
from tests.pushing import refs_of_remote_held, remote_tip
from tests.workers import PATIENCE_S, becomes_true


def test_a_last_save_with_a_deadline_does_not_wait_for_a_remote_that_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushes_module, "PUSH_STALL_SECONDS", 10.0 * PATIENCE_S)
    (tmp_path / "remote").mkdir()
    state = {"weight": torch.arange(300)}
    with CheckpointManager(tmp_path / "store", remote=tmp_path / "remote", push_every=1) as mgr:
        given = {"model": state, "deadline_s": 10.0 * PATIENCE_S}
        last = threading.Thread(target=mgr.save_final, args=(3,), kwargs=given)
        with refs_of_remote_held(tmp_path / "remote"):
            for step in range(3):
                mgr.save(step=step, model=state).result(PATIENCE_S)
            last.start()
            assert becomes_true(lambda: mgr.step == 3)
        last.join(PATIENCE_S)
        assert not last.is_alive()
        tip = remote_tip(tmp_path / "store")
        assert tip is not None
        assert tip.hex() == mgr.head


def test_a_last_save_with_a_deadline_does_not_wait_for_a_push_that_somebody_has_begun(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    remote.mkdir()
    state = {"weight": torch.arange(300)}
    with CheckpointManager(tmp_path / "store", remote=remote) as mgr:
        mgr.save(step=0, model=state).result()
        push = threading.Thread(target=mgr.push)
        last = threading.Thread(
            target=mgr.save_final, args=(1,), kwargs={"model": state, "deadline_s": 10.0 * PATIENCE_S}
        )
        with refs_of_remote_held(remote):
            push.start()
            assert becomes_true(lambda: mgr._recorder._turns._aside)
            last.start()
            assert becomes_true(lambda: mgr.step == 1)  # while the push stands still
            assert push.is_alive()
        for thread in (push, last):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        tip = remote_tip(tmp_path / "store")
        assert tip is not None
        assert tip.hex() == mgr.head


def test_nor_for_one_that_is_made_here_for_want_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    monkeypatch.setattr(pushes_module, "PUSH_STALL_SECONDS", 10.0 * PATIENCE_S)
    remote = tmp_path / "remote"
    remote.mkdir()
    state = {"weight": torch.arange(300)}
    with CheckpointManager(tmp_path / "store", remote=remote, push_every=1) as mgr:
        given = {"model": state, "deadline_s": 10.0 * PATIENCE_S}
        last = threading.Thread(target=mgr.save_final, args=(1,), kwargs=given)
        with refs_of_remote_held(remote):
            mgr.save(step=0, model=state)
            assert becomes_true(lambda: mgr._recorder._pushes.is_under_way)  # type: ignore[union-attr]
            last.start()
            assert becomes_true(lambda: mgr.step == 1)
        last.join(PATIENCE_S)
        assert not last.is_alive()
    assert remote_tip(tmp_path / "store") is not None


def test_nor_does_one_in_the_foreground_wait_for_the_push_that_follows_it(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    remote.mkdir()
    with CheckpointManager(tmp_path / "store", remote=remote, push_every=1, async_save=False) as mgr:
        given = {"model": {"weight": torch.arange(300)}, "deadline_s": 0.0}
        last = threading.Thread(target=mgr.save_final, args=(1,), kwargs=given)
        with refs_of_remote_held(remote):
            last.start()
            last.join(PATIENCE_S)
            assert not last.is_alive()
        assert mgr.step == 1
    assert remote_tip(tmp_path / "store") is not None


def test_what_is_saved_while_somebody_pushes_is_not_pushed_beside_that(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    remote.mkdir()
    with CheckpointManager(tmp_path / "store", remote=remote, push_every=1) as mgr:
        pushes = mgr._recorder._pushes  # type: ignore[union-attr]
        assert isinstance(pushes, Pushes)
        mgr.save(step=0, x=torch.ones(3)).result()
        mgr.flush()
        with mgr._pushing_alone():
            saver = threading.Thread(target=mgr.save, kwargs={"step": 1, "x": torch.zeros(3)})
            saver.start()
            saver.join(PATIENCE_S)
            assert becomes_true(lambda: mgr.step == 1)
            assert not pushes.is_under_way
            for act in (mgr.push, mgr.close, lambda: mgr.save(step=2, x=torch.ones(3))):
                with pytest.raises(MoonclipError, match="in the middle of"):  # in a handler that interrupts the push
                    act()
        mgr.save(step=2, x=torch.ones(3)).result()
        mgr.flush()
        tip = remote_tip(tmp_path / "store")
        assert tip is not None
        assert tip.hex() == mgr.head
