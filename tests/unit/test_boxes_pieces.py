"""Where boxes are cut, and how pieces of several writers become one entry."""

from dataclasses import replace

import pytest

from store.boxes import Box, whole
from store.errors import Incompatible
from store.format.chunking import tensor_cuts
from store.format.entries import Piece
from store.ids import ChunkId, ObjectId
from store.limits import MAX_CHUNK_BYTES, MAX_INLINE_BYTES, MAX_PIECES, MIB
from store.saving.pieces import BoxBytes, box_cuts, entry_of_bytes, entry_of_pieces, is_inline, merged

A, B, C, D = (ChunkId(ObjectId(letter * 32)) for letter in (b"a", b"b", b"c", b"d"))


def piece(offsets: tuple[int, ...], sizes: tuple[int, ...], chunk: ChunkId) -> Piece:
    """A piece of bytes that is one chunk."""
    return Piece(offsets, sizes, (Box(offsets, sizes).volume,), (chunk,))


@pytest.mark.parametrize("shape", [(), (7,), (1024, 4096), (1001, 1536), (3, 5 * MIB)])
def test_a_whole_tensor_is_cut_as_ever(shape: tuple[int, ...]) -> None:
    assert box_cuts(shape, whole(shape), 4) == tensor_cuts(shape, 4)


def test_rows_are_cut_where_the_tensor_would_be() -> None:
    shape = (1024, 4096)  # chunks of 128 rows
    assert box_cuts(shape, Box((128, 0), (256, 4096)), 4) == (2 * MIB, 2 * MIB)
    assert box_cuts(shape, Box((100, 0), (200, 4096)), 4) == (28 * 16384, 2 * MIB, 44 * 16384)


def test_columns_are_cut_where_all_rows_of_them_would_be() -> None:
    assert box_cuts((1024, 4096), Box((512, 1024), (512, 2048)), 4) == tensor_cuts((1024, 2048), 4)[4:]


def test_a_box_without_elements_has_no_chunk() -> None:
    assert box_cuts((4, 4), Box((2, 0), (0, 4)), 4) == ()
    assert box_cuts((4, 4), Box((2, 0), (2, 0)), 4) == ()


def test_a_long_row_is_cut_at_whole_elements() -> None:
    cuts = box_cuts((2, 3 * MIB), Box((1, 5), (1, 3 * MIB - 5)), 16)
    assert max(cuts) == MAX_CHUNK_BYTES
    assert sum(cuts) == (3 * MIB - 5) * 16


def test_rows_that_follow_one_another_become_one_piece() -> None:
    pieces = [piece((4, 0), (2, 9), C), piece((0, 0), (1, 9), A), piece((1, 0), (3, 9), B)]
    assert merged(pieces) == (Piece((0, 0), (6, 9), (9, 27, 18), (A, B, C)),)


def test_columns_stay_pieces_each_of_all_its_rows() -> None:
    pieces = [piece((0, 0), (1, 4), A), piece((0, 4), (1, 5), B), piece((1, 0), (1, 4), C), piece((1, 4), (1, 5), D)]
    assert merged(pieces) == (Piece((0, 0), (2, 4), (4, 4), (A, C)), Piece((0, 4), (2, 5), (5, 5), (B, D)))


@pytest.mark.parametrize(("above", "below"), [(4, 3), (3, 4)])
def test_pieces_of_other_columns_are_not_put_together(above: int, below: int) -> None:
    pieces = (
        piece((0, 0), (1, above), A),
        piece((0, above), (1, 6 - above), C),
        piece((1, 0), (1, below), B),
        piece((1, below), (1, 6 - below), D),
    )
    assert merged(pieces) == pieces


def test_pieces_without_elements_are_dropped() -> None:
    none = [Piece((500, 0), (0, 1), (), ()), Piece((0, 1), (500, 0), (), ())]
    assert merged([piece((0, 0), (500, 1), A), *none]) == (piece((0, 0), (500, 1), A),)


def test_pieces_without_dims_do_not_follow_one_another() -> None:
    assert len(merged([piece((), (), A), piece((), (), B)])) == 2


def test_a_hole_is_refused_with_tensor_and_place() -> None:
    pieces = [piece((0,), (300,), A), piece((400,), (100,), B)]
    with pytest.raises(Incompatible, match=r"^model::w: nobody has \[300:400\] of shape \[500\]"):
        entry_of_pieces("model::w", 0, "uint8", (500,), pieces)


def test_an_overlap_is_refused() -> None:
    pieces = [piece((0,), (300,), A), piece((300,), (200,), B), piece((299,), (1,), C)]
    with pytest.raises(Incompatible, match="overlap"):
        entry_of_pieces("w", 0, "uint8", (500,), pieces)


def test_more_pieces_than_a_reader_takes_are_refused() -> None:
    pieces = [piece((0, column), (1, 1), A) for column in range(MAX_PIECES + 1)]
    with pytest.raises(Incompatible, match=f"{MAX_PIECES + 1} pieces"):
        entry_of_pieces("w", 0, "uint8", (1, MAX_PIECES + 1), pieces)
    shape = (1, MAX_PIECES)
    assert len(entry_of_pieces("w", 0, "uint8", shape, pieces[:-1]).pieces) == MAX_PIECES


def test_rows_of_any_number_of_writers_are_few_pieces() -> None:
    pieces = [piece((row, 0), (1, 3), A) for row in range(MAX_PIECES + 1)]
    assert len(entry_of_pieces("w", 0, "uint8", (MAX_PIECES + 1, 3), pieces).pieces) == 1


def test_small_tensors_sit_in_the_tree_whoever_had_them() -> None:
    assert is_inline("float32", (8, 8))
    assert not is_inline("float32", (8, 8 + 1))
    parts = [BoxBytes(Box((0, 1), (2, 2)), b"bcfg"), BoxBytes(Box((0, 0), (2, 1)), b"ae")]
    parts.append(BoxBytes(Box((0, 3), (2, 0)), b""))
    assert entry_of_bytes("w", 3, "uint8", (2, 3), parts).inline == b"abcefg"
    assert entry_of_bytes("w", 3, "int16", (), [BoxBytes(Box((), ()), b"ab")]).inline == b"ab"
    assert entry_of_bytes("w", 3, "int16", (0, MAX_INLINE_BYTES), []).inline == b""


def test_bytes_that_do_not_fit_their_box_are_refused() -> None:
    part = BoxBytes(Box((0,), (2,)), b"abc")
    with pytest.raises(Incompatible, match=r"w: 3 bytes given for \[0:2\], which takes 2"):
        entry_of_bytes("w", 0, "uint8", (2,), [part])
    with pytest.raises(Incompatible, match="nobody has"):
        entry_of_bytes("w", 0, "uint8", (3,), [part._replace(data=b"ab")])


def test_the_order_of_writers_does_not_matter() -> None:
    pieces = [piece((row, 0), (1, 300), chunk) for row, chunk in enumerate((A, B, C))]
    pieces.append(replace(piece((3, 0), (1, 300), D)))
    entries = {entry_of_pieces("w", 0, "uint8", (4, 300), order) for order in (pieces, pieces[::-1])}
    assert len(entries) == 1
