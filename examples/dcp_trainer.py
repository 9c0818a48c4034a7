"""A trainer in the style of torchtitan and torchtune, whose checkpoints torch.distributed.checkpoint puts into a store.

    torchrun --nproc-per-node 2 examples/dcp_trainer.py runs/dcp             # trains; again: goes on from the tip
    torchrun --nproc-per-node 1 examples/dcp_trainer.py runs/dcp --from step:19 --branch lr3    # other ranks, a branch

Every rank has a shard (FSDP2) and saves it; saves run in the background. Takes seconds on a CPU.
"""

import argparse
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from moonclip import CheckpointManager
from moonclip.dcp import StorageReader, StorageWriter


class Batches:
    """Batches without end; each is of one step and drawn for it, by all ranks together."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size
        self._next = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            generator = torch.Generator().manual_seed(self._next)
            self._next += 1
            yield torch.randn(8, 16, generator=generator).chunk(self._world_size)[self._rank]

    def state_dict(self) -> dict[str, int]:
        """Where it is."""
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there."""
        self._next = state["next"]


class Trained:
    """Model and optimizer as DCP wants them: one object with a state, named by parameter and so fit for any ranks."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        """Both states, each an item of the commit."""
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take both."""
        set_state_dict(
            self._model, self._optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )


class Checkpointer:
    """What a trainer of this kind has: save by step, load the newest; here onto a store and from any revision."""

    def __init__(self, root: Path, trained: Trained, branch: str | None, **states: Any) -> None:
        self._root, self._trained, self._states = root, trained, states
        self._writer = StorageWriter(root, branch=branch)
        self._name = branch or "run"
        self._group = dist.new_group(backend="gloo")  # saves in the background talk beside the training
        self._pending: Future[Any] | None = None

    def save(self, step: int) -> None:
        """Begin to save; waits for the save before."""
        self.wait()
        states = {**self._trained.state_dict(), **self._states, "step": step}
        self._pending = dcp.async_save(
            states, checkpoint_id=f"{self._name}/step-{step}", storage_writer=self._writer, process_group=self._group
        )

    def wait(self) -> None:
        """Wait until what was begun is durable."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def load(self, rev: str) -> int:
        """Load a revision into everything; returns the step to go on with."""
        states = {**self._trained.state_dict(), **self._states, "step": 0}
        dcp.load(states, storage_reader=StorageReader(self._root, rev))
        self._trained.load_state_dict(states)
        return int(states["step"]) + 1


def revision(root: Path, rev: str | None, branch: str | None) -> str | None:
    """Where to go on: what was asked for, else the branch's tip. A new branch is made there; rank 0 says it to all."""
    said: list[str | None] = [None]
    if dist.get_rank() == 0:
        with CheckpointManager(root, world_size=1) as mgr:
            if branch is not None and branch not in mgr.branches():
                mgr.branch(branch, at=rev)
            said = [mgr.branches().get(branch or mgr.bound_branch) if rev is None else mgr.describe(rev).snapshot.id]
    dist.broadcast_object_list(said)
    return said[0]


def main() -> None:
    """Train, from wherever the store says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--from", dest="rev", help="a revision to go on from: step:19, main~2")
    parser.add_argument("--branch", help="the branch to save on; with --from it is made there")
    parser.add_argument("--steps", type=int, default=40)
    given = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.steps)
    loader = Batches(dist.get_rank(), dist.get_world_size())

    root = given.directory / "store"
    rev = revision(root, given.rev, given.branch)
    checkpointer = Checkpointer(root, Trained(model, optimizer), given.branch, scheduler=scheduler, loader=loader)
    start = 0 if rev is None else checkpointer.load(rev)

    for step, batch in zip(range(start, given.steps), loader, strict=False):
        loss = (model(batch) - batch.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        dist.all_reduce(loss := loss.detach())
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item()}", flush=True)
        if step % 5 == 4:
            checkpointer.save(step)
    checkpointer.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
