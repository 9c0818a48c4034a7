import errno
from pathlib import Path

import pytest

from store.disk.ballast import Ballast
from store.disk.files import Files
from store.limits import BALLAST_BYTES
from tools.crash.faults import FaultyDisk


def occupied_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_ballast_really_takes_its_space_and_gives_it_back(tmp_path: Path) -> None:
    ballast, path = Ballast(tmp_path, Files()), tmp_path / "ballast"
    ballast.ensure()
    assert path.stat().st_size == BALLAST_BYTES
    assert occupied_bytes(path) >= BALLAST_BYTES
    assert ballast.release() == BALLAST_BYTES
    assert not path.exists()
    assert ballast.release() == 0


def test_ballast_that_is_there_is_left_alone(tmp_path: Path) -> None:
    ballast, path = Ballast(tmp_path, Files()), tmp_path / "ballast"
    ballast.ensure()
    before = path.stat()
    ballast.ensure()
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_ballast_of_an_interrupted_making_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "ballast").write_bytes(b"short")
    Ballast(tmp_path, Files()).ensure()
    assert occupied_bytes(tmp_path / "ballast") >= BALLAST_BYTES


def test_ballast_is_given_up_in_pieces_and_made_whole_again(tmp_path: Path) -> None:
    ballast, path = Ballast(tmp_path, Files()), tmp_path / "ballast"
    ballast.ensure()
    assert ballast.release(4096) == 4096
    assert occupied_bytes(path) == path.stat().st_size == BALLAST_BYTES - 4096
    ballast.ensure()
    assert occupied_bytes(path) >= path.stat().st_size == BALLAST_BYTES


def test_ballast_that_cannot_be_made_whole_stays_as_it_is(tmp_path: Path) -> None:
    disk = FaultyDisk(error_number=errno.ENOSPC)
    ballast, path = Ballast(tmp_path, Files(disk)), tmp_path / "ballast"
    ballast.ensure()
    ballast.release(4096)
    disk.fail_at(disk.operation_count)
    with pytest.raises(OSError, match="No space"):
        ballast.ensure()
    assert path.stat().st_size == BALLAST_BYTES - 4096
