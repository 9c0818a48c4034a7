"""What is read of a remote, and in which order."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.codec import Transform
from store.format.dtypes import Element
from store.format.objects import Kind
from store.format.pack import TableEntry
from store.ids import ObjectId, PackId
from store.limits import FETCH_GAP_BYTES, FETCH_RUN_BYTES, FETCH_WINDOW_BYTES, MAX_CHAIN_DEPTH
from store.remotes.fetching.incoming import Copies, RemoteCopy, choose, windows
from store.remotes.names import PackName, pack_name


def name(number: int) -> ObjectId:
    return ObjectId(number.to_bytes(32, "big"))


def pack(number: int) -> PackName:
    return pack_name(PackId(number.to_bytes(32, "big")))


def copy(number: int, base: int | None = None, *, at: int = 64, size: int = 1000, within: int = 0) -> RemoteCopy:
    of_base = None if base is None else name(base)
    how = Transform.RAW if base is None else Transform.XOR
    return RemoteCopy(
        pack(within), TableEntry(Kind.CHUNK, how, Element.INT8, size, size, at, name(number), of_base, bytes(16))
    )


def offered(copies: Sequence[RemoteCopy]) -> Copies:
    return lambda object_id: [each for each in copies if each.entry.id == object_id]


def ids(copies: Sequence[RemoteCopy]) -> list[int]:
    return [int.from_bytes(each.entry.id) for each in copies]


def test_bases_come_along_and_come_first() -> None:
    copies = [copy(1, base=2, at=64), copy(2, base=3, at=2000), copy(3, at=4000)]
    assert ids(choose([name(1)], offered(copies), {}).copies) == [3, 2, 1]


def test_bases_that_are_here_are_not_read() -> None:
    copies = [copy(1, base=2), copy(2, base=3, at=2000)]
    assert ids(choose([name(1)], offered(copies), {name(2): 5}).copies) == [1]


def test_the_order_in_packs_is_kept_where_nothing_has_to_wait() -> None:
    copies = [copy(number, at=64 + 1000 * number) for number in range(9)]
    wanted = [name(number) for number in (7, 3, 5, 1)]
    assert ids(choose(wanted, offered(copies), {}).copies) == [1, 3, 5, 7]


def test_what_nobody_has_is_lacking_and_so_is_what_needs_it() -> None:
    copies = [copy(1, base=2), copy(3)]
    choice = choose([name(1), name(3), name(4)], offered(copies), {})
    assert ids(choice.copies) == [3]
    assert choice.lacking == [name(1), name(4)]


def test_of_copies_that_do_the_one_that_takes_least_is_read_bases_counted() -> None:
    full, delta, base = copy(1, size=900), copy(1, base=2, size=200, within=1), copy(2, size=800, within=1)
    assert choose([name(1)], offered([full, delta, base]), {}).copies == [full]
    assert choose([name(1)], offered([full, delta, base]), {name(2): 0}).copies == [delta]
    assert choose([name(1), name(2)], offered([full, delta, base]), {}).copies == [base, delta]


def test_a_cycle_among_copies_is_left_by_way_of_another() -> None:
    copies = [copy(1, base=2, size=100), copy(2, base=1, size=100, within=1), copy(1, size=900, within=2)]
    choice = choose([name(1), name(2)], offered(copies), {})
    assert sorted(ids(choice.copies)) == [1, 2]
    assert not choice.lacking
    assert choose([name(1)], offered(copies[:2]), {}).lacking == [name(1)]


def test_chains_no_reader_would_follow_are_lacking() -> None:
    depth = MAX_CHAIN_DEPTH
    copies = [copy(number, base=number - 1 if number else None) for number in range(depth + 2)]
    choice = choose([name(depth), name(depth + 1)], offered(copies), {})
    assert choice.lacking == [name(depth + 1)]
    assert choose([name(1)], offered(copies), {name(0): depth}).lacking == [name(1)]


def test_neighbours_are_read_at_once_and_what_is_far_off_by_itself() -> None:
    copies = [copy(1, at=64), copy(2, at=1064), copy(3, at=2064 + FETCH_GAP_BYTES)]
    copies.append(copy(4, at=copies[-1].entry.end + FETCH_GAP_BYTES + 1))
    (window,) = windows(copies)
    assert [(run.start, run.size_bytes) for run in window.runs] == [
        (64, 3000 + FETCH_GAP_BYTES),
        (copies[3].entry.offset, 1000),
    ]
    assert [(placed.run, placed.at) for placed in window.placed] == [
        (0, 0),
        (0, 1000),
        (0, 2000 + FETCH_GAP_BYTES),
        (1, 0),
    ]


def test_no_run_and_no_window_is_longer_than_what_memory_is_given_for() -> None:
    size = 1 << 20
    copies = [copy(number, at=64 + size * number, size=size) for number in range(200)]
    made = list(windows(copies))
    assert len(made) == math.ceil(200 * size / FETCH_WINDOW_BYTES)
    assert all(run.size_bytes <= FETCH_RUN_BYTES for window in made for run in window.runs)
    assert all(window.read_bytes <= FETCH_WINDOW_BYTES for window in made)


def test_gaps_count_towards_a_window() -> None:
    """Sixteen thousand small objects, each behind a gap that is just read along."""
    copies = [copy(number, at=64 + number * FETCH_GAP_BYTES, size=100) for number in range(4096)]
    made = list(windows(copies))
    assert all(window.read_bytes <= FETCH_WINDOW_BYTES + FETCH_RUN_BYTES for window in made)
    assert ids([placed.copy for window in made for placed in window.placed]) == list(range(4096))


@given(st.data())
def test_whatever_the_copies_each_base_is_before_its_deltas_and_every_byte_is_where_it_is_said(
    data: st.DataObject,
) -> None:
    count = data.draw(st.integers(1, 30))
    ends = dict.fromkeys(range(3), 64)
    copies: list[RemoteCopy] = []
    for _ in range(data.draw(st.integers(1, 60))):
        within = data.draw(st.integers(0, 2))
        number, base = data.draw(st.integers(0, count)), data.draw(st.none() | st.integers(0, count))
        if base == number or any((each.pack, each.entry.id) == (pack(within), name(number)) for each in copies):
            continue
        copies.append(copy(number, base, at=ends[within], size=data.draw(st.integers(1, 500)), within=within))
        ends[within] = copies[-1].entry.end + data.draw(st.sampled_from([0, 0, FETCH_GAP_BYTES + 1]))
    here = {name(number): 0 for number in data.draw(st.sets(st.integers(0, count)))}
    wanted = [name(number) for number in range(count + 1) if name(number) not in here]
    choice = choose(wanted, offered(copies), here)
    seen: set[ObjectId] = set(here)
    for window in windows(choice.copies):
        for placed in window.placed:
            entry, run = placed.copy.entry, window.runs[placed.run]
            assert entry.base is None or entry.base in seen
            assert (run.pack, run.start + placed.at) == (placed.copy.pack, entry.offset)
            assert placed.at + entry.stored_bytes <= run.size_bytes
            seen.add(entry.id)
    assert seen | set(choice.lacking) >= set(wanted)
    assert not seen & set(choice.lacking)


@pytest.mark.parametrize("width", [3])
def test_a_hostile_tangle_ends(width: int) -> None:
    """Every object of each layer is stored against every one of the next, and the last lead nowhere."""
    copies = [
        copy(layer * width + number, (layer + 1) * width + other, within=other)
        for layer in range(60)
        for number in range(width)
        for other in range(width)
    ]
    assert choose([name(0)], offered(copies), {}).lacking == [name(0)]
