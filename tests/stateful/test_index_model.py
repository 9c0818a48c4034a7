"""The index in LMDB, and the one in memory, against dictionaries."""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from store.ids import CommitId, ObjectId, PackId
from store.index import BasesMissing, CommitRow, IndexWriter, LmdbIndex, MemoryIndex
from store.pack import TableEntry
from tests.indexing import commit_id, entry, generations, object_id, pack_id, row

NAMES = "abcdef"
MAP_BYTES = 64 * 1024

deltas = st.dictionaries(st.sampled_from(NAMES), st.none() | st.sampled_from(NAMES + "?"), min_size=1, max_size=4)
Copy = tuple[PackId, int, ObjectId | None, int]


class Undo(Exception):
    """Whoever writes thinks better of it."""


@dataclass
class Model:
    """What the index should hold: tables, each copy's depth, commits in order of arrival."""

    tables: dict[PackId, list[TableEntry]] = field(default_factory=dict)
    copies: dict[ObjectId, list[Copy]] = field(default_factory=dict)
    bad: set[tuple[ObjectId, PackId]] = field(default_factory=set)
    rows: list[CommitRow] = field(default_factory=list)

    def places(self, each: ObjectId) -> list[Copy]:
        good = [copy for copy in self.copies.get(each, []) if (each, copy[0]) not in self.bad]
        return sorted(good, key=lambda copy: copy[3])

    def depth(self, each: ObjectId, own: dict[ObjectId, int]) -> int | None:
        found = [copy[3] for copy in self.places(each)]
        return min([*found, own[each]] if each in own else found, default=None)

    def depths(self, entries: list[TableEntry]) -> dict[ObjectId, int]:
        """Depths of a pack's objects; those that cannot be resolved are left out."""
        own: dict[ObjectId, int] = {}
        for _ in entries:
            level = {
                each.id: 0 if each.base is None else below + 1
                for each in entries
                if each.id not in own and (below := 0 if each.base is None else self.depth(each.base, own)) is not None
            }
            own.update(level)
        return own

    def add(self, pack: PackId, entries: list[TableEntry], depths: dict[ObjectId, int]) -> None:
        self.tables[pack] = entries
        for each in entries:
            self.copies.setdefault(each.id, []).append((pack, each.offset, each.base, depths[each.id]))


class IndexModel(RuleBasedStateMachine):
    """Packs and commits come, copies go bad, processes come and go, the index is rebuilt."""

    @initialize()
    def make(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.model = Model()
        self.generations = generations(self.root, self.fill, MAP_BYTES)
        self.generations.rebuild()
        self.index: LmdbIndex = self.generations.open(writable=True)
        self.other: LmdbIndex = self.generations.open(writable=True)

    def teardown(self) -> None:
        self.index.close()
        self.other.close()
        shutil.rmtree(self.root)

    def fill(self, writer: IndexWriter) -> None:
        for pack, entries in self.model.tables.items():
            writer.add_pack(pack, entries)
        for each in self.model.rows:
            writer.add_commit(each)

    @rule(number=st.integers(0, 7), bases=deltas, undone=st.booleans())
    def add_pack(self, number: int, bases: dict[str, str | None], undone: bool) -> None:
        pack = pack_id(f"p{number}")
        entries = [entry(name, base, offset=64 + at) for at, (name, base) in enumerate(bases.items())]
        depths = self.model.depths(entries)

        def add(writer: IndexWriter) -> None:
            writer.add_pack(pack, entries)
            if undone:
                raise Undo

        lacking = {each.id.hex() for each in entries} - {each.hex() for each in depths}
        if lacking:
            with pytest.raises(BasesMissing) as caught:
                self.index.write(add)
            assert set(caught.value.details["objects"]) == lacking
        elif undone:
            with pytest.raises(Undo):
                self.index.write(add)
        else:
            self.index.write(add)
            if pack not in self.model.tables:
                self.model.add(pack, entries, depths)

    @rule(name=st.text("01", min_size=1, max_size=4), parents=st.lists(st.text("01", min_size=1, max_size=4)))
    def add_commit(self, name: str, parents: list[str]) -> None:
        given = row(name, parents)
        added = self.other.write(lambda writer: writer.add_commit(given))
        known = [each for each in self.model.rows if each.id == given.id]
        expected = CommitRow(given.id, given.parents, 7, 8, "main", len(self.model.rows) + 1)
        assert added == (known[0] if known else expected)
        if not known:
            self.model.rows.append(added)

    @rule(name=st.sampled_from(NAMES), number=st.integers(0, 7))
    def mark_bad(self, name: str, number: int) -> None:
        pack = pack_id(f"p{number}")
        self.index.mark_bad(object_id(name), pack)
        if any(each.id == object_id(name) for each in self.model.tables.get(pack, [])):
            self.model.bad.add((object_id(name), pack))

    @rule()
    def reopen(self) -> None:
        self.index.close()
        self.index = self.generations.open(writable=True)

    @precondition(lambda self: not self.model.bad)
    @rule()
    def rebuild(self) -> None:
        self.generations.rebuild()

    @invariant()
    def the_same(self) -> None:
        for index in (self.index, self.other):
            assert sorted(index.packs()) == sorted(self.model.tables)
            assert list(index.commits_since(0)) == self.model.rows
            assert list(index.commits_since(3)) == self.model.rows[2:]
            self.same_places(index)

    def same_places(self, index: LmdbIndex) -> None:
        for name in NAMES:
            found = [(each.pack, each.offset, each.base, each.depth) for each in index.places(object_id(name))]
            assert [copy[3] for copy in found] == [copy[3] for copy in self.model.places(object_id(name))]
            assert set(found) == set(self.model.places(object_id(name)))

    @invariant()
    def the_same_in_memory(self) -> None:
        memory = MemoryIndex(self.model.tables.items(), self.model.rows)
        assert memory.packs() == sorted(self.model.tables)
        assert list(memory.commits_since(2)) == self.model.rows[1:]
        for name in NAMES:
            found = {(each.pack, each.offset, each.base) for each in memory.places(object_id(name))}
            assert found == {copy[:3] for copy in self.model.copies.get(object_id(name), [])}
        for each in self.model.rows:
            assert memory.commit(each.id) == self.index.commit(each.id) == each
        for prefix in ("3", "30", "303", "31313"):
            expected = [each.id for each in self.model.rows if each.id.hex().startswith(prefix)]
            assert sorted(memory.commits_with_prefix(prefix)) == sorted(expected)
            assert self.index.commits_with_prefix(prefix) == sorted(expected)
        assert memory.commit(CommitId(commit_id("none"))) is None


TestIndexModel = IndexModel.TestCase
TestIndexModel.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
