"""What processes do to one store at once, each over and over: save, load, prune, collect garbage, repack, check.

Whatever a person would take for a fault is raised. What is saved can be made again from a commit's step and metadata,
so that whoever comes across a commit can tell whether it is what it was.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Final, get_args

from store.errors import Busy, Conflict, Corrupt, NotFound
from store.fsck import fsck
from store.gc import collect
from store.history.walks import first_parents
from store.ids import CommitId, short
from store.naming.refnames import branch_name, tag_name
from store.repack import Goal, repack
from store.repository import Repository
from store.saving.bases import LastSave
from store.saving.saver import SaveRequest
from store.upkeep.absences import WHOLE
from store.upkeep.prune import Drop, Pruner
from store.upkeep.retention import Keep

from .states import State, drifted, item, noise, read

KEEP_LAST: Final = 10
KEEP_EVERY: Final = 50
SHARED: Final = "shared"
"""Branch on which all writers save, so that they get into each other's way."""

_OPTIMIZERS = 5
"""Commits of a branch that keep their optimizer."""

_TURNS = 40
"""How often something is done before the store is opened anew."""

_PAUSE_SECONDS = 0.1
"""What prune and gc leave to others."""

_LONG_PAUSE_SECONDS = 3.0
"""What repack and check leave to gc, which each of them keeps out for a second or more."""


class Wrong(Exception):
    """The store is not what it should be."""


@dataclass
class Tally:
    """What one process has done.

    Attributes:
        counts: of each thing how often, and bytes.
        made: commits on the branch that nobody else saves on, oldest first.
    """

    counts: Counter[str] = field(default_factory=Counter)
    made: list[CommitId] = field(default_factory=list)


Role = Callable[[Path, int, Tally], Iterator[float]]
"""Told which store, the number among those who do the same, and what to count in; gives after each turn for how many
seconds it should pause."""


def states_of(writer: int, step: int) -> Mapping[str, State]:
    """What a writer saves at a step: some as everybody does, some new, some changed a little since the step before."""
    model = {
        "frozen": noise("frozen", 200, 128),
        "drifting": drifted(noise(("drifting", writer, step // 20), 300, 128), step),
        "big": drifted(noise(("big", step // 30), 1000, 256), (writer, step // 4), 0.1),
        "new": noise((writer, step), 500),
        "step": noise(step, 3),
    }
    return {"model": model, "optimizer": {"moments": drifted(noise(("moments", writer), 300, 128), step)}}


def require(repo: Repository, commit_id: CommitId) -> int:
    """Read a commit, unless it is pruned meanwhile.

    Returns:
        How many bytes were read.

    Raises:
        Wrong: it is not what was saved, or cannot be pruned and is.
    """
    commit = repo.commit(commit_id)
    writer = commit.metadata["writer"]
    assert isinstance(writer, int)
    assert commit.step is not None
    if WHOLE in repo.absences.of(commit_id):
        return 0
    states, read_bytes = states_of(writer, commit.step), 0
    for name in commit.items:
        try:
            found = read(repo, commit_id, name)
        except (NotFound, Corrupt) as error:
            if not repo.absences.lacks(commit_id, name):
                raise
            if WHOLE in repo.absences.of(commit_id) and commit_id in repo.refs.list().values():
                raise Wrong(f"commit {short(commit_id)} has a name, and was pruned") from error
            continue
        if found != states[name]:
            raise Wrong(f"item {name!r} of commit {short(commit_id)} is not what was saved")
        read_bytes += sum(len(array.data) for array in found.values())
    return read_bytes


# --- roles ----------------------------------------------------------------------------------------------------------


def write(root: Path, number: int, tally: Tally) -> Iterator[float]:
    """Train: save on a branch of one's own, and now and then on one that others save on too; tag, pin, branch."""
    chance, step = Random(number), 0
    while True:
        last: LastSave | None = None
        with Repository.open(root, thread_count=1) as repo:
            for _ in range(_TURNS):
                parent = tally.made[-1] if tally.made else None
                saved = repo.save(_request(number, step, f"run{number}", parent, last))
                last = saved.last
                tally.made.append(saved.commit)
                _count_save(tally, number, step)
                if chance.random() < 0.4:
                    _share(repo, number, step, tally)
                if chance.random() < 0.2:
                    _name(repo, number, chance.choice(tally.made[-KEEP_LAST // 2 :]))
                step += 1
                yield 0


def load(root: Path, number: int, tally: Tally) -> Iterator[float]:
    """Read commits of all branches, the latest ones and such as may be pruned at this moment."""
    chance = Random(number)
    while True:
        with Repository.open(root, read_only=number % 2 == 1, thread_count=1) as repo:
            for _ in range(_TURNS):
                tip = chance.choice(list(repo.refs.list().values()))
                line = list(islice(first_parents(repo.lookup, tip), 2 * KEEP_LAST))
                tally.counts["bytes loaded"] += require(repo, chance.choice(line).id)
                tally.counts["loads"] += 1
                yield 0


def prune(root: Path, _: int, tally: Tally) -> Iterator[float]:
    """Drop old commits, and the optimizer of such as are not so old."""
    with Repository.open(root, thread_count=1) as repo:
        pruner = Pruner(repo)
        while True:
            drops: list[Drop] = pruner.apply(pruner.by_policy(Keep(last=KEEP_LAST, every=KEEP_EVERY)))
            tally.counts["commits pruned"] += len(drops)
            with suppress(NotFound):  # none is old enough
                drops = pruner.apply(pruner.items(["optimizer"], _OPTIMIZERS))
                tally.counts["optimizers pruned"] += len(drops)
            yield _PAUSE_SECONDS


def collect_garbage(root: Path, _: int, tally: Tally) -> Iterator[float]:
    """Collect garbage."""
    with Repository.open(root, thread_count=1) as repo:
        while True:
            try:
                collected = collect(repo)
            except Busy:
                tally.counts["gcs put off"] += 1
            else:
                tally.counts["gcs"] += 1
                tally.counts["objects collected"] += collected.object_count
                tally.counts["bytes freed"] += collected.freed_bytes
            yield _PAUSE_SECONDS


def repack_for_all_goals(root: Path, _: int, tally: Tally) -> Iterator[float]:
    """Repack, for each goal in turn."""
    goals: Iterator[Goal] = cycle(get_args(Goal))
    with Repository.open(root, thread_count=1) as repo:
        goal = next(goals)
        while True:
            try:
                repacked = repack(repo, goal)
            except Busy:
                tally.counts["repacks put off"] += 1
                yield _PAUSE_SECONDS
            else:
                if repacked.damaged:
                    raise Wrong(f"repack found damage: {repacked.damaged}")
                tally.counts["repacks"] += 1
                tally.counts["packs replaced"] += repacked.replaced_count
                goal = next(goals)
                yield _LONG_PAUSE_SECONDS


def check(root: Path, _: int, tally: Tally) -> Iterator[float]:
    """Check the store, every other time in full."""
    with Repository.open(root, thread_count=1) as repo:
        for full in cycle((False, True)):
            require_clean(repo, full=full)
            tally.counts["checks"] += 1
            yield _LONG_PAUSE_SECONDS


def require_clean(repo: Repository, *, full: bool) -> None:
    """Check a store.

    Raises:
        Wrong: something is.
    """
    report = fsck(repo, full=full)
    if not report.clean:
        raise Wrong("a check found:\n" + "\n".join(f"{each.kind}: {each.message}" for each in report.findings))


def begin(root: Path) -> None:
    """Make the store, with a commit that all can look at."""
    with Repository.init(root, thread_count=1) as repo:
        repo.save(_request(0, 0, SHARED, None))


# --- what a writer does ---------------------------------------------------------------------------------------------


def _request(writer: int, step: int, branch: str, parent: CommitId | None, last: LastSave | None = None) -> SaveRequest:
    items = [item(state, name) for name, state in states_of(writer, step).items()]
    return SaveRequest(items, branch=branch, parent=parent, step=step, metadata={"writer": writer}, last=last)


def _count_save(tally: Tally, writer: int, step: int) -> None:
    tally.counts["saves"] += 1
    states = states_of(writer, step).values()
    tally.counts["bytes saved"] += sum(len(array.data) for state in states for array in state.values())


def _share(repo: Repository, number: int, step: int, tally: Tally) -> None:
    """Save where others do. Who comes too late finds the commit kept on a branch of its own, looks, and gives it up."""
    try:
        repo.save(_request(number, step, SHARED, repo.refs.read(branch_name(SHARED))))
    except Conflict as error:
        kept = branch_name(str(error.details["kept"]))
        commit = repo.refs.read(kept)
        if commit is None or not require(repo, commit):
            raise Wrong(f"{kept} does not hold what was saved") from error
        repo.delete_ref(kept)
        tally.counts["conflicts"] += 1
    _count_save(tally, number, step)


def _name(repo: Repository, number: int, commit: CommitId) -> None:
    """Give a commit a tag, a branch and a pin, and take branch and pin back."""
    tag, branch = tag_name(f"best{number}"), branch_name(f"try{number}")
    repo.set_ref(tag, repo.refs.read(tag), commit, "tag")
    repo.set_ref(branch, None, commit, "branch")
    repo.pin(commit)
    require(repo, commit)
    repo.delete_ref(branch)
    repo.unpin(commit)
