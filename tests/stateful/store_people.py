"""People save, race each other, branch, tag and look back."""

from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from store.errors import Conflict, Pruned
from store.ids import CommitId
from store.naming.refnames import RefName, branch_name, tag_name
from store.repository import Repository
from tests.arrays import noise
from tests.stateful.store_beginnings import request
from tests.stateful.store_machine import OTHERS_BRANCH, WHO, Befallen, Interruption, Process, StoreMachine
from tests.stateful.store_model import Items, Model, edited

E = TypeVar("E", bound=BaseException)
T = TypeVar("T")

BRANCHES = ("main", "exp/lr3", "exp/lr4")
TAGS = ("best", "nightly")
EDITS = ("drift", "drift", "drift", "same", "back", "back", "add", "remove", "reshape", "retype", "renew", "item")


AGO, PICK = st.integers(0, 9), st.integers(0, 3)
"""Chosen blindly, and only then looked up in what there is: that may hang on the timing of threads."""


def picked(among: Sequence[T], number: int) -> T:
    """One of these."""
    return among[number % len(among)]


def error_of(kind: type[E], act: Callable[[], object]) -> E:
    """The error that something has to end with."""
    with pytest.raises(kind) as caught:
        act()
    return caught.value


class Saving(StoreMachine):
    """Saves, races, merges."""

    def later(self, parent: CommitId | None, edit: str, ago: int) -> Items:
        """What to save next."""
        self.number += 1
        if parent is None:
            state = {"a": noise("a", 30, 40), "b": noise(("b", self.number), 25, 8), "tiny": noise("tiny", 3)}
            return {"model": state}
        items = dict(self.model.commits[parent].items)
        if edit == "back":
            return self.model.commits[self.commit_ago(ago)].items
        if edit == "item":
            other = items.pop("optimizer", None)
            return items if other else {**items, "optimizer": {"m": noise(("m", self.number), 600)}}
        return {name: edited(state, edit, self.number) for name, state in items.items()}

    @property
    def own_branches(self) -> list[str]:
        """Branches that no other process saves on."""
        return [branch for branch in self.model.branches if branch != OTHERS_BRANCH]

    def commit_ago(self, ago: int, among: Container[CommitId] | None = None) -> CommitId:
        """One of these, or of all there ever were, counted from the latest."""
        return picked([each for each in self.model.commits if among is None or each in among], -1 - ago)

    @rule(
        branch=st.sampled_from(BRANCHES),
        edits=st.lists(st.sampled_from(EDITS), min_size=1, max_size=3),
        in_memory=st.booleans(),
        who=WHO,
        ago=AGO,
    )
    def train(self, branch: str, edits: list[str], in_memory: bool, who: Process, ago: int) -> None:
        for edit in edits:
            parent = self.model.branches.get(branch)
            items = self.later(parent, edit, ago)
            last = self.last if in_memory and who == 0 else None
            with suppress(Befallen):
                self.save(request(items, branch, parent, step=self.number, last=last), items, who)

    train_on = train  # twice, as it is what people do most

    @rule(branch=st.sampled_from(BRANCHES), edit=st.sampled_from(EDITS), who=st.integers(0, 1), ago=AGO)
    def lose_a_race(self, branch: str, edit: str, who: int, ago: int) -> None:
        """Save on top of what the branch held once: it has moved, and the commit is kept beside it."""
        parent = self.commit_ago(ago) if self.model.commits else None
        if parent == self.model.branches.get(branch):
            return
        items = self.later(parent, edit, ago)
        error = error_of(Conflict, lambda: self.save(request(items, branch, parent), items, who))
        (commit,) = self.learn(str(len(self.asked) - 1))
        kept = error.details["kept"]
        assert kept == f"{branch}+{commit.hex()[:8]}"
        self.model.move(branch_name(kept), commit)

    @rule(first=PICK, second=PICK, who=WHO)
    def merge(self, first: int, second: int, who: Process) -> None:
        """Commit with two parents, on the branch of the first."""
        if not self.own_branches:
            return
        branch = picked(self.own_branches, first)
        ours, theirs = self.model.branches[branch], self.model.branches[picked(self.own_branches, second)]
        if ours != theirs:
            items = self.model.commits[theirs].items
            with suppress(Befallen):
                self.save(request(items, branch, ours, merged=(theirs,)), items, who)

    @rule(who=WHO, ago=AGO)
    def look_back(self, who: Process, ago: int) -> None:
        lasting = {*self.model.refs.values(), *self.model.pins}
        among = lasting if isinstance(who, Interruption) else self.model.commits
        if among:
            commit = self.commit_ago(ago, among)
            self.do(lambda repo: self.require_readable(commit, repo), who=who)

    @rule()
    def look_at_history(self) -> None:
        """The log shows everything that refs reach, and nothing before what came after it."""
        reached = self.model.reached(self.model.refs.values())
        log = [row.id for row in self.repo.log(self.repo.refs.list().values())]
        assert set(log) == reached
        assert len(log) == len(reached)
        place = {commit: number for number, commit in enumerate(log)}
        assert all(place[each] < place[parent] for each in log for parent in self.model.commits[each].parents)


class Naming(Saving):
    """Branches and tags come, move and go."""

    @rule(name=st.sampled_from([*map(branch_name, BRANCHES), *map(tag_name, TAGS)]), who=WHO, ago=AGO)
    def name(self, name: RefName, who: Process, ago: int) -> None:
        """Make a branch or tag, or put it elsewhere."""
        if not self.model.commits:
            return
        commit = self.commit_ago(ago)
        put = partial(Repository.set_ref, name=name, expected=self.model.refs.get(name), new=commit, action="reset")
        if self.model.is_whole(commit):
            with suppress(Befallen):
                self.do(put, lambda model: model.move(name, commit), who)
        else:
            assert error_of(Pruned, lambda: put(self.handle(who))).details["commit"] == commit.hex()

    @rule(which=PICK)
    def delete(self, which: int) -> None:
        if not self.model.refs:
            return
        name, held = picked(list(self.model.refs.items()), which)
        with suppress(Befallen):
            assert self.do(lambda repo: repo.delete_ref(RefName(name)), lambda model: model.move(name, None)) == held

    @rule(new=st.sampled_from(["lr5", "exp/lr3"]), which=PICK, who=WHO)
    def rename(self, new: str, which: int, who: Process) -> None:
        """As ``moonclip branch -m`` does."""
        if new in self.model.branches or not self.model.branches:
            return
        old = picked(list(self.model.branches), which)
        commit = self.model.branches[old]

        def change(model: Model) -> None:
            model.move(branch_name(new), commit)
            if old == model.head:
                model.switch(new)
            model.move(branch_name(old), None)

        def rename(repo: Repository) -> None:
            repo.set_ref(branch_name(new), None, commit, "rename")
            if old == repo.refs.head():
                repo.refs.set_head(new)
            repo.delete_ref(branch_name(old), "rename")

        with suppress(Befallen):
            self.do(rename, change, who)

    @rule(branch=st.sampled_from(BRANCHES))
    def switch(self, branch: str) -> None:
        with suppress(Befallen):
            self.do(lambda repo: repo.refs.set_head(branch), lambda model: model.switch(branch))
