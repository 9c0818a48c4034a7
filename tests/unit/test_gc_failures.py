"""What a gc that failed leaves goes with the next one."""

import errno
from pathlib import Path

import pytest

from store.disk.calls import Disk
from store.disk.files import Files
from store.fsck import fsck
from store.gc import collect
from store.repository import Repository
from tests.arrays import noise, read, require_whole, save
from tests.collecting import forget_branch, line
from tests.packing import chunk, delta, write


class Clinging(Disk):
    """Fails once to remove a pack, or to take its name away."""

    def __init__(self, call: str) -> None:
        self._call = call
        self.has_failed = False

    def unlink(self, path: Path) -> None:
        self._fail("unlink", path)
        super().unlink(path)

    def rename(self, source: Path, target: Path) -> None:
        self._fail("rename", source)
        super().rename(source, target)

    def _fail(self, call: str, path: Path) -> None:
        if call == self._call and path.parent.name == "packs" and not self.has_failed:
            self.has_failed = True
            raise OSError(errno.EIO, "injected")


def collect_in_vain(root: Path, call: str) -> None:
    disk = Clinging(call)
    with Repository.open(root, files=Files(disk), thread_count=1) as repo, pytest.raises(OSError, match="injected"):
        collect(repo)
    assert disk.has_failed


@pytest.mark.parametrize("call", ["unlink", "rename"])
def test_a_pack_that_could_not_be_removed_goes_next_time(tmp_path: Path, call: str) -> None:
    root = tmp_path / "store"
    with Repository.init(root, thread_count=1) as repo:
        made = line(repo, "main", 2)
        line(repo, "gone", 2, "gone")
        forget_branch(repo, "gone")
    collect_in_vain(root, call)
    with Repository.open(root, thread_count=1) as repo:
        collect(repo)
        packs = {f"{pack.hex()}.pack" for pack in repo.index.packs()}
        assert {path.name for path in repo.layout.packs.iterdir()} == packs
        require_whole(repo, made)


def test_copies_that_the_index_has_forgotten_need_no_bases(tmp_path: Path) -> None:
    """What was collected is saved again, while the packs that it was in, as deltas, are still there."""
    root = tmp_path / "store"
    with Repository.init(root, thread_count=1) as repo:
        states = list(line(repo, "gone", 12).values())[1::2]  # and not what they are stored against
        forget_branch(repo, "gone")
    collect_in_vain(root, "rename")
    with Repository.open(root, thread_count=1) as repo:
        again = {save(repo, state, branch=f"again{number}").commit: state for number, state in enumerate(states)}
        require_whole(repo, again)


def test_copies_that_the_index_has_not_read_need_no_bases(tmp_path: Path) -> None:
    """What gc left of packs whose bases were elsewhere, or of a save that died."""
    state = {"w": noise("w", 300)}
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        made = {save(repo, state).commit: state}
        for number in range(8):  # some of them come before the pack of the save, in the order of their names
            stray = delta(state["w"].data, b"gone", bytes(64))
            write(repo.layout.packs, [stray, chunk(f"{number}".encode())])
        assert fsck(repo).findings == []
        assert read(repo, next(iter(made))) == state
