"""A rank's part as a file: what comes out is what went in, or it is refused."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.boxes import Box
from store.disk.files import Files
from store.errors import Corrupt, PartsMissing, SnapshotGone
from store.format import values
from store.format.casts import packed
from store.format.entries import ContainerEntry, Piece, ValueEntry
from store.format.objects import Kind
from store.ids import ID_BYTES, ObjectId, PackId, TreeId, chunk_id, tree_id
from store.index import Place
from store.saving.descriptions import Description
from store.saving.partfiles import (
    begin_parts,
    packs_of_parts,
    ranks_handed_in,
    read_description,
    read_parts,
    release_parts,
    remove_parts,
    snapshot_directories,
    write_part,
)
from store.saving.parts import HEAD, ItemPart, Part, TensorPart, sealed
from store.saving.pieces import BoxBytes, Cast
from store.saving.rankindex import RankIndex

ID = "5" * 32
PACKS = (PackId(b"\1" * 32), PackId(b"\2" * 32))
A, B, C = (ObjectId(bytes([number]) * 32) for number in (10, 11, 12))
TENSOR = TensorPart(
    3,
    "bfloat16",
    (8, 100),
    (
        Piece((0, 0), (4, 100), (400, 400), (chunk_id(b"a"), chunk_id(b"b"))),
        Piece((4, 50), (4, 50), (400,), (chunk_id(b"c"),)),
    ),
)
SMALL = TensorPart(4, "uint8", (4,), inline=(BoxBytes(Box((1,), (2,)), b"xy"),))
CAST = TensorPart(
    5, "float32", (8, 100), (Piece((0, 0), (8, 100), (800,), (chunk_id(b"e"),)),), (), Cast("float8_e5m2", packed([-3]))
)
PART = Part(
    1,
    PACKS,
    {
        "model": ItemPart({"w": TENSOR, "b": SMALL, "c": CAST, "": ContainerEntry(0, "dict")}, (("w", "head"),)),
        "optimizer": ItemPart(
            {
                "step": ValueEntry(1, inline=values.encode(7)),
                "log": ValueEntry(2, cuts=(20_000,), chunks=(chunk_id(b"d"),)),
            }
        ),
    },
)


def place(depth: int = 0, base: ObjectId | None = None) -> Place:
    return Place(PACKS[depth % 2], 64 + depth, 100, 4000, Kind.CHUNK, base, depth)


def test_a_part_is_what_it_was() -> None:
    assert Part.decode(PART.encode(), "part") == PART


def test_a_description_is_what_it_was() -> None:
    told = Description(4, 17, True, {"model": TreeId(tree_id(b"t"))}, {A: place(), B: place(1, A)})
    assert Description.decode(told.encode(), "description") == told


@given(st.integers(0, len(PART.encode()) - 1), st.integers(0, 7))
def test_a_flipped_bit_is_found(at: int, bit: int) -> None:
    data = bytearray(PART.encode())
    data[at] ^= 1 << bit
    with pytest.raises(Corrupt):
        Part.decode(bytes(data), "part")


@given(st.binary(max_size=200))
def test_whatever_bytes_a_part_is_made_of_it_is_one_or_corrupt(body: bytes) -> None:
    for data in (body, sealed(body), sealed(HEAD.pack(b"\x89MCPART\n", 0, 0) + body)):
        for decode in (Part.decode, Description.decode):
            try:
                decode(data, "part")
            except Corrupt as error:
                assert str(error).startswith("part")


def test_cuts_that_do_not_fill_a_piece_are_refused() -> None:
    piece = replace(TENSOR.pieces[1], cuts=(398,))
    part = Part(0, (), {"model": ItemPart({"w": TENSOR._replace(pieces=(piece,))})})
    with pytest.raises(Corrupt, match="do not fill"):
        Part.decode(part.encode(), "part")


@pytest.mark.parametrize(
    "cast", [Cast("float64", b""), Cast("float8_e5m2", b""), Cast("bfloat16", b"ab"), Cast("float8_e5m2", b"abc")]
)
def test_casts_that_there_are_not_are_refused(cast: Cast) -> None:
    part = Part(0, (), {"model": ItemPart({"c": CAST._replace(cast=cast)})})
    with pytest.raises(Corrupt, match="part: 'model'"):
        Part.decode(part.encode(), "part")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    files = Files()
    begin_parts(tmp_path, files, ID, b"told")
    return files


def test_parts_are_there_once_they_are_handed_in(tmp_path: Path, files: Files) -> None:
    assert read_description(tmp_path, files, ID) == b"told"
    write_part(tmp_path, files, ID, PART)
    assert ranks_handed_in(tmp_path, files, ID) == [1]
    with pytest.raises(PartsMissing, match=r"of 4 ranks 3 have not stored their part .*: 0, 2, 3;") as missing:
        read_parts(tmp_path, files, ID, 4)
    assert missing.value.details["ranks"] == [0, 2, 3]
    write_part(tmp_path, files, ID, PART._replace(rank=0, packs=()))
    assert [part.rank for part in read_parts(tmp_path, files, ID, 2)] == [0, 1]
    assert packs_of_parts(tmp_path, files, ID) == set(PACKS)


def test_a_part_under_another_ranks_name_is_refused(tmp_path: Path, files: Files) -> None:
    write_part(tmp_path, files, ID, PART)
    (tmp_path / "parts" / ID / "1").rename(tmp_path / "parts" / ID / "0")
    with pytest.raises(Corrupt, match=r"part of rank 0 .*: it is that of rank 1"):
        read_parts(tmp_path, files, ID, 1)


def test_a_part_whose_packs_cannot_be_read_is_corrupt(tmp_path: Path, files: Files) -> None:
    path = tmp_path / "parts" / ID / "1"
    for data in (b"", b"no part at all..", PART.encode()[: HEAD.size + ID_BYTES]):
        path.write_bytes(data)
        with pytest.raises(Corrupt):
            packs_of_parts(tmp_path, files, ID)


def test_what_is_removed_is_gone_for_ranks_too(tmp_path: Path, files: Files) -> None:
    write_part(tmp_path, files, ID, PART)
    (tmp_path / "parts" / ID / ".tmp-half").touch()
    assert [path.name for path in snapshot_directories(tmp_path, files)] == [ID]
    remove_parts(tmp_path, files, ID)
    remove_parts(tmp_path, files, ID)
    assert snapshot_directories(tmp_path, files) == []
    assert packs_of_parts(tmp_path, files, ID) == frozenset()
    with pytest.raises(SnapshotGone):
        write_part(tmp_path, files, ID, PART)
    with pytest.raises(SnapshotGone):
        read_description(tmp_path, files, ID)


class Meanwhile(Files):
    """Something else happens ahead of one of the calls that the removal of a snapshot is made of."""

    def __init__(self, number: int, happens: Callable[[], None]) -> None:
        super().__init__()
        self.left = number
        self.happens = happens

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.happens()

    def remove(self, path: Path) -> None:
        self._count()
        super().remove(path)

    def list_directory(self, path: Path) -> list[str]:
        self._count()
        return super().list_directory(path)

    def remove_directory(self, path: Path) -> None:
        self._count()
        super().remove_directory(path)


@pytest.mark.parametrize("number", range(1, 5))
def test_a_part_that_is_handed_in_while_the_snapshot_is_removed_leaves_nothing(
    tmp_path: Path, files: Files, number: int
) -> None:
    def hand_in() -> None:
        with suppress(SnapshotGone):
            write_part(tmp_path, files, ID, PART)

    write_part(tmp_path, files, ID, PART._replace(rank=0))
    meanwhile = Meanwhile(number, hand_in)
    release_parts(tmp_path, meanwhile, ID)
    assert meanwhile.left <= 0
    assert list((tmp_path / "parts").iterdir()) == []


@pytest.mark.parametrize("name", ["", "../../x", "5" * 31, "5" * 31 + "/"])
def test_f10_what_is_no_id_is_no_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(SnapshotGone):
        read_description(tmp_path, Files(), name)


def test_an_index_of_what_a_rank_knows_forgets_bad_copies() -> None:
    index = RankIndex({A: place(), B: place(1, A)})
    assert index.places_below([B]) == {B: [place(1, A)], A: [place()]}
    index.mark_bad(A, PACKS[0])
    assert index.places(A) == index.places_in_packs(A) == []
    assert index.places_of_each([A, B, C]) == {A: [], B: [place(1, A)], C: []}


def test_a_rank_remembers_only_what_it_needs() -> None:
    index = RankIndex({A: place(), B: place(1, A), C: place()})
    assert index.after([], [B]) == {A: place(), B: place(1, A)}
