"""A loop of Accelerate that is broken off in the middle of an epoch, and resumed there.

python examples/accelerate_loop.py checkpoints
"""

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from moonclip import CheckpointManager
from moonclip.integrations.accelerate import Batches, items_of

EPOCHS = 3


def train(path: Path, branch: str, until: int | None = None) -> dict[int, float]:
    """Train from the branch's newest commit on, until a step if one is given; returns the losses by step."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    inputs = torch.randn(60, 8)
    loader: Any = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=6, shuffle=True)
    model: Any = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler: Any = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=30)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    batches = Batches(loader)
    items = items_of(accelerator, model=model, optimizer=optimizer, scheduler=scheduler, batches=batches)
    losses: dict[int, float] = {}
    with CheckpointManager(path, branch=branch) as mgr:
        mgr.resume(rng=True, **items)
        for _ in range(batches.epoch, EPOCHS):
            for given, wanted in batches:
                loss = (model(given) - wanted).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                losses[batches.step] = loss.item()
                if batches.step % 7 == 0:
                    mgr.save(step=batches.step, rng=True, **items)
                if batches.step == until:
                    return losses
    return losses


def main(path: Path) -> None:
    """Train once without a break, and once with one."""
    unbroken = train(path, "unbroken")
    train(path, "broken", until=16)
    resumed = train(path, "broken")
    print(f"resumed after step {min(resumed) - 1} of {len(unbroken)}")
    print("the rest of the curve is the same:", resumed == {step: unbroken[step] for step in resumed})


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "checkpoints"))
