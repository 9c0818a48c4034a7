"""Saves by several ranks: one commit of what all of them stored, or none."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from store.errors import (
    Conflict,
    Incompatible,
    NotFound,
    PartsMissing,
    SnapshotGone,
    StoreNotFound,
)
from store.format.entries import ValueEntry
from store.format.objects import TreeNode
from store.fsck import fsck
from store.ids import CommitId, ObjectId, TreeId
from store.limits import SAVE_CHAIN_DEPTH
from store.naming.refnames import branch_name
from store.reading.reader import ObjectReader
from store.repository import Repository
from store.saving.inputs import ContainerInput, ItemInput, TensorInput, ValueInput
from store.saving.rankbases import RankMemory
from store.saving.ranks import RankSaved, save_rank
from store.saving.saver import SaveRequest
from store.saving.shards import BoxInput, RankItem, ShardsInput
from tests.arrays import State, drifted, entries_of, noise, read, require_whole, save
from tools.crash.ranks import box_of_rank, request, save_ranks, save_together, shard, shards

STATE: State = {"w": noise("w", 512, 600), "b": noise("b", 100), "scalar": noise("s"), "tiny": noise("t", 7)}
LARGE: State = {
    "even": noise("even", 1024, 1100),
    "bf16": noise("bf16", 64, 8, 8192, dtype_name="bfloat16"),
    "odd": noise("odd", 1031, 1500),
}
"""Of at least 4 MiB each. Parts of 1031 rows end on the grid too, as it is made of the same parts."""


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        yield repo


def memories(saved: list[RankSaved]) -> list[RankMemory]:
    return [each.memory for each in saved]


def require_tidy(repo: Repository) -> None:
    assert list(repo.layout.parts.iterdir()) == list(repo.layout.writers.iterdir()) == []
    assert all(path.suffix == ".pack" for path in repo.layout.packs.iterdir())


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_a_state_that_several_ranks_save_is_read_back(repo: Repository, world_size: int) -> None:
    commit, saved = save_together(repo, STATE, world_size, step=7)
    require_whole(repo, {commit: STATE})
    assert repo.commit(commit).step == 7
    assert repo.refs.read(branch_name("main")) == commit
    assert sum(each.counts.raw_bytes for each in saved) == sum(len(a.data) for a in STATE.values() if len(a.data) > 256)
    assert {"plan", "sync", "part"} <= set(saved[0].seconds)
    require_tidy(repo)


def test_one_rank_commits_what_the_ordinary_saver_does(repo: Repository) -> None:
    given = {**STATE, **LARGE}
    values: dict[str, ContainerInput | ValueInput] = {
        "": ContainerInput(0, "dict"),
        "lr": ValueInput(9, 0.5),
        "log": ValueInput(10, bytes(range(256)) * 90),
    }
    tensors = {
        name: TensorInput(number, array.dtype, array.shape, memoryview(array.data))
        for number, (name, array) in enumerate(given.items())
    }
    ties = (("w", "b"),)
    plain = repo.save(SaveRequest([ItemInput("model", {**tensors, **values}, ties)], branch="plain"))
    with repo.create_snapshot(SaveRequest((), branch="ranks"), 1) as snapshot:
        saved = save_rank(repo.layout.root, snapshot.id, 0, [RankItem("model", {**tensors, **values}, ties)])
        commit = snapshot.finalize()
    assert repo.commit(commit).items == repo.commit(plain.commit).items
    assert saved.counts.chunk_count == plain.counts.chunk_count
    assert saved.counts.new_raw_bytes == plain.counts.new_raw_bytes


def test_layouts_along_dim_0_give_the_same_tree(repo: Repository) -> None:
    """Also where ranks know of nothing that is stored."""
    given = {name: LARGE[name] for name in ("even", "odd")}
    made = [save_together(repo, given, size, branch=f"by-{size}")[0] for size in (1, 2, 4, 8)]
    assert len({repo.commit(commit).items["model"] for commit in made}) == 1
    require_whole(repo, dict.fromkeys(made, given))


def test_another_layout_on_the_same_branch_adds_next_to_nothing(repo: Repository) -> None:
    sizes = []
    for world_size in (8, 1, 4, 2):
        commit, saved = save_together(repo, LARGE, world_size)
        sizes.append(repo.packs.total_bytes())
        assert read(repo, commit) == LARGE
        known_count = sum(each.counts.known_count for each in saved)
        assert world_size == 8 or known_count == sum(each.counts.chunk_count for each in saved)
    assert max(sizes) < 1.02 * sizes[0]
    assert fsck(repo, full=True).findings == []


def test_sizes_off_the_grid_are_shared_but_for_the_chunks_that_are_cut(repo: Repository) -> None:
    first, _ = save_together(repo, LARGE, 8)
    before_bytes = repo.packs.total_bytes()
    commit, _ = save_together(repo, LARGE, 3)
    require_whole(repo, {first: LARGE, commit: LARGE})
    assert repo.packs.total_bytes() - before_bytes < 0.7 * before_bytes


def test_a_rank_stores_against_its_own_last_save(repo: Repository) -> None:
    """Chains stay as short as a save makes them, though nobody looks their depths up."""
    state, commits, last = LARGE, {}, None
    full_bytes = 0
    deepest = set()
    for step in range(2 * SAVE_CHAIN_DEPTH + 3):
        before_bytes = repo.packs.total_bytes()
        commit, saved = save_together(repo, state, 4, last=last)
        added_bytes = repo.packs.total_bytes() - before_bytes
        full_bytes = full_bytes or added_bytes
        assert step == 0 or added_bytes < 0.75 * full_bytes
        commits[commit], last = state, memories(saved)
        depths = {place.depth for each in last for place in each.excerpt.values()}
        deepest.add(max(depths))
        for each in last:
            for object_id, place in each.excerpt.items():
                assert repo.index.places(object_id)[0].depth == place.depth
        state = {name: drifted(array, step) for name, array in state.items()}
    assert max(deepest) == SAVE_CHAIN_DEPTH
    require_whole(repo, dict([*commits.items()][-3:]))


def test_the_parents_trees_are_not_read_again_by_who_made_them(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = repo.create_snapshot(request(repo), 2)
    with first:
        remembered = memories(save_ranks(repo.layout.root, first, STATE))
        first.finalize()
    assert first.last is not None
    read_trees: list[TreeId] = []
    tree_node = ObjectReader.tree_node

    def watched(reader: ObjectReader, tree: TreeId) -> TreeNode:
        read_trees.append(tree)
        return tree_node(reader, tree)

    monkeypatch.setattr(ObjectReader, "tree_node", watched)
    state = {**STATE, "w": drifted(STATE["w"], 1)}
    later = replace(request(repo), last=first.last)
    with repo.create_snapshot(later, 2, ranks_remember=True) as snapshot:
        save_ranks(repo.layout.root, snapshot, state, last=remembered)
        commit = snapshot.finalize()
    assert read_trees == []
    assert snapshot.last is not None
    assert snapshot.last.ordinal == first.last.ordinal + 1
    assert snapshot.last.trees == set(repo.commit(commit).items.values())
    require_whole(repo, {commit: state})


def test_what_did_not_change_is_neither_hashed_nor_stored(repo: Repository) -> None:
    _, first = save_together(repo, STATE, 2)
    commit, saved = save_together(repo, STATE, 2, last=memories(first))
    assert sum(each.counts.unchanged_count for each in saved) == sum(each.counts.chunk_count for each in saved) == 4
    assert sum(each.counts.stored_bytes for each in saved) == 0
    assert read(repo, commit) == STATE


def test_a_rank_without_memory_stores_against_what_was_resumed(repo: Repository) -> None:
    """In another layout than the ordinary save had that it comes after."""
    save(repo, LARGE)
    start = save(repo, {**LARGE, "even": drifted(LARGE["even"], 0)}).commit
    state = {**LARGE, "even": drifted(LARGE["even"], 1)}
    commit, saved = save_together(repo, state, 2)
    require_whole(repo, {commit: state})
    counts = [each.counts for each in saved]
    assert (
        sum(each.known_count for each in counts) == sum(len(e.chunks) for n, e in entries_of(repo, start).items()) - 8
    )
    assert sum(each.delta_count for each in counts) > 4
    again, more = save_together(repo, {**state, "even": drifted(state["even"], 2)}, 2, last=memories(saved))
    assert sum(each.counts.delta_count for each in more) > 4
    assert fsck(repo, full=True).findings == []
    assert repo.commit(again).parents == (commit,)


def test_columns_are_stored_against_the_columns_before_them(repo: Repository) -> None:
    array = noise("wide", 256, 4096)

    def columns(rank: int, seed: int) -> list[RankItem]:
        data = b"".join(array.data[row * 16384 + rank * 8192 : row * 16384 + (rank + 1) * 8192] for row in range(256))
        part = drifted(replace(array, shape=(256, 2048), data=data), seed)
        box = box_of_rank((256, 2048), 0, 1)
        assert box is not None
        moved = BoxInput(box._replace(offsets=(0, 2048 * rank)), memoryview(part.data))
        return [RankItem("model", {"w": ShardsInput(0, "float32", (256, 4096), (moved,))})]

    deltas: list[int] = []
    last: list[RankMemory] | list[None] = [None, None]
    for seed in range(3):
        with repo.create_snapshot(request(repo), 2, ranks_remember=seed == 1) as snapshot:
            saved = [
                save_rank(repo.layout.root, snapshot.id, rank, columns(rank, seed), last=last[rank]) for rank in (0, 1)
            ]
            snapshot.finalize()
        deltas.append(sum(each.counts.delta_count for each in saved))
        last = memories(saved) if seed == 0 else [None, None]
    assert deltas[0] == 0
    assert deltas[1] == 8  # from memory
    assert deltas[2] > 4  # from the store; some chains restart
    assert fsck(repo, full=True).findings == []


def test_names_and_items_may_be_on_some_ranks_only(repo: Repository) -> None:
    with repo.create_snapshot(request(repo), 3) as snapshot:
        for rank in range(3):
            stage = [RankItem("model", {f"layer{rank}": shard(STATE["w"], 0, 1)})]
            extra = [RankItem("rng", {str(rank): ValueInput(rank, rank)})] if rank else []
            save_rank(repo.layout.root, snapshot.id, rank, stage + extra)
        commit = snapshot.finalize()
    assert set(read(repo, commit)) == {"layer0", "layer1", "layer2"}
    rng = dict(repo.tree(repo.commit(commit), "rng"))
    assert {name: repo.read_value(entry) for name, entry in rng.items() if isinstance(entry, ValueEntry)} == {
        "1": 1,
        "2": 2,
    }


def test_nothing_is_published_until_all_ranks_have_stored(repo: Repository) -> None:
    before = save(repo, STATE).commit
    with repo.create_snapshot(request(repo), 4) as snapshot:
        assert snapshot.missing_ranks() == [0, 1, 2, 3]
        for rank in (1, 3):
            save_rank(repo.layout.root, snapshot.id, rank, shards(STATE, rank, 4))
        with pytest.raises(PartsMissing) as missing:
            snapshot.finalize()
        assert missing.value.details["ranks"] == snapshot.missing_ranks() == [0, 2]
        assert repo.refs.read(branch_name("main")) == before
        for rank in (0, 2):
            save_rank(repo.layout.root, snapshot.id, rank, shards(STATE, rank, 4))
        commit = snapshot.finalize()
    require_whole(repo, {commit: STATE})


def test_a_hole_is_refused_and_may_be_mended(repo: Repository) -> None:
    with repo.create_snapshot(request(repo), 2) as snapshot:
        save_rank(repo.layout.root, snapshot.id, 0, shards(STATE, 0, 2))
        save_rank(
            repo.layout.root, snapshot.id, 1, [RankItem("model", {"w": shard(STATE["w"], 0, 4, 0)._replace(boxes=())})]
        )
        with pytest.raises(Incompatible, match=r"model::w: nobody has \[256:512, 0:600\]"):
            snapshot.finalize()
        assert repo.refs.read(branch_name("main")) is None
        save_rank(repo.layout.root, snapshot.id, 1, shards(STATE, 1, 2))
        assert read(repo, snapshot.finalize()) == STATE


def test_values_that_differ_between_ranks_are_refused_by_name(repo: Repository) -> None:
    with repo.create_snapshot(request(repo), 2) as snapshot:
        for rank in (0, 1):
            save_rank(repo.layout.root, snapshot.id, rank, shards(STATE, rank, 2, {"epoch": ValueInput(9, rank)}))
        with pytest.raises(Incompatible, match="model::epoch: rank 0 gives a value of its own, rank 1 gives"):
            snapshot.finalize()
    assert list(repo.layout.packs.iterdir()) == []


def test_an_input_that_does_not_fit_its_box_is_refused_before_anything_is_written(repo: Repository) -> None:
    with repo.create_snapshot(request(repo), 1) as snapshot:
        box = box_of_rank((4, 100), 0, 1)
        assert box is not None
        short = ShardsInput(0, "float32", (4, 100), (BoxInput(box, memoryview(bytes(1596))),))
        outside = short._replace(boxes=(BoxInput(box._replace(offsets=(1, 0)), memoryview(bytes(1600))),))
        unknown = short._replace(dtype="float33")
        two = [RankItem("model", {}), RankItem("model", {})]
        for items in (*([RankItem("model", {"w": each})] for each in (short, outside, unknown)), two):
            with pytest.raises(Incompatible):
                save_rank(repo.layout.root, snapshot.id, 0, items)
        with pytest.raises(Incompatible, match="no rank 1 among 1"):
            save_rank(repo.layout.root, snapshot.id, 1, [])
        assert snapshot.missing_ranks() == [0]
        assert list(repo.layout.packs.iterdir()) == []


def test_a_branch_that_moved_meanwhile_keeps_its_place(repo: Repository) -> None:
    with repo.create_snapshot(request(repo), 2) as snapshot:
        save_ranks(repo.layout.root, snapshot, STATE)
        other = save(repo, LARGE).commit
        with pytest.raises(Conflict) as conflict:
            snapshot.finalize()
        with pytest.raises(SnapshotGone):
            snapshot.finalize()
    assert repo.refs.read(branch_name("main")) == other
    kept = CommitId(ObjectId(bytes.fromhex(conflict.value.details["commit"])))
    assert repo.refs.read(branch_name(conflict.value.details["kept"])) == kept
    require_whole(repo, {kept: STATE, other: LARGE})
    require_tidy(repo)


def test_one_that_is_given_up_leaves_nothing(repo: Repository) -> None:
    before = save(repo, STATE).commit
    packs = set(repo.layout.packs.iterdir())
    with repo.create_snapshot(request(repo), 2) as snapshot:
        save_ranks(repo.layout.root, snapshot, LARGE)
        assert set(repo.layout.packs.iterdir()) > packs
    assert set(repo.layout.packs.iterdir()) == packs
    require_tidy(repo)
    for act in (snapshot.finalize, lambda: save_rank(repo.layout.root, snapshot.id, 0, [])):
        with pytest.raises(SnapshotGone):
            act()
    snapshot.abandon()
    require_whole(repo, {before: STATE})


def test_what_cannot_be_committed_is_refused_before_any_rank_is_told(repo: Repository) -> None:
    with pytest.raises(Incompatible):
        repo.create_snapshot(SaveRequest((), branch="a..b"), 2)
    with pytest.raises(Incompatible, match="at least one rank"):
        repo.create_snapshot(request(repo), 0)
    with pytest.raises(NotFound):
        repo.create_snapshot(SaveRequest((), branch="main", parent=CommitId(ObjectId(bytes(32)))), 2)
    assert not repo.layout.parts.exists()


def test_a_rank_needs_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound):
        save_rank(tmp_path, "5" * 32, 0, [])


def test_ranks_may_store_at_the_same_time(repo: Repository) -> None:
    with repo.create_snapshot(request(repo), 8) as snapshot:
        threads = [
            threading.Thread(target=save_rank, args=(repo.layout.root, snapshot.id, rank, shards(LARGE, rank, 8)))
            for rank in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        commit = snapshot.finalize()
    require_whole(repo, {commit: LARGE})


def test_a_tensor_that_a_rank_stores_alone_may_be_given_whole(repo: Repository) -> None:
    array = LARGE["bf16"]
    given = TensorInput(0, array.dtype, array.shape, memoryview(array.data))
    with repo.create_snapshot(request(repo), 2) as snapshot:
        save_rank(repo.layout.root, snapshot.id, 0, [])
        save_rank(repo.layout.root, snapshot.id, 1, [RankItem("model", {"w": given})])
        commit = snapshot.finalize()
    assert read(repo, commit) == {"w": array}
