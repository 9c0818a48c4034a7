"""In which order a window's objects are checked: few bases wait in memory, whatever is stored against what."""

from hypothesis import example, given
from hypothesis import strategies as st

from store.codec import Transform
from store.format.dtypes import Element
from store.format.objects import Kind
from store.format.pack import TableEntry
from store.ids import ObjectId, PackId
from store.remotes.fetching.incoming import Placed, RemoteCopy
from store.remotes.fetching.receiving import _lines
from store.remotes.names import pack_name


def object_id(number: int) -> ObjectId:
    return ObjectId(number.to_bytes(32))


def placed(bases: list[int | None]) -> list[Placed]:
    """Objects of which number n is stored against number ``bases[n]``, which comes before it."""
    pack = pack_name(PackId(bytes(32)))
    entries = [
        TableEntry(
            Kind.CHUNK,
            Transform.RAW if base is None else Transform.XOR,
            Element.INT8,
            raw_bytes=1,
            stored_bytes=100,
            offset=0,
            id=object_id(number),
            base=None if base is None else object_id(base),
            checksum=bytes(16),
        )
        for number, base in enumerate(bases)
    ]
    return [Placed(RemoteCopy(pack, entry), 0, 0) for entry in entries]


@st.composite
def trees(draw: st.DrawFn) -> list[int | None]:
    count = draw(st.integers(1, 60))
    return [None, *(draw(st.integers(0, number)) for number in range(count))]


CATERPILLAR = [None, *(number // 2 * 2 for number in range(62))]
"""A chain, and beside each of its links one that nothing is stored against."""


@given(trees())
@example(CATERPILLAR)
def test_f10_few_bases_wait(bases: list[int | None]) -> None:
    first, above = _lines(placed(bases))
    seen: list[ObjectId] = []
    waiting: list[tuple[Placed, ObjectId | None]] = [(each, None) for each in first]
    while waiting:
        now, _ = waiting.pop()
        entry = now.copy.entry
        assert entry.base is None or entry.base in seen
        seen.append(entry.id)
        waiting += [(each, entry.id) for each in above.get(entry.id, ())]
        assert len({base for _, base in waiting}) <= len(bases).bit_length() + 1
    assert sorted(seen) == [object_id(number) for number in range(len(bases))]


def test_what_is_stored_against_other_windows_begins_a_line() -> None:
    first, above = _lines(placed([None, 0, None])[1:])
    assert [each.copy.entry.id for each in first] == [object_id(1), object_id(2)]
    assert not above
