"""Leaves read by their forms are what the general way makes of them, or are left to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import Corrupt, Incompatible
from store.format import canonical
from store.format.entries import ContainerEntry, Entry, Piece, TensorEntry, ValueEntry, decode_entry, encode_entry
from store.format.entryforms import read_leaf
from store.format.objects import TreeNode
from store.ids import ChunkId, ObjectId, chunk_id
from store.limits import MAX_NESTING

POSITIONS = st.sampled_from([0, 1, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1])
NAMES = st.text(max_size=40) | st.sampled_from(["a" * 23, "a" * 24, "a" * 255, "é" * 128, "a" * 4096])
IDS = st.binary(min_size=32, max_size=32).map(lambda raw: ChunkId(ObjectId(raw)))


@st.composite
def _cut(draw: st.DrawFn) -> TensorEntry:
    """A tensor in one piece, of one chunk or of several."""
    rows, columns = draw(st.integers(65, 300)), draw(st.sampled_from([1, 24, 300]))
    cuts = draw(st.sampled_from([(rows,), (64, rows - 64), (32, 32, rows - 64)]))
    pieces = (Piece((0, 0), (rows, columns), tuple(4 * columns * cut for cut in cuts), tuple(draw(IDS) for _ in cuts)),)
    return TensorEntry(
        draw(POSITIONS), draw(st.sampled_from(["float32", "int32", "complex32"])), (rows, columns), pieces
    )


SCALARS = st.sampled_from(["int8", "bfloat16", "float32", "float64"]).flatmap(
    lambda dtype: st.builds(
        lambda position, data: TensorEntry(position, dtype, (), inline=data),
        POSITIONS,
        st.binary(min_size=(size := {"int8": 1, "bfloat16": 2, "float32": 4, "float64": 8}[dtype]), max_size=size),
    )
)
CONTAINERS = st.builds(ContainerEntry, POSITIONS, st.sampled_from(["dict", "list", "OrderedDict", "", "a b"]))
VALUES = st.builds(lambda position, data: ValueEntry(position, inline=data), POSITIONS, st.binary(max_size=300))
CHUNK = chunk_id(b"chunk")
TENSOR = TensorEntry(0, "float32", (128,), (Piece((0,), (128,), (512,), (CHUNK,)),))
ODD = st.sampled_from(
    [
        ContainerEntry(0, "dict", {"a": [1]}),
        ValueEntry(3, cuts=(20_000,), chunks=(CHUNK,)),
        TensorEntry(0, "float32", (128,), tuple(Piece((start,), (64,), (256,), (CHUNK,)) for start in (0, 64))),
        TensorEntry(0, "int8", (3,), inline=b"abc"),
        TensorEntry(0, "float32", (0, 5), inline=b""),
    ]
)
PLAIN = _cut() | SCALARS | CONTAINERS | VALUES | ODD
TIES = st.just(()) | st.lists(st.lists(NAMES, min_size=2, max_size=3).map(tuple), max_size=3).map(tuple)
Read = tuple[tuple[tuple[str, Entry], ...], tuple[tuple[str, ...], ...]]


def generally(data: bytes) -> Read:
    node = canonical.decode(data)
    ties = tuple(tuple(names) for names in node.get("ties", []))
    return tuple((name, decode_entry(body, name)) for name, body in node["entries"]), ties


def leaf(entries: dict[str, Entry], ties: tuple[tuple[str, ...], ...] = ()) -> bytes:
    return TreeNode(tuple(sorted(entries.items(), key=lambda pair: pair[0].encode())), ties=ties).encode()


@given(st.dictionaries(NAMES, PLAIN, max_size=40), TIES)
def test_what_is_read_by_forms_is_what_the_general_way_reads(
    entries: dict[str, Entry], ties: tuple[tuple[str, ...], ...]
) -> None:
    data = leaf(entries, ties)
    assert read_leaf(data) == generally(data)
    node = TreeNode.decode(data)
    assert (node.entries, node.ties) == generally(data)


@given(st.dictionaries(NAMES, PLAIN, min_size=1, max_size=4), TIES, st.data())
def test_altered_bytes_are_read_as_the_general_way_does_or_refused(
    entries: dict[str, Entry], ties: tuple[tuple[str, ...], ...], data: st.DataObject
) -> None:
    altered = bytearray(leaf(entries, ties))
    read_leaf(bytes(altered))  # so that the forms are known
    for _ in range(data.draw(st.integers(1, 3))):
        altered[data.draw(st.integers(0, len(altered) - 1))] = data.draw(st.integers(0, 255))
    found = read_leaf(bytes(altered))
    if found is not None:
        assert found == generally(bytes(altered))
        assert TreeNode(found[0], ties=found[1]).encode() == altered


def encoded(*entries: bytes) -> bytes:
    return canonical.template("entries") % canonical.join_list(entries)


@pytest.mark.parametrize(
    "data",
    [
        encoded(encode_entry("a", TENSOR)) + b"\0",
        encoded(encode_entry("a", TENSOR))[:-1],
        encoded(encode_entry("b", TENSOR), encode_entry("a", TENSOR)),
        encoded(encode_entry("a", TENSOR), encode_entry("a", TENSOR)),
        encoded(encode_entry("a", TENSOR)).replace(b"\x82aa\xa1", b"\x82\x78\x01a\xa1"),
        encoded(encode_entry("a", TENSOR)).replace(b"\x82aa\xa1", b"\x82a\xff\xa1"),
        encoded(encode_entry("a", TENSOR)).replace(b"hposition\x00", b"hposition\x18\x00"),
        encoded(encode_entry("a", TENSOR)).replace(b"dcuts\x81\x82\x19\x02\x00\x01", b"dcuts\x81\x82\x19\x02\x00\x02"),
        encoded(encode_entry("a", TENSOR)).replace(b"gfloat32", b"gfloat31"),
        encoded(encode_entry("a", TENSOR)).replace(b"eshape\x81\x18\x80", b"eshape\x81\x18\x81"),
        encoded(encode_entry("a", TensorEntry(0, "int8", (2,), inline=b"a"))),
        b"\xa1gentries\x98\x01" + encode_entry("a", TENSOR),
        b"\xa1gentries\x82" + encode_entry("a", TENSOR),
        b"\xa1gentries",
    ],
)
def test_what_is_no_canonical_leaf_is_refused_though_its_forms_are_known(data: bytes) -> None:
    assert read_leaf(encoded(encode_entry("a", TENSOR))) == ((("a", TENSOR),), ())
    assert read_leaf(data) is None
    with pytest.raises(Corrupt):
        TreeNode.decode(data)


def test_cuts_that_could_be_said_shorter_are_refused() -> None:
    twice = TensorEntry(0, "float32", (256,), (Piece((0,), (256,), (512, 512), (CHUNK, CHUNK)),))
    run = b"\x82\x19\x02\x00"
    data = encoded(encode_entry("a", twice)).replace(b"dcuts\x81" + run + b"\x02", b"dcuts\x82" + 2 * (run + b"\x01"))
    assert read_leaf(data) is None
    with pytest.raises(Corrupt, match="canonical"):
        TreeNode.decode(data)


def tied(ties: bytes) -> bytes:
    return canonical.template("entries", "ties") % (canonical.join_list([encode_entry("a", TENSOR)]), ties)


@pytest.mark.parametrize(
    "ties",
    [
        canonical.encode([]),
        canonical.encode([["a"]]),
        canonical.encode([["a", "b"], []]),
        canonical.encode(["ab"]),
        canonical.encode({"a": "b"}),
        canonical.encode([["a", 1]]),
        b"\x81\x82aa\x78\x01b",
        canonical.encode([["a", "b"]]) + b"\0",
        canonical.encode([["a", "b"]])[:-1],
        b"\xc1\x00",
        b"",
    ],
)
def test_ties_that_are_none_are_refused(ties: bytes) -> None:
    read = read_leaf(tied(canonical.encode([["a", "b"]])))
    assert read == ((("a", TENSOR),), (("a", "b"),))
    assert read_leaf(tied(ties)) is None
    with pytest.raises(Corrupt):
        TreeNode.decode(tied(ties))


def test_what_is_nested_as_deep_as_may_be() -> None:
    """Alone it may not be deeper than it may be in its tree."""
    info: list[object] = []
    with pytest.raises(Incompatible, match="nested"):
        while True:
            data = leaf({"a": ContainerEntry(0, "dict", info)})
            assert read_leaf(data) == generally(data)
            info = [info]
    nested: list[object] = []
    for _ in range(MAX_NESTING - 3):
        nested = [nested]
    body = canonical.encode(nested)
    assert canonical.parse_part(b"?" + body, 1, 3, "part") == (nested, 1 + len(body))
    with pytest.raises(Corrupt, match="part"):
        canonical.parse_part(b"?" + body, 1, 4, "part")
