"""Ranks that are told to end: one that got the signal counts for all, and they save together for the last time."""

from pathlib import Path

from moonclip import CheckpointManager
from tests.launching import launch

SCRIPT = """
import os, signal, sys
import torch
import torch.distributed as dist
from moonclip import CheckpointManager

directory, rank, world_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{directory}/meet", rank=rank, world_size=world_size)
model = torch.nn.Linear(30, 20)
with CheckpointManager(f"{directory}/store", world_size="auto") as mgr:
    mgr.watch_signals()
    for step in range(10):
        with torch.no_grad():
            model.weight.fill_(float(step))
        # what the others say of the metric does not count, if they say something
        assert mgr.save_best(step, 5.0 - step if rank == 0 else None if step else 9.0, model=model)
        if (step, rank) == (2, 1):
            os.kill(os.getpid(), signal.SIGTERM)
        if mgr.should_stop:
            mgr.save_final(step, model=model, deadline_s=60)
            print("stopped at", step)
            break
    never_saved = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(model.parameters()), 1)
    assert mgr.resume(model, scheduler=never_saved) == step + 1
dist.destroy_process_group()
"""


def test_b9_a_signal_to_one_rank_ends_all_with_one_last_commit(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    codes, told = launch(str(script), tmp_path, 2)
    assert codes == [0, 0], told
    for lines in map(str.splitlines, told):
        assert lines[0] == "stopped at 2"
        assert "has no scheduler: it stays as it is" in lines[1]  # as for one process
    with CheckpointManager(tmp_path / "store") as mgr:
        assert [each.metadata for each in mgr.list_snapshots()][-1] == {"final": True}
        assert mgr.load("best")["model"]["weight"].eq(2).all()
        assert mgr.load()["model"]["weight"].eq(2).all()
