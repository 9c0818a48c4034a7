"""What others do while gc is at work, at each point at which it matters."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from store.errors import Pruned
from store.gc import collect, sweeping
from store.gc.watching import Watch
from store.ids import CommitId
from store.naming.refnames import branch_name, tag_name
from store.opening.indexes import rebuild_index
from store.repository import Repository
from store.saving.leases import acquire_lease
from tests.arrays import State, chunk_of, noise, read, require_whole, save
from tests.collecting import expire_reflogs, forget_branch, line

Act = Callable[[], None]


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        yield repo


@pytest.fixture(autouse=True)
def small_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "SWEEP_KEYS", 2)


@pytest.fixture
def gone(repo: Repository) -> dict[CommitId, State]:
    """Commits that nothing leads to, beside some that stay."""
    line(repo, "main", 2)
    made = line(repo, "exp", 3, "exp")
    forget_branch(repo, "exp")
    return made


def when(stage: str, done: int, act: Act) -> Callable[[str, int, int], None]:
    """Do something once gc tells that it is so far."""
    acts = [act]

    def watch(what: str, how_much: int, _total: int) -> None:
        if acts and what == stage and how_much >= done:
            acts.pop()()

    return watch


class Interrupted:
    """An index that lets something happen right before a transaction begins."""

    def __init__(self, index: Any, acts: dict[int, Act]) -> None:
        self._index = index
        self._acts = acts
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def write(self, body: Callable[[Any], Any]) -> Any:
        self.count += 1
        self._acts.pop(self.count, lambda: None)()
        return self._index.write(body)


@pytest.mark.parametrize("done", [2, 4, 8])
def test_d3_a_save_between_two_transactions_keeps_what_it_needs(
    repo: Repository, gone: dict[CommitId, State], done: int
) -> None:
    """Of its chunks some were removed already, and others are about to be."""
    state = list(gone.values())[-1]
    made: dict[CommitId, State] = {}

    def save_again() -> None:
        made[save(repo, {**state, "more": noise("more", 90)}, branch="again").commit] = {
            **state,
            "more": noise("more", 90),
        }

    collect(repo, progress=when("sweeping", done, save_again))
    assert made
    require_whole(repo, made)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_d3_a_save_right_before_a_transaction_keeps_what_it_needs(
    repo: Repository, gone: dict[CommitId, State], number: int
) -> None:
    state = list(gone.values())[-1]
    made: dict[CommitId, State] = {}

    def save_again() -> None:
        with Repository.open(repo.layout.root, thread_count=1) as other:
            made[save(other, state, branch="again").commit] = state

    interrupted = Interrupted(repo.index, {number: save_again})
    repo.index = interrupted
    collect(repo)
    assert made
    assert interrupted.count > 4
    require_whole(repo, made)


def test_a_commit_that_is_named_before_it_is_recorded_stays(repo: Repository, gone: dict[CommitId, State]) -> None:
    tip = list(gone)[-1]
    name = branch_name("again")
    done = collect(repo, progress=when("marking", 5, lambda: repo.set_ref(name, None, tip, "branch")))
    assert (done.commit_count, done.object_count) == (0, 0)
    require_whole(repo, gone)


def test_a_commit_that_is_pinned_meanwhile_stays(repo: Repository, gone: dict[CommitId, State]) -> None:
    first = next(iter(gone))
    done = collect(repo, progress=when("marking", 5, lambda: repo.pin(first)))
    assert done.commit_count == 2
    require_whole(repo, {first: gone[first]})


def test_a_commit_that_only_a_reflog_names_by_now_stays(repo: Repository, gone: dict[CommitId, State]) -> None:
    tip = list(gone)[-1]

    def name_and_delete() -> None:
        repo.set_ref(tag_name("once"), None, tip, "tag")
        repo.delete_ref(tag_name("once"))

    assert collect(repo, progress=when("marking", 5, name_and_delete)).object_count == 0
    require_whole(repo, gone)


def test_a_commit_that_is_recorded_cannot_be_named_any_more(repo: Repository, gone: dict[CommitId, State]) -> None:
    tip = list(gone)[-1]
    refused: list[str] = []

    def name() -> None:
        with pytest.raises(Pruned) as caught:
            repo.set_ref(branch_name("again"), None, tip, "branch")
        refused.append(str(caught.value))

    collect(repo, progress=when("sweeping", 0, name))
    assert "collected by gc" in refused[0]
    assert repo.refs.read("branches/again") is None


def test_a_commit_in_the_making_stays_although_its_writer_is_slow(
    repo: Repository, gone: dict[CommitId, State]
) -> None:
    """It is in the index, and no ref names it yet."""
    state = next(iter(gone.values()))
    saved = save(repo, state, branch="again").commit
    with acquire_lease(repo.layout.root, repo.files) as lease:
        lease.add_commit(saved)
        forget_branch(repo, "again")
        collect(repo)
        repo.refs.update("branches/slow", None, saved, "save")
    require_whole(repo, {saved: state})


def test_an_index_that_is_rebuilt_meanwhile(repo: Repository, gone: dict[CommitId, State]) -> None:
    """It numbers packs and commits in its own way, and knows again what was swept."""
    state = list(gone.values())[-1]
    made: dict[CommitId, State] = {}

    def rebuild_and_save() -> None:
        rebuild_index(repo.layout, repo.files, repo.packs)
        made[save(repo, state, branch="again").commit] = state

    collect(repo, progress=when("sweeping", 4, rebuild_and_save))
    require_whole(repo, made)
    collect(repo)
    require_whole(repo, made)


def test_readers_beside_it_notice_nothing(repo: Repository) -> None:
    """Packs are replaced under them, again and again."""
    states = {f"b{number}": {"a": noise(("a", number), 200)} for number in range(4)}
    tips = {}
    for branch, state in states.items():
        save(repo, {**state, "ballast": noise(branch, 4000)}, branch=f"{branch}-gone")
        tips[save(repo, state, branch=branch).commit] = state
    errors: list[BaseException] = []
    is_over = threading.Event()

    def load() -> None:
        with Repository.open(repo.layout.root, read_only=True, thread_count=1) as reader:
            while not is_over.is_set() and not errors:
                try:
                    assert all(read(reader, tip) == state for tip, state in tips.items())
                except BaseException as error:
                    errors.append(error)

    readers = [threading.Thread(target=load) for _ in range(2)]
    for reader in readers:
        reader.start()
    replaced = 0
    for branch in states:
        forget_branch(repo, f"{branch}-gone")
        replaced += collect(repo).compacted_count
    is_over.set()
    for reader in readers:
        reader.join()
    assert errors == []
    assert replaced == len(states)
    require_whole(repo, tips)


# --- watching -------------------------------------------------------------------------------------------------------


def test_the_watch_tells_each_of_what_came_after_it_began(repo: Repository) -> None:
    first = list(line(repo, "main", 2))
    watch = Watch(repo)
    assert set(first) <= watch.begin()
    assert watch.news() == set()
    saved = save(repo, {"a": noise("a", 90)}).commit
    assert watch.news() == {saved, first[-1]}  # a reflog line names what was before, too
    assert watch.news() == set()
    repo.pin(first[0])
    assert watch.news() == {first[0]}
    repo.set_ref(tag_name("best"), None, first[0], "tag")
    assert watch.news() == {first[0]}
    with acquire_lease(repo.layout.root, repo.files) as lease:
        lease.add_commit(saved)
        assert watch.news() == watch.news() == {saved}
    (repo.layout.root / "refs/branches/by-hand").write_text(f"{first[1].hex()}\n")
    assert watch.news() == {first[1]}


def test_the_watch_reads_reflogs_that_were_rewritten(repo: Repository) -> None:
    commits = list(line(repo, "main", 3))
    watch = Watch(repo)
    watch.begin()
    expire_reflogs(repo)
    assert watch.news() == set(commits)
    log = repo.layout.root / "logs/refs/branches/main"
    log.write_bytes(log.read_bytes() + b"torn")
    assert watch.news() == set()
    log.write_bytes(log.read_bytes()[: -len(b"torn")])
    assert save(repo, {"a": noise("a", 90)}).commit in watch.news()


def test_d6_the_watch_knows_arrivals_by_an_index_that_was_rebuilt_when_a_clock_was_off(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    line(repo, "main", 2)
    expire_reflogs(repo)
    watch = Watch(repo)
    watch.begin()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: 5)
        saved = save(repo, {"a": noise("a", 90)}, branch="exp").commit
    repo.delete_ref(branch_name("exp"))
    shutil.rmtree(repo.layout.root / "logs")
    rebuild_index(repo.layout, repo.files, repo.packs)
    assert repo.index.commit(saved).sequence == 1  # type: ignore[union-attr]
    assert saved in watch.news()


def test_long_reflogs_are_read_from_where_they_were_read_to(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    from store.gc import watching

    monkeypatch.setattr(watching, "REFLOG_TAIL_BYTES", 250)
    first = list(line(repo, "main", 6))
    watch = Watch(repo)
    watch.begin()
    saved = save(repo, {"a": noise("a", 90)}).commit
    assert watch.news() == {saved, first[-1]}
    repo.delete_ref(branch_name("main"))
    assert watch.news() == {saved}
    assert chunk_of(repo, saved, "a")
