"""Copying and comparing buffers, at every alignment and around every size where the way of doing it changes; rooms."""

import os

import pytest

from store import kernels
from store.limits import HELD_COPY_BYTES, KIB, MIB
from store.memory import Room, copy_bytes, same_bytes

SIZES = [0, 1, 63, HELD_COPY_BYTES, HELD_COPY_BYTES + 1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 300 * KIB + 77]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("source_at", [0, 1, 64])
def test_a_copy_is_exact_and_writes_nothing_else(size: int, source_at: int) -> None:
    kernels.warm()
    source = os.urandom(size + source_at)
    for target_at in (0, 1, 63, 64, 65):
        target = bytearray(b"\xaa") * (size + 200)
        copy_bytes(memoryview(source)[source_at:], memoryview(target)[target_at : target_at + size])
        assert target[target_at : target_at + size] == source[source_at:]
        assert set(target[:target_at] + target[target_at + size :]) == {0xAA}


@pytest.mark.parametrize("size", SIZES[1:])
def test_one_byte_anywhere_makes_a_difference(size: int) -> None:
    left = os.urandom(size)
    assert same_bytes(memoryview(left), memoryview(bytes(left)))
    for at in {0, size // 2, size - 1}:
        right = bytearray(left)
        right[at] ^= 1
        assert not same_bytes(memoryview(left), memoryview(right))
    assert not same_bytes(memoryview(left), memoryview(left)[1:])


@pytest.mark.parametrize("size", [1, 256 * KIB - 1, 256 * KIB, 5 * MIB])
def test_a_room_gives_as_much_as_is_asked_for_and_the_same_memory_again(size: int) -> None:
    room = Room()
    memory = room.of(size)
    memory[:] = b"x" * size
    assert room.of(size) == b"x" * size
    assert room.of(size // 2) == b"x" * (size // 2)


def test_what_a_room_gave_stays_readable_when_it_gives_more() -> None:
    """What is decoded next may need it as a base."""
    room = Room()
    given = []
    for number, size in enumerate([100, 300 * KIB, 5 * MIB, 9 * MIB]):
        given.append(room.of(size))
        given[-1][:] = bytes([number]) * size
    assert [(len(memory), set(memory)) for memory in given] == [
        (100, {0}),
        (300 * KIB, {1}),
        (5 * MIB, {2}),
        (9 * MIB, {3}),
    ]


def test_that_there_is_no_memory_is_no_error_of_a_file() -> None:
    """Whoever reads models passes over those whose files cannot be read."""
    with pytest.raises(MemoryError, match="no memory for"):
        Room().of(1 << 60)
