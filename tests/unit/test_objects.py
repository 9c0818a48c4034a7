"""Trees and commits have one encoding, and malformed ones are refused where they are decoded."""

import pytest

from store.errors import Corrupt, Incompatible
from store.format import canonical
from store.format.entries import ContainerEntry, Piece, TensorEntry, ValueEntry, check_name
from store.format.objects import Commit, SubTree, TreeNode
from store.format.values import encode as encode_value
from store.ids import ChunkId, CommitId, ObjectId, TreeId, chunk_id
from store.limits import MAX_DIMENSIONS, MAX_NAME_BYTES

CHUNK = chunk_id(b"chunk")
TREE = TreeId(ObjectId(bytes(range(32))))
PARENT = CommitId(ObjectId(bytes(range(1, 33))))


def tensor(**changes: object) -> TensorEntry:
    fields: dict[str, object] = {
        "position": 0,
        "dtype": "float32",
        "shape": (4, 32),
        "pieces": (Piece((0, 0), (4, 32), (512,), (CHUNK,)),),
    }
    return TensorEntry(**{**fields, **changes})  # type: ignore[arg-type]


HALF = Piece((0, 0), (2, 32), (256,), (CHUNK,))

TREE_NODE = TreeNode(
    entries=(
        ("a", tensor()),
        ("b", TensorEntry(1, "int8", (3,), inline=b"abc")),
        ("c", ContainerEntry(2, "dict", ("x", 1))),
        ("d", ValueEntry(3, inline=encode_value({"lr": 0.1}))),
        ("e", ValueEntry(4, cuts=(9000, 9000, 5), chunks=(CHUNK, CHUNK, CHUNK))),
    ),
    ties=(("a", "b"),),
)

COMMIT = Commit(
    items={"optimizer": TREE, "model": TREE},
    parents=(PARENT,),
    step=7,
    time_ns=1,
    branch="main",
    message="hello",
    metadata={"z": 1.5, "a": [1, (2, None)]},
)


def test_tree_round_trips() -> None:
    assert TreeNode.decode(TREE_NODE.encode()) == TREE_NODE


def test_tree_of_subtrees_round_trips() -> None:
    node = TreeNode(subtrees=(SubTree("a", 3, TREE), SubTree("b", 1, TREE)))
    assert TreeNode.decode(node.encode()) == node


def test_commit_round_trips_and_keeps_the_order_of_metadata() -> None:
    again = Commit.decode(COMMIT.encode())
    assert again == COMMIT
    assert list(again.metadata) == ["z", "a"]


def test_commit_id_does_not_depend_on_the_order_of_items() -> None:
    swapped = Commit(**{**_fields(COMMIT), "items": dict(reversed(list(COMMIT.items.items())))})
    assert swapped.id == COMMIT.id


def test_commit_id_covers_every_field() -> None:
    changes = {
        "items": {"model": TREE},
        "parents": (),
        "step": 8,
        "time_ns": 2,
        "branch": "other",
        "message": "bye",
        "metadata": {"a": [1, (2, None)], "z": 1.5},
    }
    ids = {Commit(**{**_fields(COMMIT), name: value}).id for name, value in changes.items()}
    assert len(ids | {COMMIT.id}) == 1 + len(changes)


def _fields(commit: Commit) -> dict[str, object]:
    return {name: getattr(commit, name) for name in Commit.__slots__}


@pytest.mark.parametrize(
    "entry",
    [
        tensor(shape=(4, 31)),
        tensor(dtype="float31"),
        tensor(pieces=(Piece((0, 1), (4, 32), (512,), (CHUNK,)),)),
        tensor(pieces=(Piece((0,), (128,), (512,), (CHUNK,)),)),
        tensor(pieces=(Piece((0, 0), (4, 32), (510, 2), (CHUNK, CHUNK)),)),
        tensor(pieces=(Piece((0, 0), (4, 32), (256,), (CHUNK,)),)),
        tensor(pieces=(Piece((0, 0), (4, 32), (512,), (ChunkId(ObjectId(b"short")),)),)),
        tensor(pieces=()),
        tensor(pieces=(HALF, HALF)),
        tensor(pieces=(Piece((0, 0), (4, 16), (256,), (CHUNK,)), Piece((2, 0), (2, 32), (256,), (CHUNK,)))),
        TensorEntry(0, "int8", (4,), inline=b"abc"),
        TensorEntry(0, "int8", (257,), inline=b"a" * 257),
        ValueEntry(0, inline=b"x" * (16 * 1024 + 1)),
        ValueEntry(0, cuts=(9000,), chunks=(CHUNK,)),
        TensorEntry(0, "int8", (9,), pieces=(Piece((0,), (9,), (9,), (CHUNK,)),)),
    ],
)
def test_entry_that_does_not_add_up_is_refused(entry: TensorEntry | ValueEntry) -> None:
    with pytest.raises(Corrupt):
        TreeNode.decode(TreeNode(entries=(("a", entry),)).encode())


def test_names_must_be_sorted_and_unique() -> None:
    entry = TensorEntry(0, "int8", (0,), inline=b"")
    for names in (("b", "a"), ("a", "a")):
        with pytest.raises(Corrupt, match="sorted"):
            TreeNode.decode(TreeNode(entries=tuple((name, entry) for name in names)).encode())


def test_unknown_field_is_refused() -> None:
    node = canonical.decode(COMMIT.encode())
    with pytest.raises(Corrupt):
        Commit.decode(canonical.encode({**node, "later": 1}))


def test_name_limits() -> None:
    check_name("x" * MAX_NAME_BYTES)
    with pytest.raises(Incompatible, match="longer"):
        check_name("x" * (MAX_NAME_BYTES + 1))
    with pytest.raises(Incompatible, match="UTF-8"):
        check_name("\ud800")


def test_pieces_that_tile_in_two_dims_are_accepted() -> None:
    quarters = [Piece((row, column), (2, 16), (128,), (CHUNK,)) for row in (0, 2) for column in (0, 16)]
    node = TreeNode(entries=(("a", tensor(pieces=tuple(quarters))),))
    assert TreeNode.decode(node.encode()) == node


def test_what_nobody_could_read_back_is_not_written() -> None:
    node = TreeNode(entries=(("a", TensorEntry(0, "int8", (1,) * (MAX_DIMENSIONS + 1), inline=b"\0")),))
    with pytest.raises(Incompatible, match="1025 dimensions"):
        node.encode()
