"""A store and its model, side by side: how something is done to both, and what must then be the same."""

import errno
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar, get_args

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from store.disk.files import Files
from store.errors import Busy, Conflict, Pruned
from store.fsck import fsck
from store.ids import CommitId, ObjectId, TreeId, chunk_id
from store.limits import MAX_INLINE_BYTES, REFLOG_EXPIRY_NS
from store.naming.refnames import RefName, branch_name
from store.repack import Goal
from store.repository import Repository
from store.saving.bases import LastSave
from store.saving.saver import SaveRequest
from store.upkeep.absences import WHOLE
from tests.arrays import State, read
from tests.stateful.store_beginnings import request
from tests.stateful.store_model import Items, Model
from tests.stateful.store_moments import Moment
from tools.crash.faults import FaultyDisk, Killed
from tools.crash.scratch import scratch

T = TypeVar("T")
Change = Callable[[Model], object]


class Accident(NamedTuple):
    """A process that meets with an accident.

    Attributes:
        at: at which of its calls to the disk, from when the store is open.
        fault: what kind of.
    """

    at: int
    fault: str

    @property
    def disk(self) -> FaultyDisk:
        """Where it happens."""
        error_number, is_lasting = FAULTS[self.fault]
        return FaultyDisk(error_number=error_number, is_lasting=is_lasting)


class Interruption(NamedTuple):
    """A process during whose work another one does something.

    Attributes:
        at: at which of the calls to its ``Files``, from when the store is open.
        what: see :meth:`StoreMachine.meanwhile`.
        ago: which commit's content is saved, if something is.
    """

    at: int
    what: str
    ago: int


FAULTS = {"death": (None, False), "failure": (errno.EIO, False), "full disk": (errno.ENOSPC, True)}
MEANWHILE = ("save", "prune", "prune", "gc", "gc", "reindex", *get_args(Goal))

Process = int | Accident | Interruption
ALONE: st.SearchStrategy[Process] = st.one_of(
    st.integers(0, 1), st.builds(Accident, st.integers(0, 50), st.sampled_from(list(FAULTS)))
)
WHO = ALONE | st.builds(
    Interruption, st.integers(0, 40) | st.integers(0, 180), st.sampled_from(MEANWHILE), st.integers(0, 9)
)
"""Who does it: one of two processes that go on for long, or one of which is told what will befall it."""


class Befallen(Exception):
    """Something kept an act from being done; the model was told what became of it."""


OTHERS_BRANCH = "others"
"""What another process saves meanwhile, it saves here."""


class StoreMachine(RuleBasedStateMachine):
    """Does things to a store and to its model. What people do is said by those who derive from this."""

    make_store: Callable[[], tuple[Path, Model]]
    """What it begins with; copied."""
    root: Path
    _has_begun = False

    @initialize()
    def begin(self) -> None:
        made, model = self.make_store()
        self.root = Path(tempfile.mkdtemp(dir=scratch())) / "store"
        shutil.copytree(made, self.root)
        self.open()
        self._has_begun = True
        self.model = model.copy()
        self.number = len(model.commits)
        self.asked: list[Items] = []
        self.loose: set[CommitId] | None = None
        self.is_numbered_anew = False

    def teardown(self) -> None:
        """However it went, in the end everything is there, and a check finds nothing."""
        if not self._has_begun:
            return
        try:
            if sys.exc_info()[0] is None:  # else that is what is to be told
                self.require_whole()
        finally:
            self.close()
            shutil.rmtree(self.root.parent)

    def open(self) -> None:
        """Two processes open the store."""
        self.repos = [Repository.open(self.root, thread_count=1) for _ in range(2)]
        self.last: LastSave | None = None

    def close(self) -> None:
        """They end."""
        for repo in self.repos:
            repo.close()

    @property
    def repo(self) -> Repository:
        """For looking."""
        return self.repos[0]

    # --- doing ---

    def do(self, act: Callable[[Repository], T], change: Change | None = None, who: Process = 0) -> T:
        """Do something that makes no commits; ``change`` does it to the model.

        Raises:
            Befallen: something kept it from being done; of each ref, pin and absence record it was done or not.
        """
        try:
            result = self._attempt(act, who)
        except Befallen:
            self._settle(change, is_done=False)
            raise
        self._settle(change, is_done=True)
        return result

    def save(self, request: SaveRequest, items: Items, who: Process) -> CommitId:
        """Save; the model learns of the commit, and that its branch moved.

        Raises:
            Befallen: something kept it from being done; the model knows the commit if the store does.
            Conflict: the branch was elsewhere.
        """
        name, commits = branch_name(request.branch), list[CommitId]()
        marked = self.marked(request, items)

        def change(model: Model) -> None:
            for commit in commits:
                model.move(name, commit)

        try:
            saved = self._attempt(lambda repo: repo.save(marked), who)
        except Befallen:
            commits += self.learn(marked.message)
            self._settle(change, is_done=False)
            raise
        commits += self.learn(marked.message)
        assert commits == [saved.commit]
        self._settle(change, is_done=True)
        self.last = saved.last if who == 0 else self.last
        return saved.commit

    def marked(self, request: SaveRequest, items: Items) -> SaveRequest:
        """The same, by whose message it is known what the commit holds, should it only come up after a rebuild."""
        self.asked.append(items)
        return replace(request, message=str(len(self.asked) - 1))

    def learn(self, message: str | None = None) -> list[CommitId]:
        """Learn of commits that have come up; gives those with a message."""
        wanted = []
        for row in self.repo.index.commits_since(1):
            if row.id not in self.model.commits:
                commit = self.repo.commit(row.id)
                self.model.learn(row.id, self.asked[int(commit.message)], commit.parents)
                if commit.message == message:
                    wanted.append(row.id)
                elif row.branch == OTHERS_BRANCH:
                    self.model.move(branch_name(OTHERS_BRANCH), row.id)
        return wanted

    def meanwhile(self, what: str, repo: Repository, asked: SaveRequest) -> None:
        """Do what another process does at a moment of what this one does; if it saves, then this."""
        raise NotImplementedError

    def handle(self, who: Process) -> Repository:
        """The store as somebody has it open to whom nothing happens."""
        return self.repos[who] if isinstance(who, int) else self.repo

    def _attempt(self, act: Callable[[Repository], T], who: Process) -> T:
        match who:
            case Accident():
                return self._attempt_until(who, act)
            case Interruption():
                return self._attempt_beside(who, act)
            case number:
                return act(self.repos[number])

    def _attempt_until(self, accident: Accident, act: Callable[[Repository], T]) -> T:
        disk = accident.disk
        with Repository.open(self.root, files=Files(disk), thread_count=1) as repo:
            disk.fail_at(disk.operation_count + accident.at)
            try:
                return act(repo)
            except (OSError, Killed) as error:
                raise Befallen from error

    def _attempt_beside(self, interruption: Interruption, act: Callable[[Repository], T]) -> T:
        self.loose = self.model.garbage | self.model.dropped(1, self.model.branches)
        self.is_numbered_anew = interruption.what == "reindex"
        known = list(self.model.commits.values())
        items = known[-1 - interruption.ago % len(known)].items if known else {}
        asked = self.marked(request(items, OTHERS_BRANCH, self.model.branches.get(OTHERS_BRANCH)), items)

        def interrupt(files: Files) -> None:
            with suppress(Busy), Repository.open(self.root, files=files, thread_count=1) as repo:
                self.meanwhile(interruption.what, repo, asked)

        moment = Moment(interrupt)
        try:
            with Repository.open(self.root, files=moment.files, thread_count=1) as repo:
                write = repo.index.write
                repo.index.write = moment.put_off()(write)  # type: ignore[method-assign]
                moment.await_call(interruption.at)
                return act(repo)
        except (Pruned, Busy, Conflict) as error:  # the others save to a branch that is being renamed, say
            raise Befallen from error
        finally:
            moment.end()

    def _settle(self, change: Change | None, *, is_done: bool) -> None:
        """Learn what became of something: of each thing that it was to change, this was done, or was not."""
        known_before = set(self.model.commits)
        self.learn()
        late = self.model.commits.keys() - known_before  # a rebuild has found them, perhaps after others looked
        before, after = self.model, self.model.copy()
        if change is not None:
            change(after)
        known = after if is_done else before
        self.model = known.copy()
        if not is_done:
            self._adopt_names(before, after)
        found = self.absent()
        loose = set() if self.loose is None else self.loose | after.garbage | after.dropped(1, after.branches)
        spared = before.reached(before.doubtful)
        # gc takes all commits for new ones if the index gave them other numbers meanwhile.
        spared |= before.garbage if self.is_numbered_anew else set()
        for commit in {*before.absent, *after.absent, *found}:
            allowed = [known.absent.get(commit)]
            allowed += [before.absent.get(commit)] if commit in spared | late else []
            allowed += [after.absent.get(commit)]
            allowed += [{WHOLE}] if commit in loose else []
            assert found.get(commit) in allowed
        self.model.absent = found
        self.loose, self.is_numbered_anew = None, False

    def _adopt_names(self, before: Model, after: Model) -> None:
        head = self.repo.refs.head()
        assert head in {before.head, after.head}
        self.model.switch(head)
        found = self.repo.refs.list()
        for name in dict.fromkeys((*before.refs, *after.refs, *found)):  # ids differ each time: not in their order
            held = found.get(RefName(name))
            assert held in {before.refs.get(name), after.refs.get(name)}
            self.model.move(name, held)
        self.model.pins = set(self.repo.pins.all())
        assert not (self.model.pins ^ before.pins) - (before.pins ^ after.pins)
        for log, named in self.repo.refs.logged_since(time.time_ns() - REFLOG_EXPIRY_NS).items():
            known = self.model.logged.get(log, set())
            self.model.doubtful |= {each for each in named - known if each in self.model.commits}

    def absent(self) -> dict[CommitId, set[str]]:
        """What absence records say."""
        return {commit: set(self.repo.absences.of(commit)) for commit in self.repo.absences.all()}

    # --- looking ---

    def require_readable(
        self, commit: CommitId, repo: Repository | None = None, seen: dict[TreeId, State] | None = None
    ) -> None:
        """A commit is what it was saved as, but for what was pruned, which says so.

        Args:
            commit: the commit.
            repo: who reads it.
            seen: what was read already need not be read again.
        """
        repo, seen = repo or self.repo, {} if seen is None else seen
        known, found, there = self.model.commits[commit], repo.commit(commit), self.model.items(commit)
        assert found.parents == known.parents
        assert found.items.keys() == known.items.keys()
        for name, tree in found.items.items():
            if name not in there:
                with pytest.raises(Pruned):
                    repo.tree(found, name)
                continue
            if tree not in seen:
                seen[tree] = read(repo, commit, name)
            assert seen[tree] == known.items[name]

    def require_whole(self) -> None:
        """Everything that has a name, or had one lately, can be read, and a check finds nothing."""
        seen: dict[TreeId, State] = {}
        for commit in self.model.live:
            self.require_readable(commit, seen=seen)
        findings = fsck(self.repo).findings
        assert not findings, findings

    def objects_of(self, commits: Iterable[CommitId]) -> set[ObjectId]:
        """What there has to be for items of commits that were not pruned."""
        return set[ObjectId]().union(*(self._objects(commit, self.model.items(commit)) for commit in commits))

    def all_objects(self) -> set[ObjectId]:
        """What there ever was of any commit."""
        commits = self.model.commits.items()
        return set[ObjectId]().union(*(self._objects(commit, known.items) for commit, known in commits))

    def _objects(self, commit: CommitId, items: Iterable[str]) -> set[ObjectId]:
        states, roots = self.model.commits[commit].items, self.repo.commit(commit).items
        return set[ObjectId]().union(*({roots[name]} | _chunks(states[name]) for name in items))

    # --- what always holds ---

    @invariant()
    def names_are_the_same(self) -> None:
        assert self.repo.refs.list() == self.model.refs
        assert self.repo.refs.head() == self.model.head
        assert set(self.repo.pins.all()) == self.model.pins
        assert self.absent() == self.model.absent


def _chunks(state: State) -> set[ObjectId]:
    arrays = (array for array in state.values() if len(array.data) > MAX_INLINE_BYTES)
    return {chunk_id(chunk) for array in arrays for chunk in array.chunks}
