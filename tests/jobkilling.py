"""Kills one rank of a job at random moments, and looks at what the others do and what is left. Run as a program.

    python -m tests.jobkilling <directory> <first seed> <trials>

One process imports everything and forks three ranks for each trial: a gloo group, and a manager of each that resumes
and saves again and again, sharded and replicated tensors. Each rank tells on a pipe what was acknowledged to it. After
some of that, and a random part of the time that a save takes, one rank is killed. The others have to end by themselves,
soon; then another child opens the store and checks it. The next trial is the job started again: it takes up the newest
commit, which is no older than what was acknowledged.
"""

import os
import select
import signal
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import store.codec
import store.kernels  # noqa: F401 - children that are forked need not import it
from moonclip import CheckpointManager
from store.errors import RankLost, SaveFailed
from store.fsck import fsck
from store.repository import Repository
from tests.killing import forked
from tests.preloaded import preload

RANKS = 3
ROWS, COLUMNS = 300, 700
SOON_SECONDS = 60.0
"""How long survivors have until they are said to hang; what they wait for at most is half an hour."""


def value_at(step: int) -> torch.Tensor:
    """All of a tensor that changes with each step."""
    return torch.arange(ROWS * COLUMNS, dtype=torch.float32).reshape(ROWS, COLUMNS) * (step + 1)


def serve(root: Path, number: int, rank: int, ack: int) -> None:
    """One rank: resumes, and saves until another one is gone."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{root}.group{number}", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    state: dict[str, Any] = {
        "sharded": DTensor.from_local(value_at(0).chunk(RANKS)[rank].clone(), mesh, [Shard(0)], run_check=False),
        "copies": value_at(0),
        "step": -1,
    }
    try:
        mgr = CheckpointManager(root, world_size="auto", threads=1)
        first = mgr.resume(model=state)
        local = state["sharded"].to_local()
        assert first == state["step"] + 1
        assert local.equal(value_at(max(0, state["step"])).chunk(RANKS)[rank])
        assert state["copies"].equal(value_at(max(0, state["step"])))
        os.write(ack, f"{rank} resumed {first}\n".encode())
        for step in range(first, first + 10_000):
            local.copy_(value_at(step).chunk(RANKS)[rank])
            state["copies"].copy_(value_at(step))
            commit = mgr.save(step=step, model={**state, "step": step}).result()
            os.write(ack, f"{rank} {step} {commit}\n".encode())
    except (RankLost, SaveFailed) as error:
        told = error.__cause__ if isinstance(error, SaveFailed) else error
        os._exit(0 if isinstance(told, RankLost) else 1)


def trial(root: Path, number: int, random: Random) -> tuple[int, list[list[str]]]:
    """Let them save, and kill one; returns whom, and what they had told."""
    reading, writing = os.pipe()
    pids = [forked(lambda rank=rank: serve(root, number, rank, writing)) for rank in range(RANKS)]  # type: ignore[misc]
    os.close(writing)
    victim, wanted = random.randrange(RANKS), RANKS * random.randrange(1, 4)
    began, data = time.monotonic(), b""
    while data.count(b"\n") < wanted:
        part = os.read(reading, 1 << 16)
        assert part, "the ranks ended"
        data += part
    save_seconds = (time.monotonic() - began) * RANKS / wanted
    select.select([], [], [], random.random() * min(1.0, save_seconds))
    os.kill(pids[victim], signal.SIGKILL)
    data += told_until_end(reading)
    for rank, pid in enumerate(pids):
        status = os.waitpid(pid, 0)[1]
        assert rank == victim or status == 0, f"rank {rank} ended with {status} when rank {victim} was killed"
    return victim, [line.split() for line in data.decode().splitlines()]


def told_until_end(reading: int) -> bytes:
    """What ranks still tell, until the last of them has ended."""
    data, deadline = b"", time.monotonic() + SOON_SECONDS
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, "a rank hangs"
        part = os.read(reading, 1 << 16)
        if not part:
            os.close(reading)
            return data
        data += part


def check(root: Path, acked: dict[int, str]) -> None:
    """Every commit that was acknowledged is there and whole, and nothing is damaged."""
    (root / "swept").unlink(missing_ok=True)
    with Repository.open(root, thread_count=1) as repo:
        assert fsck(repo, full=True).findings == []
        assert list(repo.layout.parts.iterdir()) == []
    with CheckpointManager(root, world_size=1, threads=1, async_save=False) as mgr:
        assert not acked or (mgr.step or 0) >= max(acked)
        for step, commit in acked.items():
            model = mgr.load(commit)["model"]
            assert model["step"] == step
            assert model["sharded"].equal(value_at(step))
            assert model["copies"].equal(value_at(step))


def main(directory: Path, first_seed: int, trial_count: int) -> None:
    """Run trials; the first that fails ends the program."""
    root, acked = directory / "store", dict[int, str]()
    for number in range(trial_count):
        victim, lines = trial(root, number, Random(first_seed + number))
        acked = {int(step): commit for _, step, commit in lines if step != "resumed"} or acked
        status = os.waitpid(forked(lambda: check(root, acked)), 0)[1]  # noqa: B023 - done right here
        if status != 0:
            sys.exit(f"seed {first_seed + number}, rank {victim}: what was acknowledged: {acked}")
    print(trial_count)


if __name__ == "__main__":
    preload()
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
