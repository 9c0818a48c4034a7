"""Kills the creator of snapshots, or one of its ranks, at random moments, and looks at what is left. Run as a program.

    python -m tests.rankkilling <directory> <first seed> <trials>

One process imports everything. For each trial it forks a creator and two ranks, which save again and again: the creator
sends each rank a snapshot's id, the rank answers once its part is handed in. After some acknowledged saves, and a
random part of the time that one takes, one of the three is killed. The creator gives its snapshot up if a rank is gone,
the ranks end if the creator is. Then the store is opened and checked, and saved to once more.
"""

import os
import select
import signal
import sys
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import store.codec
import store.kernels  # noqa: F401 - children that are forked need not import it
from store.gc import collect
from store.ids import CommitId, ObjectId
from store.naming.refnames import branch_name
from store.repository import Repository
from store.saving.rankbases import RankMemory
from store.saving.ranks import save_rank
from store.saving.saver import SaveRequest
from tests.arrays import read
from tests.killing import check_store, forked, state_of
from tools.crash.ranks import save_together, shards

RANKS = 2
TRIALS_PER_STORE = 8
VICTIMS = ("creator", "rank 0", "rank 1")


def serve(root: Path, rank: int, pipe: Connection) -> None:
    """A rank: stores its part of whatever snapshot it is told of, until the creator is gone."""
    memory: RankMemory | None = None
    try:
        while True:
            snapshot, step, remember = pipe.recv()
            items = shards(state_of(step), rank, RANKS)
            memory = save_rank(root, snapshot, rank, items, last=memory if remember else None).memory
            pipe.send("stored")
    except (EOFError, ConnectionResetError, BrokenPipeError):
        os._exit(0)
    except Exception:
        # What it relies on goes with the creator: that is told, and is no fault.
        select.select([pipe], [], [])
        os._exit(0)


def create_forever(root: Path, ranks: list[Connection], ack: int) -> None:
    """The creator: saves until a rank is gone."""
    with Repository.open(root, thread_count=1) as repo:
        tip = repo.refs.read(branch_name("main"))
        step, remember = ((repo.commit(tip).step or 0) + 1 if tip else 0), False
        while True:
            request = SaveRequest((), branch="main", parent=tip, step=step)
            try:
                with repo.create_snapshot(request, RANKS, ranks_remember=remember) as snapshot:
                    for rank in ranks:
                        rank.send((snapshot.id, step, remember))
                    for rank in ranks:
                        assert rank.recv() == "stored"
                    tip = snapshot.finalize()
            except (EOFError, ConnectionResetError, BrokenPipeError):
                os._exit(0)
            os.write(ack, f"{step} {tip.hex()}\n".encode())
            step, remember = step + 1, True


def trial(root: Path, random: Random) -> tuple[str, list[tuple[int, str]]]:
    """Let them save, and kill one; returns whom, and what had been acknowledged."""
    reading, writing = os.pipe()
    pairs = [Pipe() for _ in range(RANKS)]
    pids: dict[str, int] = {}
    for rank, (_, far) in enumerate(pairs):
        pids[f"rank {rank}"] = forked(lambda: _only(far, pairs, lambda: serve(root, rank, far)))  # noqa: B023
        far.close()
    near = [near for near, _ in pairs]
    pids["creator"] = forked(lambda: create_forever(root, near, writing))
    for each in near:
        each.close()
    os.close(writing)
    victim, wanted = random.choice(VICTIMS), random.randrange(3)
    began = time.monotonic()
    data = b""
    while data.count(b"\n") < wanted:
        part = os.read(reading, 1 << 16)
        assert part, "the creator ended"
        data += part
    save_seconds = (time.monotonic() - began) / wanted if wanted else 0.05
    select.select([], [], [], random.random() * 1.5 * save_seconds)
    os.kill(pids[victim], signal.SIGKILL)
    for name, pid in pids.items():
        status = os.waitpid(pid, 0)[1]
        assert name == victim or status == 0, f"{name} ended with {status}"
    while part := os.read(reading, 1 << 16):
        data += part
    os.close(reading)
    lines = [line.split() for line in data.decode().splitlines()]
    return victim, [(int(step), commit) for step, commit in lines]


def _only(mine: Connection, pairs: list[tuple[Connection, Connection]], work: object) -> None:
    """Close the ends that are others', so that a dead process's are the last of theirs."""
    for near, far in pairs:
        near.close()
        if far is not mine and not far.closed:
            far.close()
    work()  # type: ignore[operator]


def check(root: Path, acked: list[tuple[int, str]]) -> None:
    """Everything is there and sound, nothing is left behind, and the next save by all of them works."""
    # A rank that writes its part while the snapshot is given up leaves what only the daily look at everything finds.
    (root / "swept").unlink(missing_ok=True)
    with Repository.open(root, thread_count=2) as repo:
        left = [*repo.layout.parts.rglob("*"), *repo.layout.writers.iterdir()]
        assert not left, left
        check_store(repo, acked)
        for step, digits in acked:
            assert read(repo, CommitId(ObjectId(bytes.fromhex(digits)))) == state_of(step)
        tip = repo.refs.read(branch_name("main"))
        step = (repo.commit(tip).step or 0) + 1 if tip else 0
        commit, _ = save_together(repo, state_of(step), RANKS, step=step)
        collect(repo)
        assert set(repo.packs.pack_ids()) == set(repo.index.packs())
        assert read(repo, commit) == state_of(step)


def main(directory: Path, first_seed: int, trial_count: int) -> None:
    """Run trials; the first that fails ends the program."""
    for number in range(trial_count):
        random = Random(first_seed + number)
        root = directory / f"store{number // TRIALS_PER_STORE}"
        if not root.exists():
            assert os.waitpid(forked(lambda: _make(root)), 0)[1] == 0  # noqa: B023 - done right here
        victim, acked = trial(root, random)
        status = os.waitpid(forked(lambda: check(root, acked)), 0)[1]  # noqa: B023 - done right here
        if status != 0:
            sys.exit(f"seed {first_seed + number}, {victim}: what was acknowledged: {acked}")
    print(trial_count)


def _make(root: Path) -> None:
    with Repository.init(root, thread_count=1) as repo:
        save_together(repo, state_of(0), RANKS, step=0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
