"""The files beside a remote's packs: what they say is theirs, or they are refused."""

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from store.codec import Transform
from store.errors import Corrupt, Incompatible
from store.format import pack
from store.format.dtypes import Element
from store.format.objects import Commit, Kind
from store.format.pack import ObjectHeader, PackTable, Sealed
from store.ids import PackId
from store.remotes.idx import IDX_MAGIC, Idx, decode_idx, decoded_commit, encode_idx
from tests.packing import chunk, id_of, join


def sealed_commit(step: int) -> Sealed:
    """A commit without items, stored raw."""
    encoded = Commit({}, step=step).encode()
    commit = Commit({}, step=step).id
    return pack.seal(ObjectHeader(Kind.COMMIT, Transform.RAW, False, Element.INT8, len(encoded), commit), [encoded])


def table_of(sealed: list[Sealed]) -> PackTable:
    """The table of a pack of these objects."""
    data = join(sealed)
    footer = pack.decode_footer(data[-pack.FOOTER_BYTES :], len(data), "pack")
    return pack.decode_table(data[footer.table_offset : -pack.FOOTER_BYTES], footer, "pack")


def idx_of(sealed: list[Sealed]) -> tuple[bytes, PackId]:
    """The idx of a pack of these objects, and the pack's id."""
    commits = [b"".join(each.buffers) for each in sealed if each.header.kind is Kind.COMMIT]
    return encode_idx(table_of(sealed), commits), id_of(join(sealed))


OBJECTS = [chunk(b"some bytes"), sealed_commit(1), chunk(b"others"), sealed_commit(2)]
IDX, PACK = idx_of(OBJECTS)


def test_an_idx_says_what_is_in_its_pack() -> None:
    idx = decode_idx(IDX, PACK)
    assert idx.table == table_of(OBJECTS)
    assert idx.pack_bytes == len(join(OBJECTS))
    assert [decoded_commit(commit, stored).step for commit, stored in idx.commits.items()] == [1, 2]


def test_that_of_another_pack_is_refused() -> None:
    _, other = idx_of(OBJECTS[:1])
    with pytest.raises(Corrupt, match="it is that of pack"):
        decode_idx(IDX, other)


def test_a_newer_version_is_refused_by_number() -> None:
    newer = IDX[:8] + (2).to_bytes(4, "little") + IDX[12:]
    with pytest.raises(Incompatible, match="version 2"):
        decode_idx(newer, PACK)


@given(st.integers(0, len(IDX) - 1), st.integers(1, 255))
def test_no_flipped_byte_is_taken_for_something_else(at: int, mask: int) -> None:
    damaged = bytearray(IDX)
    damaged[at] ^= mask
    with pytest.raises((Corrupt, Incompatible)):
        decode_idx(damaged, PACK)


@given(st.integers(0, len(IDX) - 1))
def test_one_that_is_cut_off_or_longer_is_refused(size_bytes: int) -> None:
    with pytest.raises(Corrupt):
        decode_idx(IDX[:size_bytes], PACK)
    with pytest.raises(Corrupt):
        decode_idx(IDX + IDX[size_bytes:], PACK)


@given(st.binary(max_size=400))
@example(IDX_MAGIC + b"\x01\0\0\0\xff\xff\xff\xff")
@example(IDX_MAGIC + b"\x01\0\0\0\x01\0\0\0" + b"\xff" * 100)
def test_whatever_the_bytes_nothing_but_our_errors(data: bytes) -> None:
    with suppress(Corrupt, Incompatible):
        assert isinstance(decode_idx(data, PACK), Idx)


def test_a_commit_under_another_name_is_refused() -> None:
    first, second = decode_idx(IDX, PACK).commits.items()
    with pytest.raises(Corrupt, match="does not match its id"):
        decoded_commit(first[0], second[1])
    with pytest.raises(Corrupt, match="it is no commit"):
        decoded_commit(first[0], b"".join(OBJECTS[0].buffers))
