"""The last save of a run whose time is short, while the remote is behind."""

import threading
from pathlib import Path

import pytest
import torch

from moonclip import CheckpointManager
from store.worker import pushes as pushes_module
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
