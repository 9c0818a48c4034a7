"""Random histories, with gc at any time: what is reachable loads bit for bit, and what is not is gone."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from store.fsck import fsck
from store.gc import collect
from store.gc.scanning import chunk_ids
from store.history.stats import Stats
from store.history.stats import collect as stats_of
from store.ids import CommitId, ObjectId
from store.naming.refnames import branch_name
from store.repack import repack
from store.repository import Repository
from store.saving.bases import LastSave
from store.upkeep.absences import WHOLE
from store.upkeep.prune import Pruner
from store.upkeep.retention import Keep
from store.upkeep.roots import live_commits, read_roots
from tests.arrays import State, drifted, noise, read, save
from tests.collecting import expire_reflogs, pack_bytes

BRANCHES = ("main", "exp", "exp2")
ACTS = st.one_of(
    st.tuples(st.just("save"), st.sampled_from(BRANCHES), st.booleans()),
    st.tuples(st.just("save"), st.sampled_from(BRANCHES), st.booleans()),
    st.tuples(st.just("branch"), st.sampled_from(BRANCHES), st.integers(0, 20)),
    st.tuples(st.just("delete"), st.sampled_from(BRANCHES), st.none()),
    st.tuples(st.just("prune"), st.none(), st.integers(1, 3)),
    st.tuples(st.just("expire"), st.none(), st.none()),
    st.tuples(st.just("gc"), st.none(), st.none()),
    st.tuples(st.just("repack"), st.none(), st.booleans()),
)


class Story:
    """A store, and what is in it."""

    def __init__(self, root: Path) -> None:
        self.repo = Repository.init(root, thread_count=1)
        self.states: dict[CommitId, State] = {}
        self.last: dict[str, LastSave] = {}

    def act(self, what: str, branch: str | None, extra: object) -> None:
        match what, branch, extra:
            case "save", str(), bool(in_memory):
                self.save(branch, in_memory=in_memory)
            case "branch", str(), int(number) if self.states and self.repo.refs.read(branch_name(branch)) is None:
                commit = list(self.states)[number % len(self.states)]
                if self.repo.absences.reason(commit) is None:
                    self.repo.set_ref(branch_name(branch), None, commit, "branch")
            case "delete", str(), _ if self.repo.refs.read(branch_name(branch)) is not None:
                self.repo.delete_ref(branch_name(branch))
            case "prune", _, int(count):
                pruner = Pruner(self.repo)
                pruner.apply(pruner.by_policy(Keep(last=count)))
            case "expire", _, _:
                expire_reflogs(self.repo)
            case "gc", _, _:
                self.collect()
            case "repack", _, bool(for_size):
                repack(self.repo, "size" if for_size else "consolidate")

    def save(self, branch: str, *, in_memory: bool) -> None:
        parent = self.repo.refs.read(branch_name(branch))
        number = len(self.states)
        before = self.states[parent] if parent else {"a": noise("a", 300), "b": noise(branch, 200)}
        state = {**before, "a": drifted(before["a"], number), "new": noise(number % 7, 250)}
        last = self.last.get(branch) if in_memory else None
        saved = save(self.repo, state, branch=branch, step=number, last=last)
        self.states[saved.commit], self.last[branch] = state, saved.last

    def collect(self) -> None:
        told = collect(self.repo, dry_run=True)
        assert self.stats().gc_bytes == told.freed_bytes
        before_bytes = pack_bytes(self.repo)
        done = collect(self.repo)
        told.is_dry_run = False
        assert told == done
        assert before_bytes - pack_bytes(self.repo) == done.freed_bytes >= 0
        self.require_just_what_is_needed()
        assert collect(self.repo).object_count == 0

    def repack(self) -> None:
        """What gc says repack takes out it does, and then hardly anything is there that nobody counts on."""
        collect(self.repo)
        promised, before_bytes = self.stats().repack_bytes, pack_bytes(self.repo)
        assert collect(self.repo).repack_bytes == promised
        repack(self.repo)
        assert before_bytes - pack_bytes(self.repo) >= promised
        after = self.stats()
        assert (after.gc_bytes, after.repack_bytes) == (0, 0)
        assert after.rest_bytes <= 0.1 * after.pack_bytes

    def stats(self) -> Stats:
        """Every byte of packs is counted once."""
        told = stats_of(self.repo)
        beside_bytes = told.base_bytes + told.gc_bytes + told.repack_bytes + told.rest_bytes + told.table_bytes
        assert told.chunk_stored_bytes + told.tree_stored_bytes + beside_bytes == told.pack_bytes
        return told

    def require_just_what_is_needed(self) -> None:
        live = {row.id for row in live_commits(self.repo.lookup, read_roots(self.repo).commits)}
        whole = {each for each in live if WHOLE not in {one.item for one in self.repo.absences.records(each)}}
        for commit in whole:
            assert read(self.repo, commit) == self.states[commit]
        for commit in self.states.keys() - whole:
            assert self.repo.absences.reason(commit) is not None
            assert self.repo.commit(commit).step == list(self.states).index(commit)
        assert fsck(self.repo, full=True).findings == []
        needed = self.closure(whole)
        assert {place[0] for page in self.repo.index.places_by_id() for place in page} == needed | self.states.keys()

    def closure(self, commits: set[CommitId]) -> set[ObjectId]:
        """Trees, chunks, and what their copies are stored against."""
        found: set[ObjectId] = set()
        for commit in commits:
            for tree in self.repo.commit(commit).items.values():
                found |= {tree, *chunk_ids(self.repo.reader.encoded_tree(tree))}
        waiting = found
        while waiting:
            places = self.repo.index.places_of_each(waiting)
            waiting = {each.base for copies in places.values() for each in copies if each.base is not None} - found
            found = found | waiting
        return found


@settings(max_examples=25, deadline=None)
@given(st.lists(ACTS, min_size=4, max_size=16))
def test_d11_every_reachable_commit_loads_and_the_others_are_gone(acts: list[tuple[str, str | None, object]]) -> None:
    root = Path(tempfile.mkdtemp())
    story = Story(root / "store")
    try:
        for act in acts:
            story.act(*act)
        story.collect()
        story.repack()
    finally:
        story.repo.close()
        shutil.rmtree(root)
