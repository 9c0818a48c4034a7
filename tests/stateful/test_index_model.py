"""The index in LMDB, and the one in memory, against dictionaries."""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from store.format.pack import TableEntry
from store.ids import CommitId, ObjectId, PackId
from store.index import BasesMissing, CommitRow, IndexWriter, LmdbIndex, MemoryIndex
from store.index import Copy as CopyOf
from store.limits import MAX_CHAIN_DEPTH
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
        for level in range(len(NAMES) * 8):
            own |= {
                each.id: level
                for each in entries
                if each.id not in own
                and level == (0 if each.base is None else (self.depth(each.base, own) or 0) + 1)
                and (each.base is None or self.depth(each.base, own) is not None)
            }
        return own

    def add(self, pack: PackId, entries: list[TableEntry], depths: dict[ObjectId, int]) -> None:
        self.tables.setdefault(pack, []).extend(entries)
        for each in entries:
            self.copies.setdefault(each.id, []).append((pack, each.offset, each.base, depths[each.id]))

    def least(self, each: ObjectId, without: PackId | None = None) -> int | None:
        return min((copy[3] for copy in self.places(each) if copy[0] != without), default=None)

    def remove(self, wanted: list[CopyOf], spare_last: bool) -> set[CopyOf]:
        """Remove copies, the deepest first, and give those that have to stay."""
        there = [(copy, depth) for copy in dict.fromkeys(wanted) if (depth := self.depth_in(copy)) is not None]
        ordered = sorted(there, key=lambda each: each[1], reverse=True)
        return {copy for copy, _ in ordered if not self.remove_one(copy, spare_last)}

    def depth_in(self, copy: CopyOf) -> int | None:
        return next((each[3] for each in self.copies.get(copy.id, []) if each[0] == copy.pack), None)

    def remove_one(self, copy: CopyOf, spare_last: bool) -> bool:
        deepened = self.copies if copy in self.bad else self.deepened(copy, spare_last)
        if deepened is None:
            return False
        self.copies = deepened
        self.copies[copy.id] = [each for each in self.copies[copy.id] if each[0] != copy.pack]
        self.bad.discard((copy.id, copy.pack))
        self.tables[copy.pack] = [each for each in self.tables[copy.pack] if each.id != copy.id]
        return True

    def deepened(self, gone: CopyOf, spare_last: bool) -> dict[ObjectId, list[Copy]] | None:
        """All copies once one is gone: whatever is read by way of it got deeper. ``None`` if it must stay."""
        left, own = self.least(gone.id, gone.pack), self.depth_in(gone)
        if left is None and spare_last:
            return None
        if left is not None and own is not None and left <= own:
            return self.copies
        after, touched = (
            Model(self.tables, {each: list(held) for each, held in self.copies.items()}, self.bad),
            {gone.id},
        )
        while shallow := [
            (above, copy, least)
            for above in after.copies
            for copy in after.places(above)
            if copy[2] in touched and (above, copy[0]) != gone
            if (least := after.least(copy[2], gone.pack if copy[2] == gone.id else None)) is None or copy[3] <= least
        ]:
            for above, copy, least in shallow:
                if least is None or least >= MAX_CHAIN_DEPTH:
                    return None
                after.copies[above].remove(copy)
                after.copies[above].append((*copy[:3], least + 1))
                touched.add(above)
        return after.copies

    def resolved(self) -> dict[PackId, list[tuple[TableEntry, int]]]:
        """What an index made anew would hold: of each copy the least depth."""
        least: dict[ObjectId, int] = {}
        found: dict[PackId, list[tuple[TableEntry, int]]] = {pack: [] for pack in self.tables}
        for level in range(MAX_CHAIN_DEPTH + 1):
            for pack, entries in self.tables.items():
                for each in entries:
                    if level == (0 if each.base is None else least.get(each.base, MAX_CHAIN_DEPTH) + 1):
                        found[pack].append((each, level))
            for each, depth in (pair for held in found.values() for pair in held):
                least.setdefault(each.id, depth)
        return found


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
        for pack, resolved in self.model.resolved().items():
            writer.add_places(pack, resolved)
        for each in self.model.rows:
            writer.add_commit(each)

    @rule(number=st.integers(0, 7), bases=deltas, undone=st.booleans())
    def add_pack(self, number: int, bases: dict[str, str | None], undone: bool) -> None:
        pack = pack_id(f"p{number}")
        known = {each.id for each in self.model.tables.get(pack, [])}
        listed = [entry(name, base, offset=64 + at) for at, (name, base) in enumerate(bases.items())]
        entries = [each for each in listed if each.id not in known]
        depths = self.model.depths(entries)

        def add(writer: IndexWriter) -> None:
            writer.add_pack(pack, listed)
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

    @rule(
        chosen=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 7)), min_size=1, max_size=6),
        spare_last=st.booleans(),
        undone=st.booleans(),
    )
    def remove_places(self, chosen: list[tuple[str, int]], spare_last: bool, undone: bool) -> None:
        copies = [CopyOf(object_id(name), pack_id(f"p{number}")) for name, number in chosen]

        def remove(writer: IndexWriter) -> set[CopyOf]:
            refused = writer.remove_places(copies, spare_last=spare_last)
            if undone:
                raise Undo
            return {each.copy for each in refused}

        if not self.model.tables:
            return  # an index in which there never was a pack does not say that it tells of deltas
        if undone:
            with pytest.raises(Undo):
                self.other.write(remove)
        else:
            assert self.other.write(remove) == self.model.remove(copies, spare_last)

    @rule(number=st.integers(0, 7), name=st.sampled_from(NAMES))
    def remove_pack(self, number: int, name: str) -> None:
        pack = pack_id(f"p{number}")
        listed = [each.id for each in self.model.tables.get(pack, [])]
        assert self.index.write(lambda writer: writer.remove_pack(pack, [object_id(name), *listed])) == (not listed)
        if not listed:
            self.model.tables.pop(pack, None)

    @rule()
    def reopen(self) -> None:
        self.index.close()
        self.index = self.generations.open(writable=True)

    @precondition(lambda self: not self.model.bad)
    @rule()
    def rebuild(self) -> None:
        self.generations.rebuild()
        self.model.copies = {}
        for pack, resolved in self.model.resolved().items():
            for each, depth in resolved:
                self.model.copies.setdefault(each.id, []).append((pack, each.offset, each.base, depth))

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
        assert memory.packs() == sorted(pack for pack, entries in self.model.tables.items() if entries)
        resolved = [(pack, each) for pack, held in self.model.resolved().items() for each, _ in held]
        assert list(memory.commits_since(2)) == self.model.rows[1:]
        for name in NAMES:
            found = {(each.pack, each.offset, each.base) for each in memory.places(object_id(name))}
            assert found == {(pack, at.offset, at.base) for pack, at in resolved if at.id == object_id(name)}
        for each in self.model.rows:
            assert memory.commit(each.id) == self.index.commit(each.id) == each
        for prefix in ("3", "30", "303", "31313"):
            expected = [each.id for each in self.model.rows if each.id.hex().startswith(prefix)]
            assert sorted(memory.commits_with_prefix(prefix)) == sorted(expected)
            assert self.index.commits_with_prefix(prefix) == sorted(expected)
        assert memory.commit(CommitId(commit_id("none"))) is None


TestIndexModel = IndexModel.TestCase
TestIndexModel.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
