"""Every call that changes the disk fails, or is the last one before the process dies."""

import errno
import shutil
from pathlib import Path

import pytest

from store.disk.files import Files
from store.repository import Repository
from tests.arrays import require_whole
from tools.crash.faults import FaultyDisk
from tools.crash.operations import ALIKE, OPERATIONS, require_makable, require_recovered
from tools.crash.trials import FAULTS, Trials, attempt, keep_index


@pytest.fixture(params=[name for name in OPERATIONS if name not in ALIKE])
def trials(request: pytest.FixtureRequest, tmp_path: Path) -> Trials:
    return Trials(tmp_path, OPERATIONS[request.param])


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_c1_b7_whichever_call_fails_nothing_is_lost(trials: Trials, fault: dict[str, object]) -> None:
    count, changes = trials.operation_count(), trials.index_changes
    assert count > 3
    failed = [trials.require_recovery(fault, number, changes[number % len(changes)]) for number in range(count)]
    assert any(failed)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_c1_whichever_call_fails_of_those_that_a_thread_of_its_own_makes(
    tmp_path: Path, fault: dict[str, object]
) -> None:
    trials = Trials(tmp_path, OPERATIONS["save"])
    for number in range(trials.operation_count()):
        trials.require_recovery(fault, number, keep_index)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("name", ["save", "save on a new branch", "tag"])
def test_c1_b7_whichever_call_fails_with_every_kind_of_index(
    tmp_path: Path, name: str, fault: dict[str, object]
) -> None:
    trials = Trials(tmp_path, OPERATIONS[name])
    for change_index in trials.index_changes:
        for number in range(trials.operation_count()):
            trials.require_recovery(fault, number, change_index)


def test_b6_the_same_handle_saves_when_there_is_space_again(tmp_path: Path) -> None:
    trials = Trials(tmp_path, OPERATIONS["save"])
    for number in range(trials.operation_count()):
        disk = FaultyDisk(error_number=errno.ENOSPC)
        with Repository.open(trials.copy(), files=Files(disk), thread_count=1) as repo:
            disk.fail_at(disk.operation_count + number)
            history = dict(trials.history)
            failed = not attempt(lambda: history.update(trials.operation.run(repo)))  # noqa: B023 - called right here
            history |= trials.operation.run(repo)
            require_whole(repo, history)
            leases = list(repo.layout.writers.iterdir())
            assert len(leases) <= 1  # one may not have gone away, because removing it was what failed
            stray = [path.name for path in repo.layout.packs.iterdir() if path.suffix != ".pack"]
            assert len(stray) <= failed


def test_c1_the_disk_is_full_at_any_byte(tmp_path: Path) -> None:
    trials = Trials(tmp_path, OPERATIONS["save"])
    counting = FaultyDisk()
    with Repository.open(trials.copy(), files=Files(counting), thread_count=1) as repo:
        trials.operation.run(repo)
    total_bytes = counting.written_bytes
    for byte in [*range(0, 200, 13), *range(200, total_bytes, total_bytes // 40)]:
        root, history = trials.copy(), dict(trials.history)
        disk = FaultyDisk(fail_at_byte=byte, error_number=errno.ENOSPC, is_lasting=True)
        with Repository.open(root, files=Files(disk), thread_count=1) as repo:
            assert not attempt(lambda: trials.operation.run(repo))
            require_whole(repo, history)
        require_recovered(root, trials.operation, history, moved_from=trials.moved_from)


def test_a18_writes_that_are_always_short(tmp_path: Path) -> None:
    trials = Trials(tmp_path, OPERATIONS["save"])
    root = trials.copy()
    with Repository.open(root, files=Files(FaultyDisk(max_write_bytes=1000)), thread_count=1) as repo:
        require_whole(repo, {**trials.history, **trials.operation.run(repo)})


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_c1_making_a_store_fails_anywhere(tmp_path: Path, fault: dict[str, object]) -> None:
    counting = FaultyDisk()
    Repository.init(tmp_path / "whole", files=Files(counting)).close()
    for number in range(counting.operation_count):
        root = tmp_path / str(number) / "store"
        root.parent.mkdir()
        disk = FaultyDisk(fail_at_operation=number, **fault)  # type: ignore[arg-type]
        returned = attempt(lambda: Repository.init(root, files=Files(disk)).close())  # noqa: B023 - called right here
        require_makable(root, has_returned=returned)
        shutil.rmtree(root.parent)
