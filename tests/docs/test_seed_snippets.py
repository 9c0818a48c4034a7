"""What the README of the Rust engine shows runs as it stands, word for word, against ours."""

import os
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from moonclip import CheckpointManager
from tests.launching import launch
from tests.s3servers import bucket, server

LOOP = """
from moonclip import CheckpointManager

mgr = CheckpointManager("./checkpoints", save_dtype="bf16")
start_step = mgr.resume(model=model, optimizer=optimizer, scheduler=scheduler)

for step in range(start_step, 100_000):
    loss = train_step(model, batch)

    if step % 500 == 0:
        mgr.save(step=step, model=model, optimizer=optimizer,
                 metadata={"loss": f"{loss:.4f}"})
"""

BUCKET = """
mgr = CheckpointManager(
    "./checkpoints",
    save_dtype="bf16",
    s3_bucket="my-bucket",
    s3_access_key="...",
    s3_secret_key="...",
    s3_endpoint="http://localhost:9000",   # MinIO / R2 / B2
    s3_path_style=True,
    sync_every_n_saves=5,
)
"""

RANKS = """
mgr = CheckpointManager("./checkpoints", world_size="auto", rank="auto")
# mgr.rank == 3, mgr.world_size == 8
start_step = mgr.resume(model=model, optimizer=optimizer)
"""

ALONE = """
mgr = CheckpointManager(f"./checkpoints/rank_{rank}", world_size=1, rank=0)
"""


class EndOfTest(Exception):
    """The loop of the README has a hundred thousand steps."""


def names(last_step: int) -> dict[str, Any]:
    """What the README takes for granted."""
    torch.manual_seed(0)
    model = torch.nn.Linear(40, 20)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    made = {"steps": 0}

    def train_step(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        if made["steps"] > last_step:
            raise EndOfTest
        made["steps"] += 1
        loss: torch.Tensor = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    return {**objects, "batch": torch.ones(2, 40), "train_step": train_step, "CheckpointManager": CheckpointManager}


def run(snippet: str, given: dict[str, Any]) -> CheckpointManager:
    with suppress(EndOfTest):
        exec(compile(snippet, "README.md", "exec"), given)
    manager = given["mgr"]
    assert isinstance(manager, CheckpointManager)
    return manager


def test_three_lines_in_the_training_loop_and_again_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    with run(LOOP, names(last_step=600)) as mgr:
        assert [each.step for each in mgr.list_snapshots()] == [0, 500]
        saved = mgr.load("step:500")["model"]["weight"]
    again = names(last_step=0)
    with run(LOOP, again) as mgr:
        assert again["start_step"] == 501
        assert mgr.last_resume_metadata.keys() == {"loss"}
    assert caplog.text.count("has no scheduler: it stays as it is") == 1  # the example resumes it, and never saves it
    assert not torch.equal(again["model"].weight, names(0)["model"].weight)
    assert torch.allclose(again["model"].weight, saved, atol=0.01)  # one step on


def test_the_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    account = server("moto")
    there = BUCKET.replace("http://localhost:9000", account.endpoint_url).replace("my-bucket", bucket(account))
    there = there.replace('access_key="..."', f'access_key="{account.access_key}"')
    there = there.replace('secret_key="..."', f'secret_key="{account.secret_key}"')
    for name in [name for name in os.environ if name.startswith(("AWS_", "MOONCLIP_"))]:
        monkeypatch.delenv(name)
    with run(there, names(0)) as mgr:
        for step in range(5):
            mgr.save(step=step, model=names(0)["model"])
        mgr.flush()
        tip = mgr.head
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with run(there, names(0)) as mgr:
        assert mgr.restore_from_remote()
        assert mgr.head == tip
        assert not mgr.restore_from_remote()


def test_a_store_of_each_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("RANK", "3")
    with run(ALONE, names(0) | {"rank": 3}) as mgr:
        mgr.save(step=1, model=names(0)["model"]).result()
        assert (mgr.rank, mgr.world_size) == (0, 1)
    assert (tmp_path / "checkpoints" / "rank_3" / "format").exists()


def test_saves_in_the_foreground_and_waiting_for_those_in_the_background(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "sync", async_save=False) as mgr:
        assert mgr.save(step=1, model=names(0)["model"]).done()
    with CheckpointManager(tmp_path / "async") as mgr:
        future = mgr.save(step=1, model=names(0)["model"])
        mgr.flush()
        assert future.done()
        assert [each.step for each in mgr.list_snapshots()] == [1]


PRELUDE = """
import os, sys
import torch
import torch.distributed as dist
from moonclip import CheckpointManager

directory, rank, world_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.chdir(directory)
dist.init_process_group("gloo", init_method=f"file://{directory}/meet", rank=rank, world_size=world_size)
torch.manual_seed(0)
model = torch.nn.Linear(30, 20)
optimizer = torch.optim.AdamW(model.parameters())
"""

AFTERWARDS = """
assert (mgr.rank, mgr.world_size) == (rank, world_size)
assert start_step == 0
mgr.save(step=7, model=model, optimizer=optimizer)
mgr.flush()
assert mgr.resume(model=model, optimizer=optimizer) == 8
mgr.close()
dist.destroy_process_group()
"""


def test_ranks_share_a_store(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PRELUDE + textwrap.dedent(RANKS) + AFTERWARDS)
    codes, told = launch(str(script), tmp_path, 2)
    assert codes == [0, 0], told
    with CheckpointManager(tmp_path / "checkpoints") as mgr:
        assert [each.step for each in mgr.list_snapshots()] == [7]
