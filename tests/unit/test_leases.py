import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from store.disk.files import FileLock, Files
from store.errors import Conflict, Corrupt
from store.ids import CommitId, ObjectId, PackId
from store.saving.leases import LeaseRecord, acquire_lease, living_leases

REPOSITORY = Path(__file__).parents[2]
PACK, COMMIT = PackId(b"p" * 32), CommitId(ObjectId(b"c" * 32))


def lease_files(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "writers").iterdir())


def test_a_lease_says_what_its_owner_makes_until_it_is_released(tmp_path: Path) -> None:
    files = Files()
    with acquire_lease(tmp_path, files) as lease:
        lease.add_pack(PACK)
        lease.add_commit(COMMIT)
        (record,) = living_leases(tmp_path, files)
        assert record == LeaseRecord(lease.name, frozenset({PACK}), frozenset({COMMIT}))
    assert lease_files(tmp_path) == []
    lease.release()
    with pytest.raises(Conflict, match="not held by this process"):
        lease.add_pack(PACK)


def test_a_store_without_leases(tmp_path: Path) -> None:
    assert living_leases(tmp_path, Files()) == []


def test_a_torn_line_is_ignored_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    files = Files()
    with acquire_lease(tmp_path, files) as lease:
        path = tmp_path / "writers" / lease.name
        path.write_bytes(b"pack " + b"70" * 32 + b"\ncommit 63")
        assert [record.packs for record in living_leases(tmp_path, files)] == [{PACK}]
        path.write_bytes(b"pack 70\n")
        with pytest.raises(Corrupt, match=f"lease {path}"):
            living_leases(tmp_path, files)


class SweptFiles(Files):
    """Somebody removes dead leases between the making of a new one and its locking."""

    sweeps = 1

    def lock_exclusive(self, path: Path, **how: Any) -> FileLock:
        if not how and self.sweeps:
            self.sweeps -= 1
            lock = super().lock_exclusive(path)
            path.unlink()
            return lock
        return super().lock_exclusive(path, **how)


def test_a_lease_that_was_swept_before_it_was_locked_is_taken_anew(tmp_path: Path) -> None:
    files = SweptFiles()
    with acquire_lease(tmp_path, files) as lease:
        assert files.sweeps == 0
        assert lease_files(tmp_path) == [lease.name]


OWNER = """
import os, sys
from pathlib import Path
from store.disk.files import Files
from store.ids import CommitId, ObjectId, PackId
from store.saving.leases import acquire_lease

lease = acquire_lease(Path(sys.argv[1]), Files())
lease.add_pack(PackId(b"p" * 32))
if sys.argv[2] == "fork":
    ready, told = os.pipe()
    child = os.fork()
    if not child:
        lease.release()
        os.write(told, b"x")
        print(flush=True)
        sys.stdin.read()
        os._exit(0)
    os.read(ready, 1)
    print(child, flush=True)
else:
    print(flush=True)
sys.stdin.read()
"""


def owner(root: Path, how: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", OWNER, str(root), how]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_b3_a_lease_dies_exactly_when_its_owner_is_killed(tmp_path: Path, how: str) -> None:
    files = Files()
    with owner(tmp_path, how) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(2 if how == "fork" else 1):
            process.stdout.readline()  # the child has tried to release the lease, and lives on until stdin ends
        (living,) = living_leases(tmp_path, files)
        assert living.packs == {PACK}
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert living_leases(tmp_path, files) == []
        process.stdin.close()
