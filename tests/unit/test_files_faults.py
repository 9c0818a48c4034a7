"""``store.disk.files`` on a disk that fails: the old content stays, nothing is left behind, nothing is claimed."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from store.disk.calls import Disk
from store.disk.files import Files
from tools.crash.faults import FaultyDisk, Killed

OLD, NEW = b"old\n", b"x" * 1000

Change = Callable[[Files, Path], None]
CHANGES: dict[str, Change] = {
    "write_atomic": lambda files, root: files.write_atomic(root / "file", NEW),
    "append_durable": lambda files, root: files.append_durable(root / "file", NEW),
    "allocate": lambda files, root: files.allocate(root / "new", 8192),
    "rename_durable": lambda files, root: files.rename_durable(root / "file", root / "renamed"),
    "rename_all_durable": lambda files, root: files.rename_all_durable({root / "file": root / "renamed"}),
    "remove": lambda files, root: files.remove(root / "file"),
    "make_directory": lambda files, root: files.make_directory(root / "a" / "b"),
}


def operation_count(change: Change, root: Path) -> int:
    disk = FaultyDisk()
    prepare(root)
    change(Files(disk), root)
    return disk.operation_count


def prepare(root: Path) -> None:
    root.mkdir()
    (root / "file").write_bytes(OLD)


@pytest.mark.parametrize("name", CHANGES)
def test_no_failing_call_goes_unnoticed(tmp_path: Path, name: str) -> None:
    for number in range(operation_count(CHANGES[name], tmp_path / "all")):
        root = tmp_path / str(number)
        prepare(root)
        with pytest.raises(OSError, match="Input/output"):
            CHANGES[name](Files(FaultyDisk(fail_at_operation=number)), root)


def nameless(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("call", ["write", "pread", "truncate", "allocate", "fsync", "sync_directory"])
def test_errors_of_calls_that_know_no_path_name_it_all_the_same(tmp_path: Path, call: str) -> None:
    changes = CHANGES | {
        "truncate": lambda files, root: files.truncate(root / "file", 1),
        "read_bytes": lambda files, root: files.read_bytes(root / "file"),  # type: ignore[dict-item,return-value]
        "open_blocks": lambda files, root: files.open_blocks(root / "new").finish(),
    }
    disk, errors = Disk(), list[OSError]()
    setattr(disk, call, nameless)
    for name, change in changes.items():
        prepare(tmp_path / name)
        try:
            change(Files(disk), tmp_path / name)
        except OSError as error:
            errors.append(error)
    assert errors
    assert all(Path(error.filename).is_relative_to(tmp_path) for error in errors)
    assert all(error.filename in str(error) for error in errors)


@pytest.mark.parametrize("name", ["write_atomic", "append_durable", "allocate"])
def test_nothing_half_written_stays(tmp_path: Path, name: str) -> None:
    last = operation_count(CHANGES[name], tmp_path / "all") - 1
    syncs_directory = name != "append_durable"
    for number in range(last if syncs_directory else last + 1):
        root = tmp_path / str(number)
        prepare(root)
        with pytest.raises(OSError, match="Input/output"):
            CHANGES[name](Files(FaultyDisk(fail_at_operation=number)), root)
        assert (Files().list_directory(root), (root / "file").read_bytes()) == (["file"], OLD), number


@pytest.mark.parametrize("room_bytes", [0, 1, 500, 999])
def test_c1_a_disk_that_fills_up_in_the_middle(tmp_path: Path, room_bytes: int) -> None:
    for name in ("write_atomic", "append_durable"):
        root = tmp_path / name
        prepare(root)
        disk = FaultyDisk(fail_at_byte=room_bytes, error_number=errno.ENOSPC, is_lasting=True)
        with pytest.raises(OSError, match="No space"):
            CHANGES[name](Files(disk), root)
        assert (Files().list_directory(root), (root / "file").read_bytes()) == (["file"], OLD)


def test_a_death_in_the_middle_leaves_the_old_content(tmp_path: Path) -> None:
    for number in range(operation_count(CHANGES["write_atomic"], tmp_path / "all")):
        root = tmp_path / str(number)
        prepare(root)
        with pytest.raises(Killed):
            CHANGES["write_atomic"](Files(FaultyDisk(fail_at_operation=number, error_number=None)), root)
        assert (root / "file").read_bytes() in (OLD, NEW)
