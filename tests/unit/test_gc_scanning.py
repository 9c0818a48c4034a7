"""Ids are found in a tree's encoding wherever they are, whatever lies around them."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.format.entries import ContainerEntry, Entry, Piece, TensorEntry, ValueEntry
from store.format.objects import SubTree, TreeNode
from store.format.trees import build
from store.gc.scanning import chunk_ids, subtree_ids
from store.ids import ChunkId, ObjectId
from store.limits import MAX_INLINE_BYTES


def ids(count: int, seed: object = 0) -> tuple[ChunkId, ...]:
    chance = Random(repr(seed))
    return tuple(ChunkId(ObjectId(chance.randbytes(32))) for _ in range(count))


def tensor(chunks: tuple[ChunkId, ...], position: int = 0) -> TensorEntry:
    sizes = (len(chunks) * 1024,)
    return TensorEntry(position, "uint8", sizes, (Piece((0,), sizes, (1024,) * len(chunks), chunks),))


def inline(data: bytes) -> TensorEntry:
    return TensorEntry(0, "uint8", (len(data),), inline=data)


def encoded(entries: dict[str, Entry]) -> bytes:
    return TreeNode(tuple(sorted(entries.items()))).encode()


@pytest.mark.parametrize("count", [1, 2, 23, 24, 255, 256, 65535, 65536])
def test_lists_of_any_length(count: int) -> None:
    expected = ids(count)
    assert tuple(chunk_ids(encoded({"a": tensor(expected)}))) == expected


def test_every_kind_of_entry() -> None:
    entries: dict[str, Entry] = {
        "container": ContainerEntry(0, "dict"),
        "inline": inline(bytes(7)),
        "pieces": TensorEntry(
            1,
            "uint8",
            (4, 1024),
            (Piece((0, 0), (2, 1024), (2048,), ids(1, "a")), Piece((2, 0), (2, 1024), (1024, 1024), ids(2, "b"))),
        ),
        "value": ValueEntry(2, cuts=(20_000, 20_000), chunks=ids(2, "c")),
        "small value": ValueEntry(2, inline=b"\xf6"),
    }
    assert sorted(chunk_ids(encoded(entries))) == sorted([*ids(1, "a"), *ids(2, "b"), *ids(2, "c")])


LOOKALIKES = [
    b"fchunks",
    b"fchunks\x81X ",
    b"fchunks\x81X " + bytes(40),
    b"fchunks\x87X " + bytes(60),
    b"fchunks\x98",
    b"fchunks\x9b" + b"\xff" * 8,
    b"fchunks\x9a\x00\x00\x00\x02X ",
    b"fchunksfchunks\x81",
]


@given(st.lists(st.sampled_from(LOOKALIKES) | st.binary(max_size=8), max_size=6), st.integers(1, 40))
def test_no_bytes_that_look_like_ids_hide_what_follows(parts: list[bytes], count: int) -> None:
    """A list that seems to begin at the end of one tensor's bytes reaches into the next one's entry."""
    data = b"".join(parts)[-MAX_INLINE_BYTES:]
    expected = ids(count, parts)
    found = chunk_ids(
        encoded({"a": inline(data), "b": tensor(expected), "fchunks\x00": inline(data), "z": tensor(expected)})
    )
    assert set(expected) <= set(found)


def test_leaves_below_a_root() -> None:
    entries = {f"layer.{number}": tensor(ids(1, number), number) for number in range(3000)}
    *leaves, root = build(entries, ties=(("layer.1", "layer.2"),))
    assert len(leaves) > 1
    assert set(subtree_ids(root.encoded)) == {leaf.id for leaf in leaves}
    assert chunk_ids(root.encoded) == []
    assert all(subtree_ids(leaf.encoded) == [] for leaf in leaves)
    found = [chunk for leaf in leaves for chunk in chunk_ids(leaf.encoded)]
    assert sorted(found) == sorted(ids(1, number)[0] for number in range(3000))


def test_a_root_without_ties() -> None:
    leaf = build({"a": tensor(ids(1))})[0]
    root = TreeNode(subtrees=(SubTree("a", 1, leaf.id),)).encode()
    assert subtree_ids(root) == [leaf.id]
