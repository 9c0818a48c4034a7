"""Descriptors that know whether they are still what they were."""

import os
from pathlib import Path

import pytest

from store.disk.descriptors import Descriptor
from store.saving.arenas import Arena


def test_it_is_closed_once(tmp_path: Path) -> None:
    descriptor = Descriptor(fd := os.open(tmp_path, os.O_RDONLY))
    assert descriptor.is_intact
    descriptor.close()
    assert (descriptor.fd, descriptor.is_intact) == (-1, False)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    descriptor.close()


def test_what_got_its_number_is_left_alone(tmp_path: Path) -> None:
    descriptor = Descriptor(fd := os.open(tmp_path, os.O_RDONLY))
    os.close(fd)
    assert not descriptor.is_intact
    assert os.open(tmp_path.parent, os.O_RDONLY) == fd
    assert not descriptor.is_intact
    descriptor.close()
    os.fstat(fd)
    os.close(fd)


def test_an_arena_whose_descriptor_was_closed_closes_no_other(tmp_path: Path) -> None:
    arena = Arena.make(4096)
    os.close(fd := arena.fd)
    assert not arena.is_intact
    assert os.open(tmp_path, os.O_RDONLY) == fd
    arena.close()
    os.fstat(fd)
    os.close(fd)


def test_there_may_be_none() -> None:
    descriptor = Descriptor(-1)
    assert not descriptor.is_intact
    descriptor.close()
