"""Every call that changes the disk fails, or is the last one before the process dies."""

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store.files import Files
from store.repository import Repository
from tests.arrays import require_whole
from tests.crashing import (
    OPERATIONS,
    History,
    Operation,
    garble_index,
    prepare,
    put_index,
    remove_index,
    require_makable,
    require_recovered,
)
from tools.crash.faults import FaultyDisk, Killed

FAULTS = {
    "EIO": {"error_number": errno.EIO},
    "ENOSPC from then on": {"error_number": errno.ENOSPC, "is_lasting": True},
    "killed": {"error_number": None},
}


def attempt(run: Callable[[], object]) -> bool:
    """Whether it got through."""
    try:
        run()
    except (OSError, Killed):
        return False
    return True


class Trials:
    """Runs an operation on copies of one store, each with another fault."""

    def __init__(self, directory: Path, operation: Operation) -> None:
        self.operation = operation
        self.history: History = prepare(directory / "before")
        self._directory = directory
        with Repository.open(directory / "before", read_only=True) as repo:
            self.moved_from = repo.refs.read(operation.moves) if operation.moves else None

    def copy(self) -> Path:
        target = self._directory / "trial"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self._directory / "before", target)
        return target

    def operation_count(self) -> int:
        disk = FaultyDisk()
        with Repository.open(self.copy(), files=Files(disk), thread_count=1) as repo:
            opened = disk.operation_count
            self.operation.run(repo)
            return disk.operation_count - opened

    def run(self, disk: FaultyDisk, number: int) -> tuple[Path, History]:
        """Run the operation with a fault at its call ``number``; returns the store and what was acknowledged."""
        root = self.copy()
        history = dict(self.history)
        with Repository.open(root, files=Files(disk), thread_count=1) as repo:
            disk._fail_at_operation = disk.operation_count + number
            if attempt(lambda: history.update(self.operation.run(repo))):
                assert number >= 0
        return root, history

    def stale_index(self) -> Callable[[Path], None]:
        return put_index(self._directory / "before" / "index")


@pytest.fixture(params=OPERATIONS)
def trials(request: pytest.FixtureRequest, tmp_path: Path) -> Trials:
    return Trials(tmp_path, OPERATIONS[request.param])


def keep(_: Path) -> None:
    """Leave the index as it is."""


def variants(trials: Trials) -> Iterator[Callable[[Path], None]]:
    """What may become of the index, in turn."""
    while True:
        yield from (keep, remove_index, trials.stale_index(), garble_index)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_c1_b7_whichever_call_fails_nothing_is_lost(trials: Trials, fault: dict[str, object]) -> None:
    count = trials.operation_count()
    assert count > 3
    failed_count = 0
    for number, change_index in zip(range(count), variants(trials), strict=False):
        root, history = trials.run(FaultyDisk(**fault), number)  # type: ignore[arg-type]
        failed_count += history == trials.history
        change_index(root)
        require_recovered(root, trials.operation, history, moved_from=trials.moved_from)
    assert failed_count > 0


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_c1_whichever_call_fails_of_those_that_a_thread_of_its_own_makes(
    tmp_path: Path, fault: dict[str, object]
) -> None:
    trials = Trials(tmp_path, OPERATIONS["save"])
    for number in range(trials.operation_count()):
        root, history = trials.run(FaultyDisk(**fault), number)  # type: ignore[arg-type]
        require_recovered(root, trials.operation, history, moved_from=trials.moved_from)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("name", ["save", "save on a new branch", "tag"])
def test_c1_b7_whichever_call_fails_with_every_kind_of_index(
    tmp_path: Path, name: str, fault: dict[str, object]
) -> None:
    trials = Trials(tmp_path, OPERATIONS[name])
    for change_index in (keep, remove_index, trials.stale_index(), garble_index):
        for number in range(trials.operation_count()):
            root, history = trials.run(FaultyDisk(**fault), number)  # type: ignore[arg-type]
            change_index(root)
            require_recovered(root, trials.operation, history, moved_from=trials.moved_from)


def test_b6_the_same_handle_saves_when_there_is_space_again(tmp_path: Path) -> None:
    trials = Trials(tmp_path, OPERATIONS["save"])
    for number in range(trials.operation_count()):
        disk = FaultyDisk(error_number=errno.ENOSPC)
        with Repository.open(trials.copy(), files=Files(disk), thread_count=1) as repo:
            disk._fail_at_operation = disk.operation_count + number
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
