"""Memory that two processes share: what each sees, how long it stays, and what a forked child has of it."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from store.saving.arenas import Arena
from tests.descriptors import left_open
from tests.killing import forked

SIZE = 3 * (1 << 20)


def mapped_count() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:moonclip")


def resident_bytes(arena: Arena) -> int:
    return os.fstat(arena.fd).st_blocks * 512


def test_what_one_writes_the_other_reads() -> None:
    ours = Arena.make(SIZE)
    theirs = Arena.adopt(ours.number, os.dup(ours.fd), ours.size_bytes)
    ours.memory[5:9] = b"here"
    assert bytes(theirs.memory[5:9]) == b"here"
    assert (theirs.number, len(theirs.memory), theirs.memory.format) == (ours.number, SIZE, "B")
    with pytest.raises(TypeError):
        theirs.memory[5] = 1
    assert Arena.make(1).number != ours.number


def test_views_outlive_their_arena() -> None:
    before = mapped_count()
    arena = Arena.make(SIZE)
    arena.memory[:3] = b"abc"
    view = arena.memory[1:]
    arena.close()
    arena.close()
    assert (bytes(view[:2]), mapped_count()) == (b"bc", before + 1)
    del view
    assert mapped_count() == before
    assert arena.fd == -1


def test_pages_are_made_where_they_are_wanted_and_keep_what_they_hold() -> None:
    arena = Arena.make(SIZE)
    assert resident_bytes(arena) == 0
    arena.memory[1 << 20] = 7
    arena.populate((1 << 20) - 5, (2 << 20) + 5)
    assert 1 << 20 < resident_bytes(arena) < 2 << 20
    assert arena.memory[1 << 20] == 7
    arena.populate(0, SIZE)
    assert resident_bytes(arena) == SIZE


def test_an_arena_neither_shrinks_nor_grows() -> None:
    arena = Arena.make(SIZE)
    for size in (0, 2 * SIZE):
        with pytest.raises(OSError) as refused:
            os.truncate(arena.fd, size)
        assert refused.value.errno == errno.EPERM


def test_there_is_an_error_where_there_is_no_room() -> None:
    with left_open(), pytest.raises(MemoryError):
        Arena.make(1 << 60)


def test_a_forked_child_has_nothing_of_it() -> None:
    arena = Arena.make(SIZE)
    fd = arena.fd

    def look() -> None:
        assert mapped_count() == 0
        with pytest.raises(OSError):
            os.fstat(fd)
        arena.close()

    assert os.waitpid(forked(look), 0)[1] == 0
    arena.memory[0] = 1


@contextmanager
def no_memfd(patch: pytest.MonkeyPatch) -> Iterator[None]:
    with patch.context() as context:
        context.delattr(os, "memfd_create")
        yield


def test_without_memfd_it_is_a_file_without_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with no_memfd(monkeypatch):
        ours = Arena.make(SIZE)
    assert list(tmp_path.iterdir()) == []
    ours.populate(0, SIZE)
    ours.memory[-1] = 9
    assert not os.get_inheritable(ours.fd)
    assert Arena.adopt(ours.number, os.dup(ours.fd), SIZE).memory[-1] == 9
