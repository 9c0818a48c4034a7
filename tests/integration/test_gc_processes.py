"""Writers that are suspended while gc runs to its end, in processes of their own, and then go on."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from store.gc import Collected, collect
from store.ids import CommitId, ObjectId
from store.naming.refnames import branch_name
from store.repository import Repository
from tests.arrays import State, noise, require_whole, save
from tests.collecting import forget_branch, line
from tests.indexing import start

STATE: State = {"found": noise("found", 900), "new": noise("new", 900)}
"""What the writers save. The store has a part of it, which nothing leads to."""

WRITER = """
import sys
from store.saving import publish
from store.saving import saver as saving
from store.saving.leases import Lease
from store.saving.packseries import PackSeries
from store.repository import Repository
from tests.arrays import save
from tests.integration.test_gc_processes import STATE

def wait():
    print("waiting", flush=True)
    sys.stdin.readline()

def before(owner, name):
    call = getattr(owner, name)
    def pause_and_call(*arguments, **named):
        setattr(owner, name, call)  # once
        wait()
        return call(*arguments, **named)
    setattr(owner, name, pause_and_call)

{
    "found stored": lambda: before(Lease, "add_commit"),
    "finished": lambda: before(PackSeries, "publish"),
    "named": lambda: before(saving, "add_to_index"),
    "indexed": lambda: before(saving, "move_branch"),
}[sys.argv[2]]()
with Repository.open(sys.argv[1], thread_count=1) as repo:
    print(save(repo, STATE, branch="late").commit.hex(), flush=True)
"""

NAMER = """
import sys
from store.errors import Pruned
from store.ids import CommitId, ObjectId
from store.repository import Repository

root, commit = sys.argv[1], bytes.fromhex(sys.argv[2])
with Repository.open(root, thread_count=1) as repo:
    require = repo.absences.require
    def wait_and_require(*arguments):
        if sys.argv[3] == "before":
            print("waiting", flush=True)
            sys.stdin.readline()
        require(*arguments)
        if sys.argv[3] == "after":
            print("waiting", flush=True)
            sys.stdin.readline()
    repo.absences.require = wait_and_require
    try:
        repo.set_ref("branches/again", None, CommitId(ObjectId(commit)), "branch")
    except Pruned:
        print("refused", flush=True)
    else:
        print("named", flush=True)
"""


@contextmanager
def suspended(script: str, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has come to where it waits, and that the system does not let run meanwhile."""
    process = start(script, *arguments)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGSTOP)
    try:
        yield process
    except BaseException:
        process.kill()
        process.communicate()
        raise
    finally:
        process.send_signal(signal.SIGCONT)


def finished(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate("\n", timeout=60)
    assert process.returncode == 0
    return out.strip()


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    """Has a history, and garbage."""
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        line(repo, "main", 2)
        save(repo, {"found": STATE["found"], "else": noise("else", 900)}, branch="gone")
        forget_branch(repo, "gone")
        yield repo


@pytest.mark.parametrize("point", ["found stored", "finished", "named", "indexed"])
def test_d1_d2_d3_a_writer_that_is_suspended_makes_a_whole_commit(
    repo: Repository, point: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What it found stored is gone by then, unless its commit was to be seen; what it has written is not touched."""
    with suspended(WRITER, repo.layout.root, point) as writer:
        done = collect(repo)
        again = collect(repo)
    assert done.object_count == (2 if point in ("named", "indexed") else 3)
    assert caplog.messages == []
    assert replace(again, repack_bytes=0) == Collected(is_dry_run=False)
    commit = CommitId(ObjectId(bytes.fromhex(finished(writer))))
    assert repo.refs.read(branch_name("late")) == commit
    require_whole(repo, {commit: STATE})
    assert collect(repo).object_count == 0
    require_whole(repo, {commit: STATE})


def test_d1_what_a_writer_that_was_killed_has_written_goes(repo: Repository) -> None:
    for point in ("found stored", "finished", "named", "indexed"):
        with suspended(WRITER, repo.layout.root, point) as writer:
            writer.kill()
        writer.communicate(timeout=60)
    done = collect(repo)
    assert done.commit_count == 2  # one was in the index already
    packs = {place[1] for page in repo.index.places_by_id() for place in page}
    assert sorted(packs) == repo.packs.pack_ids()
    assert [path.suffix for path in repo.layout.packs.iterdir()] == [".pack"] * len(packs)
    require_whole(repo, {})


def test_a_commit_that_is_about_to_be_named_is_refused_or_stays(repo: Repository) -> None:
    tip = list(made := line(repo, "exp", 2, "exp"))[-1]
    forget_branch(repo, "exp")
    with suspended(NAMER, repo.layout.root, tip.hex(), "before") as namer:
        assert collect(repo, dry_run=True).commit_count == 1
    assert finished(namer) == "named"
    require_whole(repo, made)
    forget_branch(repo, "again")
    collect(repo)
    namer = start(NAMER, repo.layout.root, tip.hex(), "never")
    assert finished(namer) == "refused"
