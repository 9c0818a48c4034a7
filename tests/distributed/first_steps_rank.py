"""One rank of a real group that resumes a part of what was saved. Run by ``test_first_steps.py``."""

import logging
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from moonclip import CheckpointManager


class Told(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def parts(directory: Path, rank: int) -> None:
    """Each rank has an item of its own beside what they share: nobody forgot the other's."""
    told = Told()
    logging.getLogger("moonclip").addHandler(told)
    own = {f"own{rank}": torch.full((3,), float(rank))}
    with CheckpointManager(directory / "parts", world_size="auto", async_save=False) as mgr:
        mgr.save(step=0, model={"w": torch.ones(3)}, loss={"v": torch.ones(2)}, **own)
        assert mgr.resume(model={"w": torch.zeros(3)}, loss={"v": torch.zeros(2)}, **own) == 1
        assert told.messages == []
        assert mgr.resume(model={"w": torch.zeros(3)}, **own) == 1
        assert ["'loss', which was not asked for" in message for message in told.messages] == [True] * (rank == 0)


if __name__ == "__main__":
    rank, world_size = int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/first-steps", rank=rank, world_size=world_size)
    parts(Path(sys.argv[1]), rank)
    dist.destroy_process_group()
    print("done", flush=True)
    os._exit(0)  # torch's own threads, of many groups, now and then abort an interpreter that ends
