"""Worker processes, seen and disturbed from outside, and what to give them."""

import os
import resource
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from store.disk.files import Files
from store.fsck import fsck
from store.ids import CommitId
from store.repository import Repository
from store.saving.arenas import Arena
from store.saving.inputs import ItemInput, Span, TensorInput
from store.saving.leases import living_leases
from store.saving.saver import SaveRequest
from store.worker.messages import Order, Outcome

PATIENCE_S = 60
"""How long something may take that, without what is tested, never comes."""


def workers(trainer: int | None = None) -> list[int]:
    """Process ids of the workers of a trainer; of this process if ``None``."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            is_child = int(_stat(int(entry.name))[1]) == (trainer or os.getpid())
            if is_child and b"store.worker" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return sorted(found)


def only_worker(trainer: int | None = None) -> int:
    """The one worker of a trainer. One that was just started may not have its name yet."""
    assert becomes_true(lambda: workers(trainer))
    (worker,) = workers(trainer)
    return worker


def becomes_true(condition: Callable[[], object]) -> bool:
    """Wait for something that another process does; whether it came."""
    for _ in range(100 * PATIENCE_S):
        if condition():
            return True
        select.select([], [], [], 0.01)
    return False


def ends(pid: int) -> bool:
    """Wait for the end of a process that need not be a child of ours; whether it came."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], PATIENCE_S)[0])
    finally:
        os.close(pidfd)


def kill(pid: int) -> None:
    """``kill -9``, and wait until it is gone."""
    os.kill(pid, signal.SIGKILL)
    assert ends(pid)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does nothing, until it is killed or the block ends."""
    os.kill(pid, signal.SIGSTOP)
    assert becomes_true(lambda: _stat(pid)[0] == "T")
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def refs_held(root: Path) -> Iterator[None]:
    """No save is finished inside: it waits for its last step, the ref."""
    with Files().lock_exclusive(root / "refs.lock"):
        yield


def await_save(root: Path) -> None:
    """Wait until a save is under way: its commit has got its id."""
    assert becomes_true(lambda: any(lease.commits for lease in living_leases(root, Files())))


def require_no_save(root: Path) -> None:
    """Raise Busy if a save on the branch ``main`` is under way, which a manager that is made now would wait for."""
    Files().lock_exclusive(root / "writers" / "branches~main", blocking=False, create=False).close()


@contextmanager
def no_large_file(*pids: int) -> Iterator[None]:
    """A real fault: the kernel refuses some processes writes beyond 1 MiB of any file, as a full disk refuses all."""
    before = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in pids}
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 << 20, before[pid][1]))
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, before[pid])


def _stat(pid: int) -> list[str]:
    """State, parent and more of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


# --- saves without torch ------------------------------------------------------------------------------------------


class Asked:
    """A save of some bytes, in an arena of its own unless it is given one: what a client is asked for."""

    def __init__(
        self, step: int, data: bytes, parent: CommitId | None = None, *, arena: Arena | None = None, **order: Any
    ) -> None:
        self.arena = arena or Arena.make(len(data))
        self.arena.memory[: len(data)] = data
        given = TensorInput(0, "uint8", (len(data),), Span(0, len(data)))
        request = SaveRequest([ItemInput("model", {"": given})], branch="main", parent=parent, step=step)
        self._order = Order(request, self.arena.number, **{"last": None, **order})
        self._outcome: Outcome | None = None
        self._ended = threading.Event()
        self._is_given = threading.Event()

    def order(self) -> tuple[Order, Arena]:
        return self._order, self.arena

    def given(self) -> None:
        self._is_given.set()

    def await_given(self) -> None:
        assert self._is_given.wait(PATIENCE_S)

    def settle(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._ended.set()

    def outcome(self) -> Outcome:
        assert self._ended.wait(PATIENCE_S)
        assert self._outcome is not None
        return self._outcome

    def commit(self) -> CommitId:
        outcome = self.outcome()
        assert outcome.error is None, outcome.error
        assert outcome.commit is not None
        return outcome.commit


def stored(root: Path, revision: str = "main") -> bytes:
    """What was saved so, of a store that is sound."""
    with Repository.open(root, thread_count=1) as repo:
        assert fsck(repo, full=True).clean
        return bytes(repo.read_tensor(repo.tree(repo.commit(repo.resolve(revision)), "model")[""]))  # type: ignore[arg-type]
