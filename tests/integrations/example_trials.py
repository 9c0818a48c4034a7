"""An example that trains, killed and run again. Run as a program: ``example_trials.py <directory> <example> <ranks>``.

It prints, as JSON, the losses that each run printed. The example is imported once and runs in forked children.
"""

import importlib.util
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from tests.killing import forked
from tests.launching import ROOT
from tests.preloaded import preload
from tests.trials import Curve
from tests.workers import ends, workers

TOP, EXAMPLE, WORLD_SIZE = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
STEPS = 30


def imported() -> Any:
    """The example as a module; what it needs is imported with it."""
    spec = importlib.util.spec_from_file_location(EXAMPLE, ROOT / "examples" / f"{EXAMPLE}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def free_port() -> str:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])


class Halting:
    """A child's stdout, which halts it behind one line: what it does next waits for what is done to it meanwhile."""

    def __init__(self, behind: str, gate: int) -> None:
        self._behind, self._gate = behind, gate
        self._is_there = False

    def write(self, text: str) -> None:
        os.write(1, text.encode())
        self._is_there |= text.startswith(self._behind)
        if self._is_there and text.endswith("\n"):
            self._is_there = False
            os.read(self._gate, 1)

    def flush(self) -> None: ...


def run(
    *arguments: str, kill_after: int | None = None, sign: int = signal.SIGKILL, with_workers: bool = False
) -> Curve:
    """Run the example in all ranks; its losses, by step.

    Args:
        arguments: what it is told.
        kill_after: a step behind whose loss all ranks are sent a signal.
        sign: which.
        with_workers: whether what saves for them is killed, too.
    """
    told, gate, port = os.pipe(), os.pipe(), free_port()

    def work(rank: int) -> None:
        os.close(told[0]), os.close(gate[1])
        os.dup2(told[1], 1)
        sys.stdout = Halting(f"step {kill_after} ", gate[0])  # type: ignore[assignment] # print asks for no more
        lead(rank, port)
        sys.argv = [EXAMPLE, *arguments, "--steps", str(STEPS)]
        example.main()

    ranks = [forked(lambda rank=rank: work(rank)) for rank in range(WORLD_SIZE)]  # type: ignore[misc]
    os.close(told[1]), os.close(gate[0])
    curve: Curve = {}
    with os.fdopen(told[0]) as lines, os.fdopen(gate[1], "wb", 0) as opened:
        for line in lines:
            _, step, _, loss = line.split()
            curve[int(step)] = loss
            if int(step) == kill_after:
                send(sign, ranks, with_workers=with_workers)
                if sign != signal.SIGKILL:
                    opened.write(b"x")
    statuses = [os.waitpid(rank, 0)[1] for rank in ranks]
    is_killed = kill_after is not None and sign == signal.SIGKILL
    assert all(os.WIFSIGNALED(status) if is_killed else status == 0 for status in statuses), (arguments, statuses)
    return curve


def send(sign: int, ranks: list[int], *, with_workers: bool) -> None:
    """Send it; after a SIGKILL, wait until workers have ended, which finish what they were given."""
    left = [worker for rank in ranks for worker in workers(rank)]
    for process in [*ranks, *(left if with_workers else [])]:
        os.kill(process, sign)
    assert sign != signal.SIGKILL or all(map(ends, left))


def lead(rank: int, port: str) -> None:
    """What a launcher says, where there are ranks."""
    if WORLD_SIZE > 1:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(WORLD_SIZE), "MASTER_ADDR": "127.0.0.1"}
        os.environ |= {"MASTER_PORT": port, "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(WORLD_SIZE)}


def trials() -> dict[str, Curve]:
    one, two, three, four = (str(TOP / name) for name in ("one", "two", "three", "four"))
    told = {
        "unbroken": run(str(TOP / "unbroken")),
        "killed": run(one, kill_after=21),
        "resumed": run(one),
        "branched": run(one, "--from", "step:24", "--branch", "other"),
        "killed in a save": run(two, kill_after=15, with_workers=True),
        "resumed after that": run(two),
        "killed before any": run(three, kill_after=1),
        "begun anew": run(three),
    }
    if EXAMPLE == "plain_pytorch":
        told["stopped"] = run(four, kill_after=11, sign=signal.SIGTERM)
        told["resumed after the stop"] = run(four)
    return told


if __name__ == "__main__":
    preload()
    example = imported()
    print(json.dumps(trials()))
