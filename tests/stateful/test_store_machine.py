"""A store against a dictionary: people save, branch, tag, look back, lose their index and race each other."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from store.bases import LastSave
from store.errors import Conflict
from store.ids import CommitId
from store.limits import SAVE_CHAIN_DEPTH
from store.opening import rebuild_index
from store.refnames import branch_name, tag_name
from store.repository import Repository
from store.saving import SaveRequest
from tests.arrays import Array, State, chunk_of, damage, depths, drifted, entries_of, item, noise, read, require_whole

BRANCHES = st.sampled_from(["main", "exp/lr3", "exp/lr4"])
TAGS = st.sampled_from(["best", "nightly"])
EDITS = st.sampled_from(["drift", "drift", "drift", "same", "add", "remove", "reshape", "retype", "renew"])


def edited(state: State, edit: str, number: int) -> State:
    """A later state of the same run."""
    after = dict(state)
    name = sorted(after)[number % len(after)]
    array = after[name]
    match edit:
        case "drift":
            after = {each: drifted(old, number) for each, old in after.items()}
        case "add":
            after[f"w{number}"] = noise(number, 20, 30)
        case "remove" if len(after) > 1:
            del after[name]
        case "reshape":
            after[name] = Array(array.dtype, array.shape[::-1], array.data)
        case "retype":
            after[name] = Array("int32", array.shape, array.data)
        case "renew":
            after[name] = noise(("new", number), *array.shape)
    return after


class StoreMachine(RuleBasedStateMachine):
    """What a store should be, said with dictionaries."""

    @initialize()
    def make(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.repo = Repository.init(self.root / "store", thread_count=2)
        self.states: dict[CommitId, State] = {}
        self.parents: dict[CommitId, CommitId | None] = {}
        self.branches: dict[str, CommitId] = {}
        self.tags: dict[str, CommitId] = {}
        self.last: LastSave | None = None
        self.number = 0

    def teardown(self) -> None:
        if hasattr(self, "repo"):
            require_whole(self.repo, self.states)
            for commit in self.states:
                assert max(depths(self.repo, commit), default=0) <= SAVE_CHAIN_DEPTH
            self.repo.close()
            shutil.rmtree(self.root)

    def request(self, state: State, branch: str, parent: CommitId | None, *, in_memory: bool) -> SaveRequest:
        return SaveRequest(
            [item(state)], branch=branch, parent=parent, step=self.number, last=self.last if in_memory else None
        )

    def later_state(self, parent: CommitId | None, edit: str) -> State:
        self.number += 1
        if parent is None:
            return {"a": noise("a", 30, 40), "b": noise(("b", self.number), 25, 8), "tiny": noise("tiny", 3)}
        return edited(self.states[parent], edit, self.number)

    def note(self, commit: CommitId, parent: CommitId | None, state: State) -> None:
        self.states[commit], self.parents[commit] = state, parent

    # --- what people do ---

    @rule(branch=BRANCHES, edit=EDITS, in_memory=st.booleans(), other=st.booleans())
    def save(self, branch: str, edit: str, in_memory: bool, other: bool) -> None:
        """By this process, or by another one that has the store open too."""
        parent = self.branches.get(branch)
        state = self.later_state(parent, edit)
        request = self.request(state, branch, parent, in_memory=in_memory and not other)
        if other:
            with Repository.open(self.root / "store", thread_count=1) as repo:
                commit = repo.save(request).commit
        else:
            saved = self.repo.save(request)
            commit, self.last = saved.commit, saved.last
        self.note(commit, parent, state)
        self.branches[branch] = commit

    @rule(branch=BRANCHES, edit=EDITS, data=st.data())
    def lose_a_race(self, branch: str, edit: str, data: st.DataObject) -> None:
        """Save on top of what the branch held once: it has moved, and the commit is kept beside it."""
        parent = data.draw(st.sampled_from([None, *self.states]), label="parent")
        if parent == self.branches.get(branch):
            return
        state = self.later_state(parent, edit)
        with pytest.raises(Conflict) as caught:
            self.repo.save(self.request(state, branch, parent, in_memory=False))
        kept = caught.value.details["kept"]
        commit = self.repo.resolve(kept)
        assert kept == f"{branch}+{commit.hex()[:8]}"
        self.note(commit, parent, state)
        self.branches[kept] = commit

    @precondition(lambda self: self.states)
    @rule(branch=BRANCHES, data=st.data())
    def branch_from_an_old_commit(self, branch: str, data: st.DataObject) -> None:
        commit = data.draw(st.sampled_from(list(self.states)), label="at")
        if branch in self.branches:
            with pytest.raises(Conflict):
                self.repo.set_ref(branch_name(branch), None, commit, "branch")
        else:
            self.repo.set_ref(branch_name(branch), None, commit, "branch")
            self.branches[branch] = commit

    @precondition(lambda self: self.branches)
    @rule(data=st.data())
    def delete_branch(self, data: st.DataObject) -> None:
        branch = data.draw(st.sampled_from(sorted(self.branches)), label="branch")
        assert self.repo.delete_ref(branch_name(branch)) == self.branches.pop(branch)

    @precondition(lambda self: self.states)
    @rule(tag=TAGS, data=st.data())
    def tag(self, tag: str, data: st.DataObject) -> None:
        commit = data.draw(st.sampled_from(list(self.states)), label="commit")
        self.repo.set_ref(tag_name(tag), self.tags.get(tag), commit, "tag")
        self.tags[tag] = commit

    @precondition(lambda self: self.states)
    @rule(data=st.data())
    def look_back(self, data: st.DataObject) -> None:
        commit = data.draw(st.sampled_from(list(self.states)), label="commit")
        assert read(self.repo, commit) == self.states[commit]
        assert self.repo.commit(commit).parents == tuple(filter(None, [self.parents[commit]]))

    @rule()
    def reindex(self) -> None:
        rebuild_index(self.repo.layout, self.repo.files, self.repo.packs)

    @rule(index=st.sampled_from(["kept", "deleted", "garbled", "cut"]))
    def reopen(self, index: str) -> None:
        self.repo.close()
        for path in (self.root / "store" / "index").rglob("data.mdb"):
            if index == "garbled":
                path.write_bytes(b"\xa5" * path.stat().st_size)
            elif index == "cut":
                path.write_bytes(path.read_bytes()[:6000])
        if index == "deleted":
            shutil.rmtree(self.root / "store" / "index")
        self.repo = Repository.open(self.root / "store", thread_count=2)
        self.last = None

    @precondition(lambda self: self.branches)
    @rule(data=st.data())
    def mend(self, data: st.DataObject) -> None:
        """A chunk goes bad, somebody notices, and the next save of it mends every commit that holds it."""
        branch = data.draw(st.sampled_from(sorted(self.branches)), label="branch")
        tip = self.branches[branch]
        state = self.states[tip]
        name = next((name for name, entry in entries_of(self.repo, tip).items() if entry.chunks), None)
        if name is None or branch not in {"main", "exp/lr3", "exp/lr4"}:
            return
        chunk = chunk_of(self.repo, tip, name)
        path = self.repo.layout.packs / f"{self.repo.index.places(chunk)[0].pack.hex()}.pack"
        whole = path.read_bytes()
        damage(self.repo, chunk)
        with Repository.open(self.root / "store", thread_count=1) as other:
            if len(other.index.places(chunk)) == 1:
                with pytest.raises(Exception, match="damaged"):
                    read(other, tip)
            saved = other.save(self.request(state, branch, tip, in_memory=False))
            assert read(other, saved.commit) == read(other, tip) == state
        path.write_bytes(whole)  # else a full check would tell of it for good
        rebuild_index(self.repo.layout, self.repo.files, self.repo.packs)
        self.note(saved.commit, tip, state)
        self.branches[branch] = saved.commit

    # --- what always holds ---

    @invariant()
    def refs_are_the_same(self) -> None:
        refs = {branch_name(name): commit for name, commit in self.branches.items()}
        refs |= {tag_name(name): commit for name, commit in self.tags.items()}
        assert self.repo.refs.list() == refs

    @invariant()
    def history_is_the_same(self) -> None:
        reached: set[CommitId] = set()
        for tip in {*self.branches.values(), *self.tags.values()}:
            commit: CommitId | None = tip
            while commit is not None and commit not in reached:
                reached.add(commit)
                commit = self.parents[commit]
        log = [row.id for row in self.repo.log(self.repo.refs.list().values())]
        assert set(log) == reached
        assert len(log) == len(reached)
        place = {commit: number for number, commit in enumerate(log)}
        assert all(place[each] < place[parent] for each in log if (parent := self.parents[each]) is not None)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
