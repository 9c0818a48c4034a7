"""The demo: five acts, each a process of its own that is watched from here."""

import shutil
import signal
import sys
import time
from pathlib import Path

from .act import Outcome, play
from .job import Job
from .screen import Screen

HOME = Path(".cache/demo")
STORE = HOME / "checkpoints"

STOP_STEP = 90
KILL_STEP = 60
BRANCH_STEP = 30
BRANCH_STOP_STEP = 70
BRANCH = "gentle"
BRANCH_LEARNING_RATE = 1e-4


def main() -> int:
    """Run everything; 0 if all that it claims held."""
    started = time.monotonic()
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    screen = Screen(STORE)
    screen.opening(STOP_STEP)

    screen.act("An uninterrupted run, which saves nothing", "what every later claim is compared with")
    reference = play(screen, Job(None, STOP_STEP))

    screen.act(f"The same run, saving every 5 steps, until SIGKILL at step {KILL_STEP}", "in the middle of a save")
    killed = play(screen, Job(str(STORE), STOP_STEP, kill_step=KILL_STEP))
    screen.death(killed)
    if killed.exit_code != -signal.SIGKILL or not screen.moonclip("fsck"):
        return 1

    screen.act("A new process resumes", "from the last commit, with the optimizer and the random numbers of then")
    resumed = play(screen, Job(str(STORE), STOP_STEP))
    equal = screen.proof(reference, killed, resumed)

    screen.act(
        f"Branch {BRANCH!r}: from step {BRANCH_STEP}, with a peak learning rate of {BRANCH_LEARNING_RATE:g}",
        "an old commit is as good a start as the last one",
    )
    branched = play(
        screen,
        Job(
            str(STORE),
            BRANCH_STOP_STEP,
            branch=BRANCH,
            rev=f"step:{BRANCH_STEP}",
            learning_rate=BRANCH_LEARNING_RATE,
        ),
    )

    screen.act("What is in the store now")
    shown = screen.moonclip("log", "--graph", "--oneline", "--all")
    screen.losses({"uninterrupted": reference, "killed": killed, "resumed": resumed, BRANCH: branched})
    screen.sizes()
    screen.closing(time.monotonic() - started, f"step:{BRANCH_STEP}")
    return 0 if equal and shown and _succeeded(reference, resumed, branched) else 1


def _succeeded(*outcomes: Outcome) -> bool:
    return all(outcome.exit_code == 0 for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main())
