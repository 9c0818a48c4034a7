"""Pushes and gc of one remote at once: whatever of the one comes between whatever of the other, nothing is lost.

One party runs; at its n-th request the other does what it does, for each n. Nothing waits, nothing is left to chance.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store.errors import MoonclipError
from store.naming.refnames import branch_name
from store.remotes.checking.check import lost_objects
from store.remotes.checking.gc import remote_gc
from store.repository import Repository
from tests.remotes.remote_worlds import (
    DAY_NS,
    ClockedStorage,
    drop_there,
    lacking_there,
    opened,
    packs_of,
    pushed,
    require_whole,
    saved,
)
from tests.remotes.watched_storage import Died, WatchedStorage

MOST_REQUESTS = 60

Step = Callable[[], None]


class At(WatchedStorage):
    """Lets others do something just before given requests.

    Args:
        storage: the remote.
        steps: what to do before which request, the first being 0.
    """

    def __init__(self, storage: ClockedStorage, steps: dict[int, Step]) -> None:
        super().__init__(storage)
        self._steps = steps
        self.before = self._do

    def _do(self, _method: str, _key: str) -> None:
        step = self._steps.pop(len(self.requests) - 1, None)
        if step is not None:
            step()


class World:
    """A remote, a store that pushes, and another that shares the remote with it."""

    def __init__(self, path: Path, repo: Repository, other: Repository) -> None:
        self.path = path
        self.repo = repo
        self.other = other
        self.storage = ClockedStorage()
        self.rerun_count = 0

    def again(self) -> None:
        """Forget what was pushed, and what is remembered of it."""
        self.storage = ClockedStorage()
        for repo in (self.repo, self.other):
            for name in repo.refs.names("remotes/"):
                repo.delete_ref(name)

    def wait(self, days: float = 1) -> None:
        self.storage.clock_ns += round(days * DAY_NS)

    def collect(self) -> None:
        with opened(self.other, self.storage) as remote:
            remote_gc(self.other, remote)

    def push(self, storage: WatchedStorage | None = None) -> None:
        """Push the branch ``new``; if that says that something is wrong, push again what it lacks."""
        try:
            pushed(self.repo, storage or self.storage, "new")
        except MoonclipError:
            self.rerun_count += 1
            with opened(self.repo, self.storage) as remote:
                lost = lost_objects(self.repo, remote)
            pushed(self.repo, self.storage, "new", lost=lost)

    def require_whole(self) -> None:
        assert not lacking_there(self.repo, self.storage)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with Repository.init(tmp_path / "a") as repo, Repository.init(tmp_path / "b") as other:
        saved(repo, "old", 0, 1, 2)
        tip = repo.refs.read(branch_name("old"))
        assert tip is not None
        repo.set_ref(branch_name("new"), None, tip, "branch")
        saved(repo, "new", 3, 4)
        saved(other, "theirs", 9)
        yield World(tmp_path, repo, other)


def abandoned(world: World) -> None:
    """All that ``new`` needs was sent, two days ago, by whoever then died."""
    world.again()
    pushed(world.other, world.storage, "theirs")
    watched = WatchedStorage(world.storage)

    def die(method: str, key: str) -> None:
        if method.startswith("put") and key.startswith("refs/branches"):
            raise Died

    watched.before = die
    with pytest.raises(Died):
        pushed(world.repo, watched, "new")
    assert len(packs_of(world.storage)) == 2
    world.wait(2)


def based(world: World) -> None:
    """The branch ``old``, which has most of what ``new`` needs, was pushed two days ago."""
    world.again()
    pushed(world.other, world.storage, "theirs")
    pushed(world.repo, world.storage, "old")
    world.wait(2)


def unbase(world: World) -> None:
    """Somebody deletes the branch that has it."""
    key = "refs/branches/old"
    world.storage.put(key, b"0" * 64 + b"\n")


def each_request(run: Callable[[int], int]) -> None:
    """Run for each number of a request, until there are not so many."""
    for number in range(MOST_REQUESTS):
        if run(number) <= number:
            assert number > 3
            return
    raise AssertionError("it makes more and more requests")


def test_d3_gc_condemns_what_a_push_found_there(world: World) -> None:
    def run(number: int) -> int:
        abandoned(world)
        watched = At(world.storage, {number: world.collect})
        world.push(watched)
        world.require_whole()
        world.wait()
        world.collect()
        world.require_whole()
        return len(watched.requests)

    each_request(run)
    assert not world.rerun_count


def test_d3_gc_deletes_what_a_push_found_there(world: World) -> None:
    def run(number: int) -> int:
        abandoned(world)
        world.collect()
        world.wait()
        watched = At(world.storage, {number: world.collect})
        world.push(watched)
        world.require_whole()
        return len(watched.requests)

    each_request(run)
    assert not world.rerun_count


@pytest.mark.slow
@pytest.mark.parametrize("before", [abandoned, based])
def test_d1_a_push_that_takes_longer_than_the_grace(world: World, before: Callable[[World], None]) -> None:
    """Condemned at one request, deleted at a later one."""

    def first() -> None:
        if before is based:
            unbase(world)
        world.collect()
        world.wait()

    def run(number: int) -> int:
        made = 0
        for later in range(number + 1, MOST_REQUESTS):
            before(world)
            watched = At(world.storage, {number: first, later: world.collect})
            world.push(watched)
            world.require_whole()
            world.wait()
            world.collect()
            world.require_whole()
            made = len(watched.requests)
            if later >= made:
                break
        return made

    each_request(run)


def test_what_a_push_builds_on_loses_its_branch(world: World) -> None:
    def run(number: int) -> int:
        based(world)

        def delete() -> None:
            unbase(world)
            world.collect()

        watched = At(world.storage, {number: delete})
        world.push(watched)
        world.require_whole()
        for _ in range(3):
            world.wait()
            world.collect()
            world.require_whole()
        return len(watched.requests)

    each_request(run)
    assert not world.rerun_count


@pytest.mark.parametrize("is_second", [False, True])
def test_a_push_comes_between_two_requests_of_gc(world: World, is_second: bool) -> None:
    def run(number: int) -> int:
        abandoned(world)
        if is_second:
            world.collect()
            world.wait()
        watched = At(world.storage, {number: world.push})
        with opened(world.other, watched) as remote:
            remote_gc(world.other, remote)
        world.require_whole()
        for _ in range(3):
            world.wait()
            world.collect()
            world.require_whole()
        return len(watched.requests)

    each_request(run)
    assert not world.rerun_count


def test_d1_a_gc_that_is_suspended_while_another_runs_and_pushes_follow(world: World) -> None:
    def others() -> None:
        for _ in range(3):
            world.collect()
            world.push()
            world.wait()

    def run(number: int) -> int:
        abandoned(world)
        world.collect()
        world.wait()
        watched = At(world.storage, {number: others})
        with opened(world.other, watched) as remote:
            remote_gc(world.other, remote)
        world.require_whole()
        return len(watched.requests)

    each_request(run)
    assert not world.rerun_count


def test_two_gcs_and_a_push(world: World) -> None:
    def both() -> None:
        world.push()
        world.collect()

    def run(number: int) -> int:
        abandoned(world)
        world.collect()
        world.wait()
        watched = At(world.storage, {number: both})
        with opened(world.other, watched) as remote:
            remote_gc(world.other, remote)
        world.require_whole()
        return len(watched.requests)

    each_request(run)
    assert not world.rerun_count


def test_what_is_left_after_all_that_can_be_read(world: World) -> None:
    abandoned(world)
    world.push(At(world.storage, {5: world.collect}))
    for _ in range(3):
        world.wait()
        world.collect()
    assert len(packs_of(world.storage)) <= 3  # what was condemned, or what was sent for it, or some of each
    drop_there(world.other, world.storage, "theirs")
    require_whole(world.storage, world.path / "copy")
