"""What a save stores, and what it finds stored."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from store.errors import Incompatible
from store.format.entries import ContainerEntry, ValueEntry
from store.limits import GROUP_BYTES, GROUP_CHUNKS, MAX_CHUNK_BYTES, MAX_INLINE_BYTES, SAVE_CHAIN_DEPTH
from store.repository import Repository
from store.saving.bases import Bases
from store.saving.drafts import ChunkTask, draft, groups
from store.saving.inputs import ContainerInput, Input, ItemInput, TensorInput, ValueInput
from store.saving.saver import Saved, SaveRequest
from tests.arrays import (
    Array,
    State,
    chunk_of,
    damage,
    depth,
    depths,
    drifted,
    entries_of,
    item,
    noise,
    read,
    require_whole,
    save,
)

BIG = noise("big", 700, 512)  # 1.4 MB in two chunks


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        yield repo


def named(prefix: str, count: int, *shape: int) -> dict[str, Array]:
    return {f"{prefix}{number}": noise((prefix, number), *shape) for number in range(count)}


# --- dedup ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_memory", [True, False])
def test_what_did_not_change_is_not_stored_again(repo: Repository, in_memory: bool) -> None:
    first = save(repo, {"a": BIG, "b": noise("b", 1000)})
    again = save(repo, {"a": BIG, "b": noise("b", 1000)}, last=first.last if in_memory else None)
    assert again.counts.new_raw_bytes == 0
    assert again.counts.unchanged_count == (3 if in_memory else 0)
    assert again.counts.known_count == (0 if in_memory else 3)
    assert again.counts.stored_bytes < 500  # the commit
    assert again.commit != first.commit


def test_a4_one_tensor_of_many_changes(repo: Repository) -> None:
    state = named("layer", 100, 2000)
    first = save(repo, state)
    changed = {**state, "layer7": noise("other", 2000)}
    second = save(repo, changed, last=first.last)
    assert second.counts.new_raw_bytes == 8000
    require_whole(repo, {first.commit: state, second.commit: changed})


def test_a4_a_renamed_tensor_costs_nothing(repo: Repository) -> None:
    first = save(repo, {"old": BIG})
    second = save(repo, {"new": BIG}, last=first.last)
    assert (second.counts.known_count, second.counts.new_raw_bytes) == (2, 0)


def test_duplicates_within_a_save_are_stored_once(repo: Repository) -> None:
    saved = save(repo, {"a": BIG, "b": BIG, "c": BIG})
    assert saved.counts.new_raw_bytes == len(BIG.data)
    assert (saved.counts.chunk_count, saved.counts.known_count) == (6, 4)
    require_whole(repo, {saved.commit: {"a": BIG, "b": BIG, "c": BIG}})


def test_the_same_bytes_under_another_dtype_are_the_same_chunk(repo: Repository) -> None:
    first = save(repo, {"w": BIG})
    second = save(repo, {"w": Array("int32", BIG.shape, BIG.data)}, last=first.last)
    assert second.counts.new_raw_bytes == 0
    assert read(repo, second.commit)["w"].dtype == "int32"


def test_a2_ties_are_recorded_and_cost_nothing(repo: Repository) -> None:
    state = {"embed": BIG, "lm_head": BIG}
    saved = repo.save(SaveRequest([item(state, ties=[("embed", "lm_head")])], branch="main"))
    assert saved.counts.new_raw_bytes == len(BIG.data)
    assert repo.tree(repo.commit(saved.commit), "model").ties == (("embed", "lm_head"),)


def test_a5_changed_and_back_again(repo: Repository) -> None:
    states = [BIG, drifted(BIG, 1), BIG, noise("other", 700, 512), BIG]
    last, commits = None, {}
    for number, array in enumerate(states):
        saved = save(repo, {"w": array}, last=last)
        last, commits[saved.commit] = saved.last, {"w": array}
        assert (saved.counts.new_raw_bytes == 0) == (number in {2, 4})
    require_whole(repo, commits)


# --- deltas ---------------------------------------------------------------------------------------------------------


Change = Callable[[Array, object], Array]


def shaken(array: Array, seed: object) -> Array:
    """Half of each word changed, as when a state is trained: what a delta is made for, though it is not small."""
    words = np.frombuffer(array.data, "<u2").copy().reshape(-1, 2)
    words[:, 0] = np.frombuffer(noise(("shaken", seed), len(words)).data, "<u2")[::2]
    return Array(array.dtype, array.shape, words.tobytes())


def run(repo: Repository, first: State, save_count: int, change: Change, *, in_memory: bool) -> list[Saved]:
    """A run whose tensors all change from save to save."""
    state, last, done = first, None, []
    for number in range(save_count):
        saved = save(repo, state, last=last if in_memory else None)
        last = saved.last
        done.append(saved)
        state = {name: change(array, (name, number)) for name, array in state.items()}
    return done


@pytest.mark.parametrize("in_memory", [True, False])
def test_chains_are_bounded_and_restarts_staggered(repo: Repository, in_memory: bool) -> None:
    count = 60
    saves = run(repo, named("w", count, 1000), 14, shaken, in_memory=in_memory)
    assert max(max(depths(repo, saved.commit)) for saved in saves) == SAVE_CHAIN_DEPTH
    assert saves[1].counts.delta_count == count  # no chain is long yet: a fine-tune on its base restarts none
    for saved in saves[2:]:
        full_count = saved.counts.chunk_count - saved.counts.delta_count
        assert 0 < full_count < 3 * count / (SAVE_CHAIN_DEPTH + 1)


@pytest.mark.parametrize("in_memory", [True, False])
def test_b7_what_changes_little_is_stored_against_older_bases(repo: Repository, in_memory: bool) -> None:
    """And not in full, though its chains are no longer, and no save is like the first."""
    count = 60
    saves = run(repo, named("w", count, 2000), 14, drifted_a_little, in_memory=in_memory)
    assert max(max(depths(repo, saved.commit)) for saved in saves) == SAVE_CHAIN_DEPTH
    assert {saved.counts.delta_count for saved in saves[1:]} == {count}
    stored = [saved.counts.stored_bytes for saved in saves]
    assert max(stored[1:]) < stored[0] / 5


def drifted_a_little(array: Array, seed: object) -> Array:
    return drifted(array, seed, share=0.01)


def test_a_place_that_has_its_turn_is_not_stored_in_full_if_it_changed_little(repo: Repository) -> None:
    """Though no chain tells yet how little saves change: what has changed now did not before."""
    state, count = named("w", 60, 2000), 60
    last = save(repo, state).last
    last = save(repo, state, last=last).last
    little = {name: drifted_a_little(array, name) for name, array in state.items()}
    much = {name: shaken(array, name) for name, array in state.items()}
    assert save(repo, little, last=last).counts.delta_count == count
    assert 0 < count - save(repo, much, branch="other", last=last).counts.delta_count < count / 2


def test_an_older_base_that_is_damaged_is_none(repo: Repository) -> None:
    """Every chain comes to begin anew, and does so in full: nothing is left that stands on what is lost."""
    state = named("w", 20, 2000)
    first = save(repo, state)
    for name in state:
        damage(repo, chunk_of(repo, first.commit, name))
    last = first.last
    for number in range(SAVE_CHAIN_DEPTH + 2):  # of which the first one makes no chain begin anew
        state = {name: drifted_a_little(array, (name, number)) for name, array in state.items()}
        saved = save(repo, state, last=last)
        last = saved.last
    assert read(repo, saved.commit) == state


def test_runs_that_save_in_turn_do_not_fall_into_step(repo: Repository) -> None:
    """With five runs, each one's commits arrive five apart: just the period in which chains restart."""
    count, run_count = 40, SAVE_CHAIN_DEPTH + 1
    states = {f"run{number}": named(f"{number}-", count, 500) for number in range(run_count)}
    lasts = {branch: save(repo, state, branch=branch).last for branch, state in states.items()}
    for number in range(SAVE_CHAIN_DEPTH + 2):
        for branch, state in states.items():
            state.update({name: shaken(array, (name, number)) for name, array in state.items()})
            saved = save(repo, state, branch=branch, last=lasts[branch])
            lasts[branch] = saved.last
            if number > 0:
                assert 0 < count - saved.counts.delta_count < 3 * count / (SAVE_CHAIN_DEPTH + 1)


def test_a_delta_of_another_shape_or_dtype_is_none(repo: Repository) -> None:
    first = save(repo, named("w", 20, 1000))
    other = {name: Array("int32", (1000,), drifted(array, 1).data) for name, array in named("w", 20, 1000).items()}
    longer = {name: Array("int32", (1001,), array.data + b"end!") for name, array in other.items()}
    second = save(repo, other, last=first.last)
    third = save(repo, longer, last=second.last)
    assert (second.counts.delta_count, third.counts.delta_count) == (0, 0)
    require_whole(repo, {second.commit: other, third.commit: longer})


# --- bad copies -----------------------------------------------------------------------------------------------------


def provoke(repo: Repository, commit: object) -> None:
    """Read a commit that is damaged, so that the damage is noticed."""
    with pytest.raises(Exception, match="damaged"):
        read(repo, commit)  # type: ignore[arg-type]


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_bad_copy_is_no_dedup_hit(repo: Repository, in_memory: bool) -> None:
    first = save(repo, {"w": BIG})
    damage(repo, chunk_of(repo, first.commit, "w"))
    provoke(repo, first.commit)
    second = save(repo, {"w": BIG}, last=first.last if in_memory else None)
    assert second.counts.new_raw_bytes > 0
    assert read(repo, second.commit) == read(repo, first.commit) == {"w": BIG}  # both mended


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_bad_copy_is_no_base(repo: Repository, in_memory: bool) -> None:
    state = named("w", 10, 1000)
    first = save(repo, state)
    for name in state:
        damage(repo, chunk_of(repo, first.commit, name))
        with pytest.raises(Exception, match="damaged"):
            repo.read_tensor(entries_of(repo, first.commit)[name])
    changed = {name: drifted(array, name) for name, array in state.items()}
    second = save(repo, changed, last=first.last if in_memory else None)
    assert second.counts.delta_count == 0
    assert read(repo, second.commit) == changed


def test_a_base_found_damaged_while_saving_is_none(repo: Repository) -> None:
    state = named("w", 10, 1000)
    first = save(repo, state)
    for name in state:
        damage(repo, chunk_of(repo, first.commit, name))
    changed = {name: drifted(array, name) for name, array in state.items()}
    second = save(repo, changed)  # bases have to be read
    assert second.counts.delta_count == 0
    assert read(repo, second.commit) == changed


def delta_on_damaged_base(repo: Repository) -> tuple[Saved, Saved, Array, Array]:
    """Two saves of which the second is a delta of the first, which turned out to be damaged."""
    old = noise("w", 5000)
    first = save(repo, {"w": old})
    last = first.last
    while True:  # until the place does not happen to restart
        new = drifted(old, last.ordinal)
        second = save(repo, {"w": new}, last=last)
        if second.counts.delta_count:
            break
        old, first, last = new, second, second.last
    damage(repo, chunk_of(repo, first.commit, "w"))
    provoke(repo, second.commit)
    return first, second, old, new


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_delta_of_a_bad_copy_is_no_dedup_hit(repo: Repository, in_memory: bool) -> None:
    """Its own bytes are intact, but nobody can decode them."""
    _, second, _, new = delta_on_damaged_base(repo)
    third = save(repo, {"w": new}, last=second.last if in_memory else None)
    assert third.counts.new_raw_bytes == len(new.data)
    assert read(repo, third.commit) == read(repo, second.commit) == {"w": new}


def test_a_lost_base_is_not_stored_against_its_own_delta(repo: Repository) -> None:
    """That would be a cycle, and both lost for ever."""
    first, second, old, new = delta_on_damaged_base(repo)
    third = save(repo, {"w": old}, last=second.last)
    assert depth(repo, chunk_of(repo, third.commit, "w")) == 0
    assert read(repo, first.commit) == {"w": old}
    assert read(repo, second.commit) == {"w": new}


# --- sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "chunk_count"), [(0, 0), (1, 0), (MAX_INLINE_BYTES, 0), (MAX_INLINE_BYTES + 1, 1)])
def test_small_tensors_sit_in_the_tree(repo: Repository, size: int, chunk_count: int) -> None:
    state = {"w": noise("w", size, dtype_name="uint8")}
    saved = save(repo, state)
    assert saved.counts.chunk_count == chunk_count
    require_whole(repo, {saved.commit: state})


def test_a20_20_000_tiny_tensors(repo: Repository) -> None:
    state = {f"state/{number}/step": noise(number) for number in range(20_000)}
    first = save(repo, state)
    assert first.counts.chunk_count == 0
    assert first.counts.stored_bytes < 20_000 * 40
    assert len(repo.index.packs()) == 1
    changed = {**state, "state/77/step": noise("changed")}
    second = save(repo, changed, last=first.last)
    assert second.counts.stored_bytes < first.counts.stored_bytes / 10  # one leaf of the tree, its root, the commit
    assert read(repo, second.commit) == changed


def test_values_and_containers(repo: Repository) -> None:
    values = {"short": {"lr": 0.1, 3: (None, True)}, "long": list(range(20_000))}
    given: dict[str, Input] = {
        "": ContainerInput(0, "dict", {"of": "all"}),
        **{name: ValueInput(position, value) for position, (name, value) in enumerate(values.items())},
    }
    saved = repo.save(SaveRequest([ItemInput("extra", given)], branch="main"))
    tree = repo.tree(repo.commit(saved.commit), "extra")
    for name, value in values.items():
        entry = tree[name]
        assert isinstance(entry, ValueEntry)
        assert repo.read_value(entry) == value
    assert tree[""] == ContainerEntry(0, "dict", {"of": "all"})
    assert saved.counts.chunk_count > 0
    again = repo.save(SaveRequest([ItemInput("extra", given)], branch="main", parent=saved.commit))
    assert again.counts.new_raw_bytes == 0


# --- order of the work ----------------------------------------------------------------------------------------------


def tasks_of(sizes: Iterable[int]) -> list[ChunkTask]:
    return [ChunkTask(memoryview(bytes(size)), None, None, 0, [], number) for number, size in enumerate(sizes)]


def test_large_chunks_are_begun_first_and_small_ones_share_a_group() -> None:
    tasks = tasks_of([100, 200, MAX_CHUNK_BYTES, *[GROUP_BYTES // 4] * 8, 300, MAX_CHUNK_BYTES])
    planned = groups(tasks)
    assert sorted(task.number for group in planned for task in group) == [task.number for task in tasks]
    sizes = [sum(len(task.raw) for task in group) for group in planned]
    assert sizes == sorted(sizes, reverse=True)
    assert len(planned) < len(tasks) / 2
    assert all(sum(len(task.raw) for task in group[:-1]) < GROUP_BYTES for group in planned)


def test_a_group_has_no_more_than_so_many_chunks() -> None:
    """However small they are: several threads shall have something to do."""
    assert [len(group) for group in groups(tasks_of([1] * (2 * GROUP_CHUNKS + 1)))] == [GROUP_CHUNKS, GROUP_CHUNKS, 1]
    assert groups([]) == []


# --- refusals -------------------------------------------------------------------------------------------------------

REFUSED = {
    "bytes that do not fit the shape": TensorInput(0, "float32", (3,), memoryview(bytes(11))),
    "an unknown dtype": TensorInput(0, "float33", (3,), memoryview(bytes(12))),
    "a value that is not plain": ValueInput(0, object()),
}


@pytest.mark.parametrize("given", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_stored_is_named(repo: Repository, given: TensorInput | ValueInput) -> None:
    with pytest.raises(Incompatible):
        draft("model", "x", given, Bases(repo.reader, {}, {}))
    with pytest.raises(Incompatible):
        repo.save(SaveRequest([ItemInput("model", {"x": given})], branch="main"))
    assert repo.refs.list() == {}
    assert list(repo.layout.packs.iterdir()) == []
    assert list(repo.layout.writers.iterdir()) == []
