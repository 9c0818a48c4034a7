"""Kills a process that saves, its worker, or both, at random moments, and looks at what they left. Run as a program.

    python -m tests.killing engine <directory> <first seed> <trials>

One process imports everything and forks a child for each trial: what takes a second happens once. The saver tells on
a pipe which commits were acknowledged; once it has told of some, it is killed after a random part of the time that a
save takes, or its worker is, and it itself some saves later. Another child then opens the store.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Protocol

from store.fsck import fsck
from store.ids import CommitId, ObjectId
from store.naming.refnames import branch_name, tag_name
from store.repository import Repository
from store.saving.arenas import Arena
from store.saving.inputs import Span, TensorInput
from store.saving.leases import living_leases
from store.saving.saver import SaveRequest
from store.saving.underway import await_saves
from store.worker.client import Client
from store.worker.messages import Order, Outcome
from tests.arrays import State, drifted, item, noise, read
from tests.workers import ends, workers

VICTIMS = (("trainer",), ("worker",), ("trainer", "worker"))

TRIALS_PER_STORE = 10
"""A store that was killed often holds what dead saves left: the next ones have to cope with it."""

Ack = Callable[[int, str], None]
"""Told of each step, and the hex id of its commit, that was acknowledged."""


class Kind(Protocol):
    """A way to save."""

    def warm_up(self) -> None:
        """Import whatever the children need, and start no thread."""
        ...

    def save_forever(self, root: Path, ack: Ack) -> None:
        """Save, at steps that follow what is there, until killed."""
        ...

    def check(self, root: Path, acked: list[tuple[int, str]]) -> None:
        """Check that what was acknowledged is there, bit by bit."""
        ...


def state_of(step: int) -> State:
    """A state in which some things change and some do not."""
    return {
        "frozen": noise("frozen", 300, 256),
        "big": drifted(noise(("big", step // 7), 50, 512), step),
        "drifting": drifted(noise("drifting", 2000), step),
        "new": noise(step, 300),
        "step": noise(step),
    }


class Engine:
    """Saves by the engine alone."""

    def warm_up(self) -> None:
        import store.codec
        import store.kernels  # noqa: F401

    def save_forever(self, root: Path, ack: Ack) -> None:
        with Repository.open(root, thread_count=2) as repo:
            last = None
            parent = repo.refs.read(branch_name("main"))
            step = (repo.commit(parent).step or 0) + 1 if parent else 0
            while True:
                request = SaveRequest([item(state_of(step))], branch="main", parent=parent, step=step, last=last)
                saved = repo.save(request)
                if step % 5 == 0:
                    tag = tag_name(f"step-{step}")
                    repo.set_ref(tag, repo.refs.read(tag), saved.commit, "tag")
                ack(step, saved.commit.hex())
                parent, last, step = saved.commit, saved.last, step + 1

    def check(self, root: Path, acked: list[tuple[int, str]]) -> None:
        with Repository.open(root, thread_count=2) as repo:
            check_store(repo, acked)
            for step, commit in acked:
                assert read(repo, CommitId(ObjectId(bytes.fromhex(commit)))) == state_of(step)


class Background(Engine):
    """Saves by the engine, through a worker."""

    def save_forever(self, root: Path, ack: Ack) -> None:
        with Repository.open(root, thread_count=2) as repo:
            client = Client(repo)
            arenas = [Arena.make(1 << 20), Arena.make(1 << 20)]
            tip = repo.refs.read(branch_name("main"))
            last = None
            step = (repo.commit(tip).step or 0) + 1 if tip else 0
            while True:
                job = Staged(state_of(step), arenas[step % 2], tip, step, last)
                client.submit(job)
                client.wait()
                last = None if job.outcome is None else job.outcome.commit
                tip = last or repo.refs.read(branch_name("main"))  # it may have been made by a worker that died since
                if last is not None:
                    ack(step, last.hex())
                step += 1


class Staged:
    """A save of a state that was copied into an arena."""

    def __init__(self, state: State, arena: Arena, parent: CommitId | None, step: int, last: CommitId | None) -> None:
        self.outcome: Outcome | None = None
        given = item(state)
        entries = {}
        start = 0
        for name, tensor in given.entries.items():
            assert isinstance(tensor, TensorInput)
            assert isinstance(tensor.data, memoryview)
            stop = start + len(tensor.data)
            arena.memory[start:stop] = tensor.data
            entries[name] = tensor._replace(data=Span(start, stop))
            start = -(-stop // 64) * 64
        request = SaveRequest([given._replace(entries=entries)], branch="main", parent=parent, step=step)
        self._order = Order(request, arena.number, last, f"step-{step}" if step % 5 == 0 else None, overwrite=True)
        self._arena = arena

    def order(self) -> tuple[Order, Arena]:
        return self._order, self._arena

    def given(self) -> None:
        pass

    def settle(self, outcome: Outcome) -> None:
        self.outcome = outcome


class Torch:
    """Saves by the manager, in the background."""

    def warm_up(self) -> None:
        from moonclip import CheckpointManager, SaveFailed  # noqa: F401

        self._training(0)  # the first step of an optimizer imports for seconds

    def save_forever(self, root: Path, ack: Ack) -> None:
        from moonclip import CheckpointManager, SaveFailed

        def on_done(done: Any, step: int) -> None:
            if done.exception() is None:
                ack(step, done.result())

        manager = CheckpointManager(root, threads=2)
        model, optimizer = self._training(0)
        step = manager.resume(model=model, optimizer=optimizer)
        while True:
            model, optimizer = self._training(step)
            with suppress(SaveFailed):  # the one before, of a worker that was killed
                future = manager.save(step=step, model=model, optimizer=optimizer)
                future.add_done_callback(lambda done, step=step: on_done(done, step))  # type: ignore[misc]
            step += 1

    def check(self, root: Path, acked: list[tuple[int, str]]) -> None:
        import torch

        from moonclip import CheckpointManager

        with Repository.open(root, thread_count=2) as repo:
            check_store(repo, acked)
        with CheckpointManager(root, threads=2, async_save=False) as manager:
            for step, commit in acked:
                model, optimizer = self._training(step)
                loaded = manager.load(commit)
                for name, tensor in model.state_dict().items():
                    assert torch.equal(loaded["model"][name], tensor)
                for number, state in optimizer.state_dict()["state"].items():
                    for name, tensor in state.items():
                        assert torch.equal(loaded["optimizer"]["state"][number][name], tensor)

    def _training(self, step: int) -> tuple[Any, Any]:
        """A model and its optimizer after some steps, the same in each process."""
        import torch

        torch.set_num_threads(1)
        generator = torch.Generator().manual_seed(step)
        model = torch.nn.Linear(200, 300)
        optimizer = torch.optim.AdamW(model.parameters())
        for parameter in model.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
        return model, optimizer


def check_store(repo: Repository, acked: list[tuple[int, str]]) -> None:
    """It is sound, nobody seems to be at work, and refs reach all that was acknowledged.

    A worker that its trainer had just started was not seen by who killed them: it may still make what it was given.
    """
    await_saves(repo.layout.root, repo.files, "main")
    assert fsck(repo, full=True).findings == []
    assert living_leases(repo.layout.root, repo.files) == []
    reached = {row.id.hex(): row.step for row in repo.log(repo.refs.list().values())}
    for step, commit in acked:
        assert reached.get(commit) == step, f"step {step} was acknowledged and is not there"
    if acked:
        tip = repo.resolve("main")
        assert (repo.commit(tip).step or 0) >= acked[-1][0]


# --- trials ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moment:
    """When to kill, and whom: after some acknowledged saves, and a share of the time that one takes.

    Attributes:
        ack_count: saves that are acknowledged first.
        share: of a save's time that passes then.
        victims: "trainer", "worker" or both. What is left goes on: the trainer for some saves more, then it is killed;
            the worker until it has finished.
    """

    ack_count: int
    share: float
    victims: tuple[str, ...]


def forked(work: Callable[[], None]) -> int:
    """Run something in a child; returns its process id."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:  # it must not return into the parent's code
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def kill_a_saver(kind: Kind, root: Path, moment: Moment) -> list[tuple[int, str]]:
    """Returns what it had acknowledged."""
    reading, writing = os.pipe()

    def save() -> None:
        os.close(reading)
        kind.save_forever(root, lambda step, commit: _write(writing, f"{step} {commit}\n"))

    child = forked(save)
    os.close(writing)
    data = _killed_at(child, reading, moment)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the saver died by itself"
    lines = [line.split() for line in data.decode().splitlines()]
    return [(int(step), commit) for step, commit in lines]


def _write(fd: int, text: str) -> None:
    os.write(fd, text.encode())


def _killed_at(child: int, pipe: int, moment: Moment) -> bytes:
    started = time.monotonic()
    data = _acknowledged(pipe, moment.ack_count)
    save_seconds = (time.monotonic() - started) / moment.ack_count if moment.ack_count else 0.05
    select.select([], [], [], moment.share * save_seconds)
    left = workers(child)
    if "worker" in moment.victims:
        for worker in left:
            os.kill(worker, signal.SIGKILL)
        if left and "trainer" not in moment.victims:
            data += _acknowledged(pipe, 2)
            left = workers(child)
    os.kill(child, signal.SIGKILL)
    assert all(map(ends, left))
    while part := os.read(pipe, 1 << 16):
        data += part
    return data


def _acknowledged(pipe: int, count: int) -> bytes:
    """Wait for some saves."""
    data = b""
    while data.count(b"\n") < count:
        part = os.read(pipe, 1 << 16)
        assert part, "the saver ended"
        data += part
    return data


def main(kind: Kind, directory: Path, first_seed: int, trial_count: int) -> None:
    """Run trials; the first that fails ends the program."""
    for number in range(trial_count):
        random = Random(first_seed + number)
        root = directory / f"store{number // TRIALS_PER_STORE}"
        if not root.exists():
            assert os.waitpid(forked(lambda: Repository.init(root).close()), 0)[1] == 0  # noqa: B023 - done right here
        moment = Moment(random.randrange(4), random.random() * 1.5, random.choice(VICTIMS))
        acked = kill_a_saver(kind, root, moment)
        status = os.waitpid(forked(lambda: kind.check(root, acked)), 0)[1]  # noqa: B023 - done right here
        if status != 0:
            sys.exit(f"seed {first_seed + number}, {moment}: what was acknowledged: {acked}")
    print(trial_count)


KINDS: dict[str, type[Engine | Torch]] = {"engine": Engine, "background": Background, "torch": Torch}

if __name__ == "__main__":
    chosen = KINDS[sys.argv[1]]()
    chosen.warm_up()
    main(chosen, Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
