"""One index, one process, nothing in the way."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from store.errors import Incompatible
from store.index import BasesMissing, IndexWriter, MemoryIndex
from store.index.environment import Environment
from store.index.transaction import Transaction
from store.limits import MAX_CHAIN_DEPTH
from tests.indexing import commit_id, data_of, entry, generations, make, object_id, pack_id, row


def test_places_of_all_copies_the_shallowest_first(tmp_path: Path) -> None:
    index = make(tmp_path)
    index.write(lambda writer: writer.add_pack(pack_id("p"), [entry("a"), entry("x", "a", 228)]))
    index.write(lambda writer: writer.add_pack(pack_id("q"), [entry("x", offset=9)]))
    first, second = index.places(object_id("x"))
    assert (first.pack, first.offset, first.depth, first.base) == (pack_id("q"), 9, 0, None)
    assert (second.pack, second.offset, second.depth, second.base) == (pack_id("p"), 228, 1, object_id("a"))
    assert index.places(object_id("y")) == []
    assert index.packs() == [pack_id("p"), pack_id("q")]
    index.close()


def test_many_objects_are_looked_up_as_each_is(tmp_path: Path) -> None:
    entries = [entry("a"), entry("x", "a", 228), entry("bad", offset=392)]
    index = make(tmp_path, lambda writer: writer.add_pack(pack_id("p"), entries))
    index.write(lambda writer: writer.add_pack(pack_id("q"), [entry("x", offset=9)]))
    index.mark_bad(object_id("bad"), pack_id("p"))
    sought = [object_id(name) for name in ("x", "bad", "unknown", "a")]
    expected = {each: index.places(each) for each in sought}
    assert index.places_of_each(sought) == expected
    assert [len(places) for places in expected.values()] == [2, 0, 0, 1]
    assert index.places_of_each([]) == {}
    assert index.places_below(sought[:1]) == {each: index.places(each) for each in map(object_id, "xa")}
    index.close()


def test_a_pack_that_is_known_is_left_as_it_is(tmp_path: Path) -> None:
    index = make(tmp_path)
    for offset in (64, 70):
        index.write(lambda writer, at=offset: writer.add_pack(pack_id("p"), [entry("a", offset=at)]))  # type: ignore[misc]
    assert [place.offset for place in index.places(object_id("a"))] == [64]
    index.close()


def test_a_bad_copy_is_no_copy(tmp_path: Path) -> None:
    index = make(tmp_path)
    index.write(lambda writer: writer.add_pack(pack_id("p"), [entry("a"), entry("b")]))
    index.mark_bad(object_id("a"), pack_id("p"))
    index.mark_bad(object_id("a"), pack_id("unknown"))
    index.mark_bad(object_id("unknown"), pack_id("p"))
    assert index.places(object_id("a")) == []
    asked = [object_id(name) for name in "abc"]
    assert index.write(lambda writer: writer.lacking(asked)) == [object_id("a"), object_id("c")]
    index.write(lambda writer: writer.add_pack(pack_id("q"), [entry("a")]))
    assert [place.pack for place in index.places(object_id("a"))] == [pack_id("q")]
    index.close()


def test_a_copy_found_bad_within_a_write_is_marked_with_the_next(tmp_path: Path) -> None:
    index = make(tmp_path)

    def find_it_bad(writer: IndexWriter) -> None:
        writer.add_pack(pack_id("p"), [entry("a")])
        index.mark_bad(object_id("a"), pack_id("p"))  # a write within the write would wait for itself

    index.write(find_it_bad)
    assert len(index.places(object_id("a"))) == 1
    index.write(lambda _: None)
    assert index.places(object_id("a")) == []
    index.close()


def test_two_writes_that_find_the_same_copy_to_be_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = make(tmp_path, lambda writer: writer.add_pack(pack_id("p"), [entry("a")]))
    write = Environment.write

    def overtaken(self: Environment, body: Callable[[Transaction], None]) -> None:
        monkeypatch.setattr(Environment, "write", write)
        other = threading.Thread(target=index.write, args=(lambda _: None,))
        other.start()
        other.join()
        assert index.places(object_id("a")) == []
        write(self, body)

    monkeypatch.setattr(Environment, "write", overtaken)
    index.mark_bad(object_id("a"), pack_id("p"))
    assert index.places(object_id("a")) == []
    index.close()


def test_a_write_within_a_write_is_refused_and_undoes_it(tmp_path: Path) -> None:
    index = make(tmp_path)

    def nest(writer: IndexWriter) -> None:
        writer.add_commit(row("a"))
        index.write(lambda inner: inner.add_commit(row("b")))

    with pytest.raises(RuntimeError, match="within another"):
        index.write(nest)
    assert list(index.commits_since(0)) == []
    index.close()


def test_a_read_within_a_write_sees_what_was_before(tmp_path: Path) -> None:
    index = make(tmp_path)

    def look(writer: IndexWriter) -> tuple[int, int]:
        writer.add_pack(pack_id("p"), [entry("a")])
        return len(index.places(object_id("a"))), len(writer.places(object_id("a")))

    assert index.write(look) == (0, 1)
    index.close()


def test_deltas_without_base_add_nothing(tmp_path: Path) -> None:
    index = make(tmp_path)
    with pytest.raises(BasesMissing) as caught:
        index.write(lambda writer: writer.add_pack(pack_id("p"), [entry("a"), entry("b", "nowhere")]))
    assert caught.value.details["objects"] == [object_id("b").hex()]
    assert index.packs() == []
    assert index.places(object_id("a")) == []
    index.close()


def test_d11_a_chain_that_is_too_deep_adds_nothing(tmp_path: Path) -> None:
    index = make(tmp_path)
    chain = [entry(f"c{depth}", f"c{depth - 1}" if depth else None) for depth in range(MAX_CHAIN_DEPTH + 2)]
    with pytest.raises(Incompatible, match=f"a delta chain of {MAX_CHAIN_DEPTH + 1}"):
        index.write(lambda writer: writer.add_pack(pack_id("p"), chain))
    assert index.packs() == []
    index.write(lambda writer: writer.add_pack(pack_id("p"), chain[:-1]))
    assert index.places(object_id(f"c{MAX_CHAIN_DEPTH}"))[0].depth == MAX_CHAIN_DEPTH
    index.close()


def test_commits_come_in_order_of_arrival_and_keep_their_number(tmp_path: Path) -> None:
    index = make(tmp_path)
    for name in ("z", "a", "m", "a"):
        index.write(lambda writer, name=name: writer.add_commit(row(name)))  # type: ignore[misc]
    assert [(found.id, found.sequence) for found in index.commits_since(0)] == [
        (commit_id("z"), 1),
        (commit_id("a"), 2),
        (commit_id("m"), 3),
    ]
    assert [found.sequence for found in index.commits_since(3)] == [3]
    assert index.commit(commit_id("a")) == next(index.commits_since(2))
    assert index.commit(commit_id("b")) is None
    index.close()


def test_d13_a_listing_longer_than_a_page_holds_no_transaction(tmp_path: Path) -> None:
    index = make(tmp_path)
    index.write(lambda writer: [writer.add_commit(row(f"c{number}")) for number in range(2500)])
    listing = index.commits_since(0)
    assert next(listing).sequence == 1
    index.write(lambda writer: writer.add_commit(row("late")))
    assert [found.sequence for found in listing] == list(range(2, 2502))
    index.close()


@pytest.mark.parametrize("prefix", ["", "6", "61", "616", "6162", "61622", "6163", "62", "f", commit_id("ab").hex()])
def test_prefixes_of_any_length(tmp_path: Path, prefix: str) -> None:
    names = ["a", "ab", "abc", "ac", "b", "o"]
    index = make(tmp_path)
    index.write(lambda writer: [writer.add_commit(row(name)) for name in names])
    expected = [commit_id(name) for name in names if commit_id(name).hex().startswith(prefix)]
    assert sorted(index.commits_with_prefix(prefix)) == sorted(expected)
    memory = MemoryIndex([], [row(name) for name in names])
    assert sorted(memory.commits_with_prefix(prefix)) == sorted(expected)
    index.close()


def test_a_closed_index_says_so(tmp_path: Path) -> None:
    index = make(tmp_path)
    index.close()
    index.close()
    with pytest.raises(ValueError, match="closed"):
        index.packs()


def test_the_file_is_as_long_as_it_says_after_any_write(tmp_path: Path) -> None:
    """What opening takes for a file that was cut off must never be one that was not."""
    index = make(tmp_path)
    for number in range(1, 30):
        names = [f"{number}-{each}" for each in range(number * number)]
        index.write(lambda writer, names=names: writer.add_pack(pack_id(names[0]), map(entry, names)))  # type: ignore[misc]
        first, second = index._attached()._metas()  # raises if it is not
        assert max(first.needed_bytes, second.needed_bytes) <= data_of(tmp_path).stat().st_size
    index.close()


def test_a_shared_directory_stays_shared(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        make(tmp_path).close()
    finally:
        os.umask(before)
    for name in ("data.mdb", "lock.mdb"):
        assert data_of(tmp_path).with_name(name).stat().st_mode & 0o777 == 0o664


def test_handles_differ_in_what_they_may(tmp_path: Path) -> None:
    index = make(tmp_path)
    reader = generations(tmp_path).open(writable=False)
    assert (index.writable, reader.writable) == (True, False)
    index.close()
    reader.close()
