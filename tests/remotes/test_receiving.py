"""In which order a window's objects are checked, and how bases are found that another window brought."""

import os
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from store.codec import Transform
from store.disk.calls import Disk
from store.disk.files import Files
from store.format.dtypes import Element
from store.format.objects import Kind
from store.format.pack import TableEntry
from store.ids import ObjectId, PackId
from store.remotes.fetching.incoming import Placed, RemoteCopy
from store.remotes.fetching.receiving import _lines
from store.remotes.names import pack_name
from store.repository import Repository
from store.saving.inputs import ItemInput
from tests.remotes.memory_storage import MemoryStorage
from tests.remotes.sharing import fetched, pushed, require_equal
from tests.stores import commit, item, noise, tensor


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


class Slow(Disk):
    """What is stored behind gets its name only when a base is asked for, or nothing else is left to be done."""

    def rename(self, source: Path, target: Path) -> None:
        while threading.current_thread().name == "moonclip-storing" and not _is_awaited():
            os.sched_yield()
        super().rename(source, target)


def _is_awaited() -> bool:
    """Whether a thread looks for a base, or one waits for another that stores."""
    called = {name for frame in sys._current_frames().values() for name in _called(frame)}
    return bool(called & {"Receiver._base", "BlockQueue.get", "BlockQueue.finish", "BlockQueue.stop"})


def _called(frame: FrameType | None) -> list[str]:
    names: list[str] = []
    while frame is not None:
        names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return names


class Watching(Files):
    """Counts how often all packs are looked through."""

    def __init__(self) -> None:
        super().__init__(Slow())
        self.listed: list[Path] = []

    def list_directory(self, path: Path) -> list[str]:
        if path.name == "packs":
            self.listed.append(path)
        return super().list_directory(path)


def drifting(step: int) -> list[ItemInput]:
    """Two tensors of which few bytes change from step to step."""
    data = [bytearray(noise(name, 20_000)) for name in "ab"]
    for each in range(1, step + 1):
        for one in data:
            one[each * 97] ^= each
    return [item("model", {name: tensor(bytes(one)) for name, one in zip("ab", data, strict=True)})]


def test_a_base_that_is_just_being_stored_is_waited_for_and_not_sought_in_all_packs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.remotes.fetching.incoming.FETCH_WINDOW_OBJECTS", 2)
    monkeypatch.setattr("store.remotes.fetching.receiving.FETCH_KEPT_BYTES", 0)  # but for the last one
    storage, files = MemoryStorage(), Watching()
    with Repository.init(tmp_path / "one", thread_count=2) as one:
        made = [commit(one, "main", drifting(step)) for step in range(4)]
        pushed(one, storage)
        with Repository.init(tmp_path / "two", files=files, thread_count=2) as two:
            files.listed.clear()
            fetched(two, storage)
            assert files.listed == []
            require_equal(one, two, made)
