"""Deaths of the worker, of its trainer, and of both: what was handed over, what is left, and who goes on."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from moonclip.saving.binding import Binding
from store.disk.files import Files
from store.errors import WorkerEnded
from store.ids import CommitId
from store.repository import Repository
from store.saving.leases import living_leases
from store.worker.client import Client
from tests.indexing import REPOSITORY
from tests.killing import forked
from tests.workers import Asked, await_save, becomes_true, ends, kill, only_worker, refs_held, stored, workers

TRAINER = """
import ctypes, os, signal, sys
from store.repository import Repository
from store.worker.client import Client
from tests.workers import Asked

repo = Repository.open(sys.argv[1], thread_count=1)
client = Client(repo)
asked = Asked(1, bytes.fromhex(sys.argv[2]), repo.resolve("main"))
client.submit(asked)
"""

DEATHS = {
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "os._exit": "os._exit(3)",
    "a crash": "os.abort()",
    "exec": "os.execv('/bin/sleep', ['sleep', '600'])",
}


def noise(seed: int, size: int = 300_000) -> bytes:
    return Random(seed).randbytes(size)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        client = Client(repo)
        asked = Asked(0, noise(0))
        client.submit(asked)
        asked.commit()
        client.close()
    return tmp_path / "store"


@contextmanager
def trainer(root: Path, ending: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that hands a save over, and ends so once it is told to."""
    program = f"{TRAINER}\nprint('handed over', flush=True)\nsys.stdin.readline()\n{ending}\n"
    command = [sys.executable, "-c", program, str(root), noise(1, 20_000).hex()]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "handed over\n"
        try:
            yield process
        finally:
            process.kill()


def tell(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


# --- the worker's -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_that_dies_fails_its_save_and_no_other(root: Path, number: signal.Signals) -> None:
    with Repository.open(root, thread_count=1) as repo:
        client = Client(repo)
        before = repo.resolve("main")
        with refs_held(root):
            failed = Asked(1, noise(1), before)
            client.submit(failed)
            await_save(root)
            os.kill(only_worker(), number)
            error = failed.outcome().error
        assert isinstance(error, WorkerEnded)
        assert number.name in str(error)
        assert ("Fatal Python error" in str(error)) == (number == signal.SIGSEGV)  # its last words
        assert repo.resolve("main") == before
        assert workers() == []
        again = Asked(2, noise(2), before)
        client.submit(again)
        again.commit()
        client.close()
        assert living_leases(root, Files()) == []
    assert stored(root) == noise(2)
    assert stored(root, "main~1") == noise(0)


def test_a_worker_that_dies_at_rest_costs_no_save(root: Path) -> None:
    with Repository.open(root, thread_count=1) as repo:
        client = Client(repo)
        first = Asked(1, noise(1), repo.resolve("main"))
        client.submit(first)
        tip = first.commit()
        kill(only_worker())
        assert becomes_true(lambda: workers() == [])  # reaped at once
        second = Asked(2, noise(2), tip, last=tip)
        client.submit(second)
        second.commit()
        client.close()
    assert stored(root) == noise(2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT])
def test_signals_that_are_for_the_run_do_not_end_a_save(root: Path, number: signal.Signals) -> None:
    with Repository.open(root, thread_count=1) as repo:
        client = Client(repo)
        asked = Asked(1, noise(1), repo.resolve("main"))
        with refs_held(root):
            client.submit(asked)
            await_save(root)
            os.kill(only_worker(), number)
        asked.commit()
        client.close()
    assert stored(root) == noise(1)


# --- the trainer's ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("death", DEATHS)
def test_what_was_handed_over_is_finished_when_the_trainer_is_gone(root: Path, death: str) -> None:
    with refs_held(root), trainer(root, DEATHS[death]) as process:
        await_save(root)
        worker = only_worker(process.pid)
        tell(process)
        if death == "exec":
            assert becomes_true(lambda: b"sleep" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
            process.kill()  # what the process has become is not the worker's trainer, but it cannot tell
        process.wait()
    assert ends(worker)
    assert stored(root) == noise(1, 20_000)


def test_what_was_handed_over_to_a_worker_that_still_starts_is_stored(root: Path) -> None:
    program = TRAINER.replace("asked = ", "worker = client._worker; os.kill(worker.pid, signal.SIGSTOP)\nasked = ")
    ending = "while not worker._arenas: pass\nprint(worker.pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    command = [sys.executable, "-c", f"{program}\n{ending}", str(root), noise(1, 20_000).hex()]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    os.kill(int(done.stdout), signal.SIGCONT)
    assert ends(int(done.stdout))
    assert stored(root) == noise(1, 20_000)


def test_an_idle_worker_ends_when_its_trainer_becomes_another_program(root: Path) -> None:
    with trainer(root, f"asked.commit(); {DEATHS['exec']}") as process:
        worker = only_worker(process.pid)
        tell(process)
        assert ends(worker)
        assert process.poll() is None
    assert stored(root) == noise(1, 20_000)


def test_who_takes_up_a_branch_waits_for_the_save_of_a_trainer_that_is_gone(root: Path) -> None:
    found: list[CommitId | None] = []

    def take_up() -> None:
        with Repository.open(root, thread_count=1) as repo:
            found.append(Binding(repo, "main").tip)

    taking_up = threading.Thread(target=take_up)
    with refs_held(root), trainer(root, "") as process:
        await_save(root)
        worker = only_worker(process.pid)
        process.kill()
        process.wait()
        taking_up.start()
        taking_up.join(0.2)
        assert not found
    taking_up.join()
    assert ends(worker)
    with Repository.open(root, thread_count=1) as repo:
        assert found == [repo.resolve("main")]
        assert repo.commit(repo.resolve("main")).step == 1


def test_a_child_that_holds_the_socket_keeps_no_worker(root: Path) -> None:
    """Forked behind Python's back, it has closed nothing."""
    fork = "child = ctypes.CDLL(None).fork(); child or ctypes.CDLL(None).pause(); print(child, flush=True)"
    with trainer(root, f"asked.commit(); {fork}; sys.stdin.readline()") as process:
        worker = only_worker(process.pid)
        tell(process)
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            process.kill()
            assert ends(worker)
            assert Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        finally:
            os.kill(child, signal.SIGKILL)


def test_without_pidfds_they_look(root: Path) -> None:
    ending = "asked.commit(); client.submit(Asked(2, b'2' * 999, asked.commit())); client.wait(); os._exit(0)"
    program = f"import os\ndel os.pidfd_open\n{TRAINER}\n{ending}"
    command = [sys.executable, "-c", program, str(root), noise(1, 20_000).hex()]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    assert stored(root) == b"2" * 999


# --- both ---------------------------------------------------------------------------------------------------------


def test_when_both_are_killed_the_store_is_as_it_was(root: Path) -> None:
    with refs_held(root), trainer(root, "") as process:
        await_save(root)
        worker = only_worker(process.pid)
        os.kill(process.pid, signal.SIGSTOP)  # it shall not see the worker's death
        kill(worker)
        process.kill()
        process.wait()
    assert stored(root) == noise(0)
    with Repository.open(root, thread_count=1) as repo:
        client = Client(repo)
        asked = Asked(1, noise(1), repo.resolve("main"))
        client.submit(asked)
        asked.commit()
        client.close()
    assert stored(root) == noise(1)


# --- forks --------------------------------------------------------------------------------------------------------


def require_nothing_of(client: Client) -> None:
    names = []
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that the list was read by
            names.append(str(fd.readlink()))
    assert not [name for name in names if "memfd:moonclip" in name or "pidfd" in name or "eventfd" in name]
    assert "memfd:moonclip" not in Path("/proc/self/maps").read_text()
    client.wait()
    client.stop(lambda: None)
    client.close()


def test_a_forked_child_holds_nothing_of_the_worker(root: Path) -> None:
    with Repository.open(root, thread_count=1) as repo:
        client = Client(repo)
        asked = Asked(1, noise(1), repo.resolve("main"))
        with refs_held(root):
            client.submit(asked)
            await_save(root)
            assert os.waitpid(forked(lambda: require_nothing_of(client)), 0)[1] == 0
        asked.commit()
        client.close()
    assert stored(root) == noise(1)
