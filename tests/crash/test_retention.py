"""A save and the retention after it, cut short at every call that changes the disk: B7."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from store.disk.files import Files
from store.errors import Pruned
from store.fsck import fsck
from store.gc import collect
from store.ids import CommitId
from store.repository import Repository
from store.upkeep.retention import Keep
from tests.arrays import State, drifted, noise, read, save
from tests.pruning import is_pruned, prune
from tools.crash.faults import FaultyDisk, Killed
from tools.crash.power import Loss, power_cut
from tools.crash.recording import RecordingDisk

STATES: list[State] = [{"w": noise("w", 900), "same": noise("same", 900)}]
STATES += [{**STATES[0], "w": drifted(STATES[0]["w"], seed)} for seed in range(2)]
LAST = Keep(last=1)


def prepare(root: Path) -> list[CommitId]:
    """Two commits, of which retention kept the later one."""
    with Repository.init(root, thread_count=1) as repo:
        commits = [save(repo, state).commit for state in STATES[:2]]
        prune(repo, LAST)
    (root / "ballast").unlink()
    return commits


Tidy = Callable[[Repository], object]
"""What a worker does after a save with ``Keep(last=1)``."""


def drop(repo: Repository) -> None:
    """After every save."""
    prune(repo, LAST)


def drop_and_collect(repo: Repository) -> None:
    """When it pays."""
    prune(repo, LAST)
    collect(repo)


TIDYING = pytest.mark.parametrize("tidy", [drop, pytest.param(drop_and_collect, marks=pytest.mark.slow)])


def require_one_loads(
    root: Path, commits: list[CommitId], tidy: Tidy, *, acknowledged: CommitId | None, is_checked: bool
) -> None:
    """The tip loads, bit for bit, the store is sound (which takes a while to see), and the run goes on."""
    with Repository.open(root, thread_count=1) as repo:
        tip = repo.refs.read("branches/main")
        assert tip is not None
        assert read(repo, tip) == (STATES[1] if tip == commits[1] else STATES[2])
        if acknowledged is not None:
            assert tip == acknowledged
        assert is_pruned(repo, [commits[0], tip]) == [True, False]
        if is_pruned(repo, commits)[1]:
            with pytest.raises(Pruned):
                read(repo, commits[1])
        else:
            assert read(repo, commits[1]) == STATES[1]
        if is_checked:
            assert fsck(repo, full=True).findings == []
        last = save(repo, STATES[2]).commit
        tidy(repo)
        assert read(repo, last) == STATES[2]
        assert is_pruned(repo, [*commits, last]) == [True, True, False]


def operation_count(before: Path, copy: Path, tidy: Tidy) -> int:
    shutil.copytree(before, copy)
    disk = FaultyDisk()
    with Repository.open(copy, files=Files(disk), thread_count=1) as repo:
        opened = disk.operation_count
        save(repo, STATES[2])
        tidy(repo)
        return disk.operation_count - opened


@TIDYING
@pytest.mark.parametrize("error_number", [None, errno.EIO, errno.ENOSPC], ids=["killed", "EIO", "ENOSPC"])
def test_b7_whichever_call_fails_at_least_one_commit_loads(
    tmp_path: Path, error_number: int | None, tidy: Tidy
) -> None:
    commits = prepare(tmp_path / "before")
    count = operation_count(tmp_path / "before", tmp_path / "counted", tidy)
    pruned_count = 0
    for number in range(count):
        root = tmp_path / str(number)
        shutil.copytree(tmp_path / "before", root)
        disk = FaultyDisk(error_number=error_number, is_lasting=error_number == errno.ENOSPC)
        acknowledged = None
        with Repository.open(root, files=Files(disk), thread_count=1) as repo:
            disk.fail_at(disk.operation_count + number)
            try:
                acknowledged = save(repo, STATES[2]).commit
                tidy(repo)
            except (OSError, Killed):
                pass
        with Repository.open(root, read_only=True) as repo:
            pruned_count += is_pruned(repo, commits)[1]
        require_one_loads(root, commits, tidy, acknowledged=acknowledged, is_checked=number % 3 == 0)
        shutil.rmtree(root)
    assert 0 < pruned_count < count


@TIDYING
def test_b7_whenever_the_power_fails_at_least_one_commit_loads(tmp_path: Path, tidy: Tidy) -> None:
    """The index is lost with it, and made anew."""
    commits = prepare(tmp_path / "store")
    recording = RecordingDisk(tmp_path / "store")
    with Repository.open(tmp_path / "store", files=Files(recording), thread_count=1) as repo:
        save(repo, STATES[2])
        recording.mark("acknowledged")
        tidy(repo)
    marks = [number for number, event in enumerate(recording.log) if getattr(event, "label", "") == "acknowledged"]
    for length in range(0, len(recording.log) + 1, 2):
        for number, loss in enumerate((Loss.EVERYTHING, Loss.NOTHING, Loss.SOME)):
            root = tmp_path / "left"
            power_cut(recording.start, recording.log[:length], root, loss, Random(10 * length + number))
            with Repository.open(root, thread_count=1) as repo:
                acknowledged = repo.refs.read("branches/main") if length > marks[0] else None
                assert acknowledged is None or acknowledged != commits[1]
            require_one_loads(root, commits, tidy, acknowledged=acknowledged, is_checked=length % 3 == number)
            shutil.rmtree(root)
