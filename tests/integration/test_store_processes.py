"""Processes that write into one store at the same time, while others read it, check it and rebuild its index."""

import signal
import subprocess
from pathlib import Path

import pytest

from store.ids import CommitId, ObjectId
from store.naming.refnames import branch_name
from store.repository import Repository
from tests.arrays import State, drifted, noise, require_whole
from tests.indexing import run, start

ROUNDS = 12


def state_of(writer: str, step: int) -> State:
    """What a writer saves at a step: something that never changes, something all have in common, something new."""
    return {
        "frozen": noise("frozen", 2000),
        "shared": noise(("shared", step), 500),
        "drifting": drifted(noise(writer, 1000), step),
        "new": noise((writer, step), 300),
    }


WRITER = """
import sys
from store.errors import Conflict
from store.naming.refnames import branch_name
from store.repository import Repository
from store.saving.saver import SaveRequest
from tests.arrays import item
from tests.integration.test_store_processes import state_of

root, branch, writer, rounds = *sys.argv[1:4], int(sys.argv[4])
with Repository.open(root, thread_count=1) as repo:
    print(flush=True)
    sys.stdin.readline()
    last = None
    for step in range(rounds):
        parent = repo.refs.read(branch_name(branch))
        items = [item(state_of(writer, step))]
        try:
            saved = repo.save(SaveRequest(items, branch=branch, parent=parent, step=step, message=writer, last=last))
            last, commit = saved.last, saved.commit
        except Conflict as conflict:
            commit = repo.resolve(conflict.details["kept"])
        print(commit.hex())
"""

READER = """
import sys, threading
from store.fsck import fsck
from store.repository import Repository
from tests.arrays import read
from tests.integration.test_store_processes import state_of

stop = threading.Event()
print(flush=True)
sys.stdin.readline()
threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
seen = set()
with Repository.open(sys.argv[1], thread_count=1, read_only=sys.argv[2] == "read-only") as repo:
    while True:
        is_last = stop.is_set()
        for row in repo.log(set(repo.refs.list().values())):
            if row.id not in seen:
                commit = repo.commit(row.id)
                assert read(repo, row.id) == state_of(commit.message, commit.step)
                seen.add(row.id)
        assert fsck(repo).findings == []
        if is_last:
            break
print(len(seen))
"""

REBUILDER = """
import sys, threading
from store.opening.indexes import rebuild_index
from store.repository import Repository

stop = threading.Event()
print(flush=True)
sys.stdin.readline()
threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
with Repository.open(sys.argv[1], thread_count=1) as repo:
    count = 0
    while not stop.is_set() or count < 3:
        rebuild_index(repo.layout, repo.files, repo.packs)
        count += 1
"""

Process = subprocess.Popen[str]


def go(*processes: Process) -> None:
    """Let processes start together, once all are ready."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
    tell(*processes)


def tell(*processes: Process) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def printed(process: Process) -> list[str]:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return output.split()


def commits_of(lines: list[str], writer: str) -> dict[CommitId, State]:
    return {CommitId(ObjectId(bytes.fromhex(line))): state_of(writer, step) for step, line in enumerate(lines)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Repository.init(tmp_path / "store").close()
    return tmp_path / "store"


@pytest.mark.parametrize("branches", [("main", "exp"), ("main", "main")], ids=["two branches", "one branch"])
def test_a13_d16_two_writers_and_readers(root: Path, branches: tuple[str, str]) -> None:
    writers = [start(WRITER, root, branch, name, str(ROUNDS)) for name, branch in zip("AB", branches, strict=True)]
    readers = [start(READER, root, mode) for mode in ("read-only", "writable")]
    go(*writers, *readers)
    commits: dict[CommitId, State] = {}
    for name, writer in zip("AB", writers, strict=True):
        commits |= commits_of(printed(writer), name)
    tell(*readers)
    assert len(commits) == 2 * ROUNDS
    with Repository.open(root, thread_count=2) as repo:
        require_whole(repo, commits)
        reached = {row.id for row in repo.log(repo.refs.list().values())}
        assert reached == set(commits)  # who lost a swap kept its commit on a branch of its own
    assert [printed(reader) for reader in readers] == [[str(len(commits))]] * 2


def test_two_writers_while_the_index_is_rebuilt(root: Path) -> None:
    writers = [start(WRITER, root, branch, branch, str(ROUNDS)) for branch in ("main", "exp")]
    rebuilder = start(REBUILDER, root)
    go(*writers, rebuilder)
    commits: dict[CommitId, State] = {}
    for name, writer in zip(("main", "exp"), writers, strict=True):
        commits |= commits_of(printed(writer), name)
    tell(rebuilder)
    printed(rebuilder)
    with Repository.open(root, thread_count=2) as repo:
        require_whole(repo, commits)
        assert {row.id for row in repo.log(repo.refs.list().values())} == set(commits)


FORK = """
import os, sys
from store.naming.refnames import branch_name
from store.repository import Repository
from store.saving.saver import SaveRequest
from tests.arrays import item, read
from tests.integration.test_store_processes import state_of

def save(repo, branch, step):
    parent = repo.refs.read(branch_name(branch))
    return repo.save(SaveRequest([item(state_of(branch, step))], branch=branch, parent=parent, step=step)).commit

with Repository.open(sys.argv[1], thread_count=2) as repo:
    first = save(repo, "main", 0)
    child = os.fork()
    branch = "main" if child else "child"
    for step in range(1, 6):
        commit = save(repo, branch, step)
        assert read(repo, commit) == state_of(branch, step)
        assert read(repo, first) == state_of("main", 0)
    if child == 0:
        repo.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_e2_a_fork_with_the_store_open(root: Path) -> None:
    run(FORK, root)
    with Repository.open(root, thread_count=1) as repo:
        commits: dict[CommitId, State] = {}
        for branch, steps in (("main", range(6)), ("child", range(1, 6))):
            commit = repo.refs.read(branch_name(branch))
            for step in reversed(steps):
                assert commit is not None
                commits[commit] = state_of(branch, step)
                commit = next(iter(repo.commit(commit).parents), None)
        require_whole(repo, commits)


def test_d1_a_writer_that_was_stopped_goes_on(root: Path) -> None:
    """Stopped anywhere, for as long as it takes others to save: it goes on and nothing is lost."""
    slow = start(WRITER, root, "main", "slow", str(ROUNDS))
    go(slow)
    commits: dict[CommitId, State] = {}
    for number in range(4):
        slow.send_signal(signal.SIGSTOP)
        try:
            lines = _write_meanwhile(root, number)
        finally:
            slow.send_signal(signal.SIGCONT)
        commits |= commits_of(lines, f"quick{number}")
    commits |= commits_of(printed(slow), "slow")
    with Repository.open(root, thread_count=2) as repo:
        require_whole(repo, commits)


def _write_meanwhile(root: Path, number: int) -> list[str]:
    quick = start(WRITER, root, f"quick{number}", f"quick{number}", "2")
    with quick:
        go(quick)
        output, _ = quick.communicate(timeout=60)
    assert quick.returncode == 0
    return output.split()
