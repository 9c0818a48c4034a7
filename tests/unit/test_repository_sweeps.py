"""A sweep takes what a save counts on, between the look-up and the publication."""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from store.codec import narrowing
from store.errors import Busy
from store.fsck import fsck
from store.ids import ChunkId, ObjectId, TreeId
from store.limits import SAVE_CHAIN_DEPTH, STORE_ATTEMPTS
from store.repository import Repository
from store.saving import packseries
from store.saving.bases import LastSave
from store.saving.inputs import ItemInput, MadeInput
from store.saving.saver import SaveRequest
from tests.arrays import ITEM, Array, chunk_of, depth, drifted, entries_of, noise, read, require_whole, save

STATE = {name: noise(name, 1000) for name in "abcdefgh"}
DRIFTED = {name: drifted(array, 1) for name, array in STATE.items()}


class SweptIndex:
    """An index of which a sweep takes objects whenever something is about to be written.

    Args:
        index: the index.
        victims: of each sweep, the objects it takes.
    """

    def __init__(self, index: Any, victims: list[Iterable[ObjectId]]) -> None:
        self._index = index
        self._victims = victims

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def write(self, body: Callable[[Any], Any]) -> Any:
        for victim in self._victims.pop(0) if self._victims else ():
            for place in self._index.places(victim):
                self._index.mark_bad(victim, place.pack)  # to whoever looks it up it is gone
        return self._index.write(body)


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        yield repo


def sweep(repo: Repository, *victims: set[ChunkId] | set[TreeId]) -> None:
    """Let a sweep take objects whenever something is about to be published; whose pack is taken away after it."""
    repo.index = SweptIndex(repo.index, [each for victim in victims for each in (victim, ())])


def require_tidy(repo: Repository, pack_count: int) -> None:
    assert list(repo.layout.writers.iterdir()) == []
    assert len(list(repo.layout.packs.iterdir())) == pack_count


@pytest.mark.parametrize("in_memory", [True, False])
def test_d3_a_chunk_that_is_swept_before_publication_is_stored_again(repo: Repository, in_memory: bool) -> None:
    first = save(repo, STATE)
    chunk = chunk_of(repo, first.commit, "c")
    sweep(repo, {chunk})
    changed = {**STATE, "a": noise("other", 1000)}
    second = save(repo, changed, last=first.last if in_memory else None)
    assert read(repo, second.commit) == changed
    assert second.counts.new_raw_bytes == 2 * 4000  # what changed, and what was taken
    assert second.counts.known_count == 6
    require_tidy(repo, pack_count=2)


def test_d3_only_a_parents_trees_are_held_not_those_of_a_last_save_on_another_branch(repo: Repository) -> None:
    save(repo, STATE)
    other = save(repo, DRIFTED, branch="exp")
    chunk = chunk_of(repo, other.commit, "c")
    sweep(repo, {chunk})
    again = save(repo, DRIFTED, last=other.last)  # on main: the same tree, of which a chunk is gone by now
    assert again.counts.new_raw_bytes >= 4000
    assert any(repo.index.places(chunk))
    assert read(repo, again.commit) == DRIFTED


def test_d3_a_commit_that_shares_all_of_its_parents_trees_needs_none_of_its_chunks_checked(repo: Repository) -> None:
    """They are held by the parent, which a ref holds: no sweep takes them."""
    first = save(repo, STATE)
    sweep(repo, set())
    assert save(repo, STATE, last=first.last).counts.new_raw_bytes == 0


def test_d3_a_swept_base_makes_the_delta_whole(repo: Repository) -> None:
    first = save(repo, STATE)
    sweep(repo, {chunk_of(repo, first.commit, name) for name in STATE})
    second = save(repo, DRIFTED, last=first.last)
    assert second.counts.delta_count == 0
    assert all(depth(repo, chunk) == 0 for entry in entries_of(repo, second.commit).values() for chunk in entry.chunks)
    assert read(repo, second.commit) == DRIFTED
    require_tidy(repo, pack_count=2)


def test_d3_a_swept_base_makes_what_resembles_it_whole(repo: Repository) -> None:
    like = entries_of(repo, save(repo, STATE).commit)["a"]
    raw = narrowing("float32", "bfloat16", b"", 1).new(STATE["a"].data, 0)
    made = MadeInput(0, "bfloat16", (1000,), lambda start, stop: raw[start:stop], like=like)
    for branch, counted in (("counted on", 1), ("swept", 0)):
        sweep(repo, set() if counted else set(like.chunks))
        done = repo.save(SaveRequest([ItemInput(ITEM, {"w": made})], branch=branch.replace(" ", "-")))
        assert done.counts.delta_count == counted
        assert read(repo, done.commit) == {"w": Array("bfloat16", (1000,), bytes(raw))}
        raw = memoryview(bytes(raw)[:-2] + b"!!")


def test_d3_a_swept_tree_is_stored_again(repo: Repository) -> None:
    first = save(repo, STATE)
    second = save(repo, DRIFTED, last=first.last)
    sweep(repo, {repo.commit(first.commit).items["model"]})
    third = save(repo, STATE, last=second.last)  # back to what was
    require_whole_but_marked(repo, {first.commit: STATE, second.commit: DRIFTED, third.commit: STATE})


def test_d3_sweeps_that_never_end_are_told_of_and_leave_nothing(repo: Repository) -> None:
    """Each attempt finds a chunk that an earlier commit stored, and loses it again."""
    commits = [save(repo, {"w": noise(number, 1000)}).commit for number in range(STORE_ATTEMPTS)]
    chunks = [chunk_of(repo, commit, "w") for commit in commits]
    state: dict[str, Array] = {f"w{number}": noise(number, 1000) for number in range(STORE_ATTEMPTS)}
    sweep(repo, *({chunk} for chunk in chunks))
    with pytest.raises(Busy, match="try again"):
        save(repo, state)
    require_tidy(repo, pack_count=STORE_ATTEMPTS)
    assert repo.resolve("main") == commits[-1]
    saved = save(repo, state)
    assert read(repo, saved.commit) == state


def test_the_last_attempt_counts(repo: Repository) -> None:
    first = save(repo, STATE)
    chunks = [chunk_of(repo, first.commit, name) for name in "ab"]
    changed = {**STATE, "c": noise("other", 1000)}
    sweep(repo, *({chunk} for chunk in chunks))
    assert read(repo, save(repo, changed, last=first.last).commit) == changed
    require_tidy(repo, pack_count=2)


def require_whole_but_marked(repo: Repository, commits: dict[Any, dict[str, Array]]) -> None:
    """The sweep of these tests only marks copies: a check sees that they are whole, and that the index denies them."""
    assert all(read(repo, commit) == state for commit, state in commits.items())
    assert {finding.kind for finding in fsck(repo, full=True).findings} <= {"index"}


class LateIndex:
    """An index that does not know of a chunk yet, when it is first asked."""

    def __init__(self, index: Any, chunk: ObjectId) -> None:
        self._index = index
        self._unknown = [chunk]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def places_below(self, object_ids: Collection[ObjectId]) -> dict[ObjectId, list[Any]]:
        found: dict[ObjectId, list[Any]] = self._index.places_below(object_ids)
        for object_id in found.keys() & self._unknown:
            self._unknown.remove(object_id)
            found[object_id] = []
        return found


def test_no_chunk_is_stored_against_itself(repo: Repository) -> None:
    """Its copies were lost, and another writer stores it again at this very moment."""
    state, last = {"w": noise("w", 1000)}, None
    for _ in range(SAVE_CHAIN_DEPTH + 1):  # at one of them the place restarts anyhow
        saved = save(repo, state, last=last)
        last = LastSave(saved.last.entries, {}, saved.last.ordinal)
        chunk = chunk_of(repo, saved.commit, "w")
        repo.index = LateIndex(repo.index, chunk)
        again = save(repo, state, last=last)
        last = LastSave(again.last.entries, {}, again.last.ordinal)
        assert (again.counts.new_raw_bytes, again.counts.delta_count) == (4000, 0)
        assert {place.base for place in repo.index.places(chunk)} == {None}


# --- many packs -----------------------------------------------------------------------------------------------------


def test_a_save_fills_several_packs(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packseries, "MAX_PACK_BYTES", 10_000)
    state = {str(number): noise(number, 1000) for number in range(10)}
    first = save(repo, state)
    assert len(repo.index.packs()) == 5  # two chunks each; the last one's tree and commit fit beside them
    changed = {name: drifted(array, 1) for name, array in state.items()}
    second = save(repo, changed, last=first.last)
    require_whole(repo, {first.commit: state, second.commit: changed})
    assert sorted(repo.index.packs()) == repo.packs.pack_ids()


def test_all_packs_of_an_attempt_that_came_to_nothing_go(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    first = save(repo, STATE)
    monkeypatch.setattr(packseries, "MAX_PACK_BYTES", 10_000)
    state = {**STATE, **{str(number): noise(number, 1000) for number in range(10)}}
    sweep(repo, {chunk_of(repo, first.commit, "a")})
    second = save(repo, state, last=first.last)
    assert sorted(repo.index.packs()) == repo.packs.pack_ids()
    assert read(repo, second.commit) == state


def test_packs_of_a_failed_attempt_stay_if_another_save_made_them_too(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal content makes equal packs, with one name for both: another save may have counted on them meanwhile."""
    first = save(repo, {"z": noise("z", 1000)})
    monkeypatch.setattr(packseries, "MAX_PACK_BYTES", 10_000)
    state = {str(number): noise(number, 1000) for number in range(10)}
    with Repository.open(repo.layout.root, thread_count=2) as other:
        made = []

        def overtaken() -> Iterator[ObjectId]:
            made.append(save(other, state, branch="exp").commit)
            yield chunk_of(repo, first.commit, "z")

        repo.index = SweptIndex(repo.index, [overtaken()])
        wider = {**state, "z": noise("z", 1000)}
        second = save(repo, wider)
        assert read(other, made[0]) == state
        assert read(repo, second.commit) == wider
    assert not fsck(repo, full=True).notes


# --- damaged parents ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("what", ["commit", "tree"])
def test_a_run_goes_on_saving_on_top_of_a_damaged_commit(
    repo: Repository, what: str, in_memory: bool, caplog: pytest.LogCaptureFixture
) -> None:
    first = save(repo, STATE)
    object_id = first.commit if what == "commit" else repo.commit(first.commit).items["model"]
    (place,) = repo.index.places(object_id)
    path = repo.layout.packs / f"{place.pack.hex()}.pack"
    data = bytearray(path.read_bytes())
    data[place.offset + place.stored_bytes - 1] ^= 1
    path.write_bytes(data)
    second = save(repo, DRIFTED, last=first.last if in_memory else None)
    assert read(repo, second.commit) == DRIFTED
    assert repo.commit(second.commit).parents == (first.commit,)
    is_read = what == "commit" or not in_memory
    assert ("the parent of this save is damaged" in caplog.text) == is_read
    third = save(repo, STATE, last=second.last)
    assert read(repo, third.commit) == STATE  # the tree was stored again


# --- threads --------------------------------------------------------------------------------------------------------


def test_two_threads_save_on_two_branches_of_one_handle(repo: Repository) -> None:
    commits: dict[Any, dict[str, Array]] = {}

    def run(branch: str) -> None:
        last = None
        for number in range(5):
            state = {name: drifted(array, (number, branch)) for name, array in STATE.items()}
            saved = save(repo, state, branch=branch, last=last)
            last, commits[saved.commit] = saved.last, state

    threads = [threading.Thread(target=run, args=(branch,)) for branch in ("main", "exp")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(commits) == 10
    require_whole(repo, commits)
