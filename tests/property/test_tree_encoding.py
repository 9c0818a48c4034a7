"""Trees are put together from encoded pieces: the result is what the library makes of the whole."""

from hypothesis import given
from hypothesis import strategies as st

from store.format import canonical
from store.format.entries import ContainerEntry, Entry, Piece, TensorEntry, ValueEntry
from store.format.objects import TreeNode
from store.ids import ChunkId, ObjectId

SIZES = st.integers(0, 2**63 - 1) | st.integers(0, 300)
CHUNKS = st.lists(st.binary(min_size=32, max_size=32).map(lambda raw: ChunkId(ObjectId(raw))), max_size=30).map(tuple)
SHAPES = st.lists(SIZES, max_size=5).map(tuple)
PIECES = st.builds(Piece, SHAPES, SHAPES, st.lists(SIZES, max_size=40).map(tuple), CHUNKS)
ENTRIES = st.one_of(
    st.builds(TensorEntry, SIZES, st.text(max_size=30), SHAPES, st.lists(PIECES, max_size=3).map(tuple)),
    st.builds(TensorEntry, SIZES, st.text(max_size=30), SHAPES, st.just(()), st.binary(max_size=300)),
    st.builds(ValueEntry, SIZES, st.binary(max_size=70_000)),
    st.builds(ValueEntry, SIZES, st.none(), st.lists(SIZES, max_size=40).map(tuple), CHUNKS),
    st.builds(ContainerEntry, SIZES, st.text(max_size=30), st.none() | st.lists(st.floats())),
)


@given(
    st.dictionaries(st.text(max_size=300), ENTRIES, max_size=30), st.lists(st.lists(st.text()).map(tuple)).map(tuple)
)
def test_trees_are_put_together_as_the_library_encodes_them(
    entries: dict[str, Entry], ties: tuple[tuple[str, ...], ...]
) -> None:
    encoded = TreeNode(entries=tuple(entries.items()), ties=ties).encode()
    canonical.decode(encoded)  # encodes it again, with the library, and compares
