"""Locks: between threads, processes, and across fork."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from store.disk.files import Files
from store.errors import Busy

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

files = Files()


def is_locked(path: Path) -> bool:
    try:
        files.lock_exclusive(path, blocking=False).close()
    except Busy:
        return True
    return False


def in_child(answer: Callable[[], int]) -> int:
    """Run a function in a forked child and return its exit status."""
    pid = os.fork()
    if pid == 0:
        os._exit(answer())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_an_exclusive_lock_keeps_others_of_this_process_out(tmp_path: Path) -> None:
    with files.lock_exclusive(tmp_path / "lock"):
        assert is_locked(tmp_path / "lock")
        with pytest.raises(Busy, match="lock"):
            files.lock_shared(tmp_path / "lock", blocking=False)
    assert not is_locked(tmp_path / "lock")


def test_shared_locks_go_together(tmp_path: Path) -> None:
    with files.lock_shared(tmp_path / "lock"), files.lock_shared(tmp_path / "lock", blocking=False):
        assert is_locked(tmp_path / "lock")


def test_threads_take_turns(tmp_path: Path) -> None:
    inside, most_inside = 0, 0

    def work() -> None:
        nonlocal inside, most_inside
        for _ in range(50):
            with files.lock_exclusive(tmp_path / "lock"):
                inside += 1
                most_inside = max(most_inside, inside)
                os.sched_yield()
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most_inside == 1


def test_another_process_is_kept_out(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from store.disk.files import Files; from store.errors import Busy\n"
    code += "try: Files().lock_exclusive(Path(sys.argv[1]), blocking=False)\n"
    code += "except Busy: sys.exit(7)\n"
    command = [sys.executable, "-c", code, str(tmp_path / "lock")]
    with files.lock_exclusive(tmp_path / "lock"):
        assert subprocess.run(command, check=False).returncode == 7
    assert subprocess.run(command, check=False).returncode == 0


def test_a_lock_of_a_file_that_must_exist(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.lock_exclusive(tmp_path / "lease", create=False)
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_cannot_free_its_parents_lock(tmp_path: Path) -> None:
    with files.lock_exclusive(tmp_path / "lock") as lock:
        assert in_child(lambda: lock.close() or 0) == 0
        assert is_locked(tmp_path / "lock")


def test_a_forked_child_does_not_inherit_a_lock(tmp_path: Path) -> None:
    with files.lock_exclusive(tmp_path / "lock"):
        assert in_child(lambda: 5 if is_locked(tmp_path / "lock") else 0) == 5


def test_closing_an_inherited_lock_closes_no_file_of_the_childs(tmp_path: Path) -> None:
    def child() -> int:
        opened = os.open(tmp_path, os.O_RDONLY)  # takes the number that the lock's file had
        lock.close()
        os.fstat(opened)
        return 0

    lock = files.lock_exclusive(tmp_path / "lock")
    assert in_child(child) == 0
    lock.close()


def test_a_dead_owners_lock_is_free_though_its_child_lives(tmp_path: Path) -> None:
    ready_read, ready_write = os.pipe()
    owner = os.fork()
    if owner == 0:
        kept = files.lock_exclusive(tmp_path / "lock")
        if os.fork() == 0:
            os.write(ready_write, f"{os.getpid()}\n".encode())
            signal.pause()
        signal.pause()
        kept.close()
    grandchild = int(os.read(ready_read, 20))
    try:
        assert is_locked(tmp_path / "lock")
        os.kill(owner, signal.SIGKILL)
        os.waitpid(owner, 0)
        assert not is_locked(tmp_path / "lock")
    finally:
        os.kill(grandchild, signal.SIGKILL)
        os.close(ready_read)
        os.close(ready_write)


def test_a_forgotten_lock_is_freed(tmp_path: Path) -> None:
    lock = files.lock_exclusive(tmp_path / "lock")
    del lock
    assert not is_locked(tmp_path / "lock")
