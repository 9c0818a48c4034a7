"""The code in docs/dcp.md runs, in the order in which it stands."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from moonclip import CheckpointManager
from moonclip.dcp import StorageWriter

TEXT = (Path(__file__).parents[2] / "docs" / "dcp.md").read_text()

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:TypedStorage is deprecated")


def test_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("save", "async_save", "load"):
        monkeypatch.setattr(dcp, name, getattr(dcp, name))  # the text replaces them
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    loss: Any = model(torch.ones(2, 3)).sum()
    loss.backward()
    optimizer.step()
    names: dict[str, Any] = {"model": model, "optimizer": optimizer}
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        exec(compile(block, "docs/dcp.md", "exec"), names)
    by_path: Any = dcp
    by_path.save({**model.state_dict(), "train_state": {"n": 1}}, storage_writer=None, checkpoint_id="./out/step-10")
    loaded: dict[str, Any] = {"train_state": {"n": 0}}
    by_path.load(loaded, checkpoint_id="./out/step-10")
    assert loaded == {"train_state": {"n": 1}}
    with CheckpointManager(tmp_path / "checkpoints") as mgr:
        assert [snapshot.step for snapshot in mgr.list_snapshots()] == [100, 200, None, 10]
        assert set(mgr.load("out/step-10")) == {"model", "train_state"}
    StorageWriter(tmp_path / "checkpoints").close()
