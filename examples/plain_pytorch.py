"""A training loop with everything: kill it whenever you like, run it again, and it goes on where it was, to the bit.

    python examples/plain_pytorch.py runs/plain                                # trains; again: goes on from the tip
    python examples/plain_pytorch.py runs/plain --from step:24 --branch lr3 --lr 3e-3    # an old state, a new branch
    python examples/plain_pytorch.py runs/plain --best                         # validates the best model so far

Model, optimizer, schedule, the data loader's position and the random number generators are one commit. SIGTERM saves
and ends; runs again, it goes on. Takes seconds on a CPU.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from moonclip import CheckpointManager, Keep


class Batches:
    """Batches without end, in an order that is new each epoch. Knows where it is, as torchdata's loader does."""

    def __init__(self, data: torch.Tensor, batch: int) -> None:
        self._data, self._batch = data, batch
        self._epoch, self._next = 0, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            order = torch.randperm(len(self._data), generator=torch.Generator().manual_seed(self._epoch))
            for rows in order.split(self._batch)[self._next :]:
                self._next += 1
                yield self._data[rows]
            self._epoch, self._next = self._epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """Where it is."""
        return {"epoch": self._epoch, "next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there."""
        self._epoch, self._next = state["epoch"], state["next"]


def loss_of(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """How badly it adds."""
    return torch.nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True))


@torch.no_grad()
def validated(model: torch.nn.Module, data: torch.Tensor) -> float:
    """Loss on data that is not trained on."""
    model.eval()
    loss = loss_of(model, data).item()
    model.train()
    return loss


def main() -> None:
    """Train, from wherever the store says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--from", dest="rev", help="a revision to go on from: step:24, main~2, best")
    parser.add_argument("--branch", help="the branch to save on; with --from it is made there")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--lr", type=float, help="another learning rate")
    parser.add_argument("--best", action="store_true", help="validate the best model and end")
    given = parser.parse_args()

    torch.manual_seed(0)
    data = torch.randn(200, 8)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    loader = Batches(data[:160], 16)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader}

    with CheckpointManager(given.directory / "store", keep=Keep(last=3, every=20)) as mgr:
        if given.best:
            mgr.load("best", model=model)
            print(f"best: {validated(model, data[160:]):.6f}")
            return
        start = mgr.resume(rev=given.rev, branch=given.branch, rng=True, **state)
        if given.lr is not None:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] = given.lr
            scheduler.base_lrs = [given.lr]
        mgr.watch_signals()  # SIGTERM and SIGUSR1: a scheduler wants the machine back

        for step, batch in zip(range(start, given.steps), loader, strict=False):
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            print(f"step {step} loss {loss.item()}", flush=True)
            if mgr.should_stop:
                mgr.save_final(step, rng=True, deadline_s=30, **state)
                break
            is_best = step % 10 == 9 and mgr.save_best(step, validated(model, data[160:]), rng=True, **state)
            if step % 5 == 4 and not is_best:
                mgr.save(step=step, metadata={"loss": loss}, rng=True, **state)


if __name__ == "__main__":
    main()
