"""What ``save`` has done when it returns: a worker has the state, and commits it whatever becomes of the trainer."""

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from moonclip import CheckpointManager
from store.disk.files import Files
from store.errors import Busy
from store.naming.refnames import branch_name
from store.repository import Repository
from store.saving.inputs import ContainerInput, Input, ItemInput, Span, TensorInput, ValueInput
from store.saving.saver import SaveRequest
from store.worker.client import Client
from store.worker.messages import Order, packed, unpacked
from tests.indexing import REPOSITORY
from tests.workers import Asked, ends, only_worker, require_no_save, stopped, stored

REPEATS = 24
"""Trainers that are killed. Without a hand-over in time, all of them lost their last save."""

TRAINERS = """
import os, signal, sys
import torch
from moonclip import CheckpointManager

def train(root, save_count):
    mgr = CheckpointManager(root, threads=1)
    state = {f"layer.{number}": torch.full((2_000,), float(number)) for number in range(20)}
    for step in range(save_count):
        mgr.save(step=step, model=state, message=str(step))
    os.kill(os.getpid(), signal.SIGKILL)

for repeat in range(int(sys.argv[2])):
    pid = os.fork()
    if pid == 0:
        train(os.path.join(sys.argv[1], str(repeat)), 1 + repeat % 3)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
"""


def has_step(root: Path, step: int) -> bool:
    with Repository.open(root, thread_count=1) as repo:
        tip = repo.refs.read(branch_name("main"))
        return tip is not None and repo.commit(tip).step == step


def await_workers(directory: Path) -> None:
    """Wait until no worker of the trainers of some stores is left: they have the lowest priority of all."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            pid = int(entry.name)
            said = (entry / "cmdline").read_bytes()
            if b"store.worker" in said and bytes(directory) in said:
                pidfd = os.pidfd_open(pid)
                select.select([pidfd], [], [])
                os.close(pidfd)


ORPHANED = """
import os, signal, sys
from pathlib import Path
from store.repository import Repository
from store.worker.client import Client
from tests.workers import Asked, only_worker, stopped

with Repository.open(Path(sys.argv[1]), thread_count=1) as repo:
    client = Client(repo)
    with stopped(worker := only_worker()):
        asked = Asked(7, b"x" * 9_000)
        client.submit(asked)
        asked.await_given()
        print(worker, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a2_a_run_that_is_restarted_waits_for_a_save_that_no_worker_has_begun(tmp_path: Path) -> None:
    Repository.init(tmp_path, thread_count=1).close()
    command = [sys.executable, "-c", ORPHANED, str(tmp_path)]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    worker = int(ended.stdout)
    try:
        with pytest.raises(Busy):
            require_no_save(tmp_path)
    finally:
        os.kill(worker, signal.SIGCONT)
    with CheckpointManager(tmp_path) as mgr:
        assert mgr.resume() == 8
        mgr.save(step=8, x=torch.zeros(3)).result()
    with Repository.open(tmp_path, thread_count=1) as repo:
        assert [row.step for row in repo.log([repo.resolve("main")])] == [8, 7]
    assert ends(worker)
    require_no_save(tmp_path)


EXHAUSTED = """
import os, resource, sys
import torch
from moonclip import CheckpointManager

with CheckpointManager(sys.argv[1], threads=1) as mgr:
    mgr.save(step=0, x=torch.zeros(9)).result()
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    futures = [mgr.save(step=step, x=torch.full((9,), float(step))) for step in (1, 2)]
    for future in futures:
        future.result()
    for fd in taken:
        os.close(fd)
"""


def test_a_trainer_without_a_free_descriptor_hands_saves_over_unannounced(tmp_path: Path) -> None:
    command = [sys.executable, "-c", EXHAUSTED, str(tmp_path / "store")]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    with CheckpointManager(tmp_path / "store") as mgr:
        assert [snapshot.step for snapshot in mgr.log()] == [2, 1, 0]
        assert mgr.load()["x"][0] == 2


def test_save_does_not_wait_for_whoever_looks_whether_one_is_under_way(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as mgr:
        mgr.save(step=0, x=torch.zeros(9)).result()
        with Files().lock_exclusive(tmp_path / "writers" / "branches~main"):
            future = mgr.save(step=1, x=torch.ones(9))
            assert future.profile["handover"] >= 0
            assert not future.done()  # the worker does
        future.result()


@pytest.mark.slow
def test_a2_a_trainer_that_is_killed_as_soon_as_save_returned_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", TRAINERS, str(tmp_path), str(REPEATS)]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    await_workers(tmp_path)
    for repeat in range(REPEATS):
        root = tmp_path / str(repeat)
        assert has_step(root, repeat % 3), repeat
        with CheckpointManager(root) as mgr:
            loaded = mgr.load()["model"]
        assert all(torch.equal(loaded[f"layer.{number}"], torch.full((2_000,), float(number))) for number in range(20))


def test_what_a_worker_was_given_before_it_was_ready_is_made(tmp_path: Path) -> None:
    with Repository.init(tmp_path, thread_count=1) as repo:
        client = Client(repo)
        with stopped(only_worker()):  # it cannot have said that it has started, or if so it reads nothing
            asked = Asked(0, b"x" * 9_000)
            client.submit(asked)
            asked.await_given()
            assert asked._outcome is None
        asked.commit()
        client.close()
    assert stored(tmp_path) == b"x" * 9_000


def test_save_returns_once_a_worker_has_it(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as mgr:
        mgr.save(step=0, x=torch.zeros(9)).result()
        with stopped(only_worker()):
            future = mgr.save(step=1, x=torch.ones(9))
            assert future.profile["handover"] >= 0  # it was sent, though nobody has read it
            assert not future.done()
        future.result()


def test_where_no_worker_can_be_started_save_does_not_wait_until_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with CheckpointManager(tmp_path) as mgr:
        for step in range(4):
            mgr.save(step=step, x=torch.full((9,), float(step)))
        assert mgr.load()["x"][0] == 3


def test_orders_are_what_they_were_after_packing() -> None:
    entries: dict[str, Input] = {
        "": ContainerInput(0, "dict"),
        "a": TensorInput(0, "float32", (2, 3), Span(0, 24)),
        "b": ValueInput(1, 7),
        "c": TensorInput(2, "float32", (), Span(64, 68), "bfloat16", by_row=True),
    }
    items = [ItemInput("model", entries, (("a", "c"),)), ItemInput("step", {"": ValueInput(0, 3)})]
    order = Order(SaveRequest(items, branch="main"), 5, None, "tag")
    back = unpacked(packed(order))
    assert back == order
    assert list(back.request.items[0].entries) == list(entries)


def test_what_a_worker_was_given_that_ended_before_it_was_ready_is_made_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_ready = tmp_path / "python"
    never_ready.write_text("#!/bin/sh\nexec sleep 1000\n")
    never_ready.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(never_ready))
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        client = Client(repo)
        asked = Asked(0, b"x" * 90_000)
        client.submit(asked)
        asked.await_given()
        assert client._worker is not None
        os.kill(client._worker.pid, signal.SIGKILL)
        asked.commit()
        client.close()
    assert stored(tmp_path / "store") == b"x" * 90_000
