"""The training process of the demo: what a person's training script looks like, and a few words about itself.

Run as ``python -m tools.demo.trainee JOB``.
"""

import hashlib
import os
import signal
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from moonclip import CheckpointManager
from tools.training import Training

from .job import Dying, Ended, Job, Resumed, Saving, Stepped, tell


def main() -> None:
    """Do the job given on the command line."""
    job = Job.decode(sys.argv[1])
    training = Training()
    if job.store is None:
        _train(training, job, None, 0)
    else:
        with CheckpointManager(job.store) as mgr:
            _train(training, job, mgr, _resume(training, job, mgr))
    tell(Ended(_digests(training)))


def _resume(training: Training, job: Job, mgr: CheckpointManager) -> int:
    start = mgr.resume(
        rev=job.rev,
        branch=job.branch,
        rng=True,
        model=training.model,
        optimizer=training.optimizer,
        scheduler=training.scheduler,
    )
    if job.learning_rate is not None:
        training.scheduler.base_lrs = [job.learning_rate]
    return start


def _train(training: Training, job: Job, mgr: CheckpointManager | None, start: int) -> None:
    tell(Resumed(start))
    for step in range(start, job.stop_step):
        loss = training.step()
        tell(Stepped(step, loss))
        if mgr is not None and step % job.save_every == 0:
            future = mgr.save(
                step=step,
                rng=True,
                metadata={"loss": round(loss, 4)},
                model=training.model,
                optimizer=training.optimizer,
                scheduler=training.scheduler,
            )
            tell(Saving(step, mgr.last_blocked_ns, mgr.last_wait_ns))
            if job.kill_step is not None and step >= job.kill_step:
                _die_while_writing(Path(job.store or "."), step, future)


def _die_while_writing(store: Path, step: int, future: Future[str]) -> None:
    """SIGKILL this process once part of the save is on disk; go on if it was too quick to be caught."""
    while not future.done():
        written_bytes = sum(path.stat().st_size for path in (store / "packs").glob("tmp-*"))
        if written_bytes:
            tell(Dying(step, written_bytes))
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.001)


def _digests(training: Training) -> dict[str, str]:
    tensors: dict[str, Any] = {f"model.{name}": tensor for name, tensor in training.model.state_dict().items()}
    for number, state in training.optimizer.state_dict()["state"].items():
        tensors.update({f"optimizer.{number}.{name}": tensor for name, tensor in state.items()})
    return {name: hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest() for name, tensor in tensors.items()}


if __name__ == "__main__":
    main()
