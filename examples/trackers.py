"""A short training whose commits are told to MLflow and to Weights & Biases, each if it is installed, both offline.

    python examples/trackers.py checkpoints

MLflow's run has the commit as tags, W&B's as its configuration: from a run one finds the commit, and from the commit,
whose metadata name the run, the run.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import torch

from moonclip import CheckpointManager
from moonclip.integrations.trackers import tracker_fields

STEPS = 20


def train(mgr: CheckpointManager, run: str) -> list[float]:
    """Train a small model; returns its losses."""
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    losses = []
    for step in range(mgr.resume(model=model, optimizer=optimizer), STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(32, 16)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 10 == 9:
            mgr.save(step=step, metadata={"loss": losses[-1], "run": run}, model=model, optimizer=optimizer)
    return losses


def with_mlflow(path: Path) -> None:
    """Tell MLflow: the commit becomes tags of the run."""
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{path.absolute()}-mlflow.db")
    with mlflow.start_run() as run, CheckpointManager(path, branch="mlflow") as mgr:
        for step, loss in enumerate(train(mgr, run.info.run_id)):
            mlflow.log_metric("loss", loss, step)
        mlflow.set_tags(tracker_fields(mgr))
        print("MLflow:", mlflow.get_run(run.info.run_id).data.tags["moonclip.commit"])


def with_wandb(path: Path) -> None:
    """Tell W&B: the commit becomes part of the run's configuration."""
    import wandb

    os.environ.setdefault("WANDB_MODE", "offline")
    with wandb.init(project="example", dir=path.absolute().parent) as run:
        with CheckpointManager(path, branch="wandb") as mgr:
            for loss in train(mgr, run.id):
                run.log({"loss": loss})
            run.config.update(tracker_fields(mgr), allow_val_change=True)
        print("W&B:", run.config["moonclip.commit"])


def main(path: Path) -> None:
    """Train once by itself, and once for each tracker there is."""
    with CheckpointManager(path) as mgr:
        train(mgr, "by hand")
        for name, value in tracker_fields(mgr).items():
            print(f"{name} = {value}")
    for title, module, tell in (("MLflow", "mlflow", with_mlflow), ("W&B", "wandb", with_wandb)):
        if sys.modules.get(module, ...) is None or find_spec(module) is None:
            print(f"{title} is not installed")
        else:
            tell(path)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "checkpoints"))
