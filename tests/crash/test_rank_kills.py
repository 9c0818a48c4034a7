"""Creators and ranks in processes of their own that are killed, or stopped for longer than anybody would wait."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from store.disk.files import Files
from store.gc import collect
from store.ids import Buffer
from store.naming.refnames import branch_name
from store.repository import Repository
from store.saving.leftovers import remove_leftovers
from store.saving.ranks import save_rank
from tests.arrays import State, drifted, noise, require_whole, save
from tests.indexing import REPOSITORY
from tools.crash.ranks import request, save_ranks, shards

STATE: State = {"w": noise("w", 300, 50), "same": noise("same", 300, 9)}
NEWER: State = {**STATE, "w": drifted(STATE["w"], 1)}


def kill(directory: Path, first_seed: int, trial_count: int) -> None:
    command = [sys.executable, "-m", "tests.rankkilling", str(directory), str(first_seed), str(trial_count)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(trial_count)]


def test_a3_a_few_kills_of_a_creator_or_a_rank(tmp_path: Path) -> None:
    kill(tmp_path, 100, 5)


@pytest.mark.slow
def test_a3_30_kills_of_a_creator_or_a_rank(tmp_path: Path) -> None:
    kill(tmp_path, 1000, 30)


def stopped(work: Callable[[], object]) -> int:
    """A child that has stopped itself within ``work``."""
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    return child


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def go_on(child: int) -> None:
    os.kill(child, signal.SIGCONT)
    assert os.waitpid(child, 0)[1] == 0


def sweep(root: Path) -> None:
    with Repository.open(root, thread_count=1) as repo:
        remove_leftovers(repo.layout, repo.files, is_thorough=True)
        collect(repo)
        collect(repo)


def test_d1_a_creator_that_is_stopped_loses_nothing_that_its_ranks_stored(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with Repository.init(root, thread_count=1) as repo:
        save(repo, STATE)

    def create() -> None:
        with Repository.open(root, thread_count=1) as repo, repo.create_snapshot(request(repo), 2) as snapshot:
            save_ranks(root, snapshot, NEWER)
            stop()
            snapshot.finalize()

    child = stopped(create)
    sweep(root)
    go_on(child)
    with Repository.open(root, thread_count=1) as repo:
        require_whole(repo, {repo.resolve("main"): NEWER})


def test_d1_a_rank_that_is_stopped_before_it_hands_in_keeps_its_packs(tmp_path: Path) -> None:
    root = tmp_path / "store"

    class Stopping(Files):
        def write_atomic(self, path: Path, data: Buffer) -> None:
            stop()
            super().write_atomic(path, data)

    with Repository.init(root, thread_count=1) as repo:
        save(repo, STATE)
        with repo.create_snapshot(request(repo), 2) as snapshot:
            save_rank(root, snapshot.id, 0, shards(NEWER, 0, 2))
            child = stopped(lambda: save_rank(root, snapshot.id, 1, shards(NEWER, 1, 2), files=Stopping()))
            sweep(root)
            go_on(child)
            commit = snapshot.finalize()
        require_whole(repo, {commit: NEWER})
        assert repo.refs.read(branch_name("main")) == commit
