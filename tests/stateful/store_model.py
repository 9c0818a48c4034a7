"""What a store should be, said with dictionaries and sets. Knows nothing of packs, and asks the store nothing."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from store.ids import CommitId
from store.naming.refnames import BRANCHES, HEAD, branch_name, tag_name
from store.upkeep.absences import WHOLE
from tests.arrays import Array, State, drifted, noise

Items = Mapping[str, State]


class Known(NamedTuple):
    """A commit that was made: all that never changes about it."""

    items: Items
    parents: tuple[CommitId, ...]


@dataclass
class Model:
    """A store.

    Attributes:
        commits: all that were ever made, by whatever name they can be found.
        branches: by short name.
        tags: likewise.
        head: short name of the current branch.
        pins: commits that are pinned.
        absent: names of the items that were pruned, or just ``WHOLE``; that also if they were collected.
        logged: what each reflog names that has not expired, by the ref's full name or ``HEAD``.
        doubtful: what reflogs may name besides: lines that accidents left, of moves that never came true.
    """

    commits: dict[CommitId, Known] = field(default_factory=dict)
    branches: dict[str, CommitId] = field(default_factory=dict)
    tags: dict[str, CommitId] = field(default_factory=dict)
    head: str = "main"
    pins: set[CommitId] = field(default_factory=set)
    absent: dict[CommitId, set[str]] = field(default_factory=dict)
    logged: dict[str, set[CommitId]] = field(default_factory=dict)
    doubtful: set[CommitId] = field(default_factory=set)

    def copy(self) -> "Model":
        """Another one that can be changed; what never changes is shared."""
        changing = {name: deepcopy(value) for name, value in vars(self).items() if name != "commits"}
        return replace(self, commits=dict(self.commits), **changing)

    def learn(self, commit: CommitId, items: Items, parents: tuple[CommitId, ...]) -> None:
        """A commit was made."""
        self.commits[commit] = Known(items, parents)

    # --- refs ---

    @property
    def refs(self) -> dict[str, CommitId]:
        """All refs, by full name."""
        branches = [(str(branch_name(name)), commit) for name, commit in self.branches.items()]
        return dict(branches + [(str(tag_name(name)), commit) for name, commit in self.tags.items()])

    def move(self, name: str, new: CommitId | None) -> None:
        """Move a ref, make it, or remove it: its reflog tells, and HEAD's if it is the current branch."""
        kind, _, short_name = name.partition("/")
        refs = self.branches if kind == BRANCHES else self.tags
        old = refs.pop(short_name, None)
        if new is not None:
            refs[short_name] = new
        if old != new:
            for log in (name, HEAD) if name == branch_name(self.head) else (name,):
                self.logged.setdefault(log, set()).update(each for each in (old, new) if each is not None)

    def switch(self, branch: str) -> None:
        """Make a branch the current one."""
        if branch != self.head:
            held = {self.branches.get(self.head), self.branches.get(branch)}
            self.logged.setdefault(HEAD, set()).update(each for each in held if each is not None)
            self.head = branch

    def expire_reflogs(self) -> None:
        """Let so much time pass that no line of a reflog keeps anything."""
        self.logged.clear()
        self.doubtful.clear()

    # --- what is there ---

    def reached(self, tips: Iterable[CommitId]) -> set[CommitId]:
        """These and all that came before them."""
        found: set[CommitId] = set()
        waiting = list(tips)
        while waiting:
            commit = waiting.pop()
            if commit not in found:
                found.add(commit)
                waiting.extend(self.commits[commit].parents)
        return found

    @property
    def live(self) -> set[CommitId]:
        """What has to be there, but for what was pruned."""
        return self.reached({*self.refs.values(), *self.pins}.union(*self.logged.values()))

    def is_whole(self, commit: CommitId) -> bool:
        """Whether a commit was neither pruned as a whole nor collected."""
        return WHOLE not in self.absent.get(commit, ())

    def items(self, commit: CommitId) -> list[str]:
        """Items of a commit that were not pruned."""
        absent = self.absent.get(commit, set())
        return [item for item in self.commits[commit].items if not {item, WHOLE} & absent]

    @property
    def garbage(self) -> set[CommitId]:
        """Commits that no name leads to."""
        return self.commits.keys() - self.live

    # --- pruning ---

    def line(self, branch: str) -> Iterator[CommitId]:
        """The first-parent line of a branch."""
        commit: CommitId | None = self.branches[branch]
        while commit is not None:
            yield commit
            commit = next(iter(self.commits[commit].parents), None)

    def dropped(self, last: int, branches: Collection[str]) -> set[CommitId]:
        """What goes if so many newest commits of some branches stay, of those that still have content."""
        lines = {name: [each for each in self.line(name) if self.is_whole(each)] for name in self.branches}
        going = {commit for name in branches for commit in lines[name]}
        staying = {commit for name in branches for commit in lines[name][:last]}
        staying.update(commit for name, line in lines.items() if name not in branches for commit in line)
        return going - staying - self._spared()

    def drop(self, commits: Iterable[CommitId], what: str) -> None:
        """Prune an item of commits, or ``WHOLE`` of them."""
        for commit in commits:
            self.absent[commit] = {WHOLE} if what == WHOLE else {*self.absent.get(commit, ()), what}

    def _spared(self) -> set[CommitId]:
        spared = {*self.refs.values(), *self.pins}
        for log, named in self.logged.items():
            tips = self.branches.values() if log == HEAD else [self.refs[log]] if log in self.refs else []
            spared |= named - self.reached(tips)
        return spared


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
