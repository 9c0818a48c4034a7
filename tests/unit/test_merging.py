"""Merging commits by averaging their tensors."""

import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moonclip.state.tensors import DTYPE_NAMES
from store.comparing import merging
from store.comparing.merging import Merge, merge
from store.errors import Conflict, Corrupt, Incompatible, NotFound, Pruned, ReadOnly
from store.format.entries import TensorEntry, ValueEntry
from store.format.numerals import numeral
from store.fsck import fsck
from store.history import walks as lineage
from store.ids import CommitId
from store.limits import MAX_CHUNK_BYTES, MERGE_PROBLEMS_SHOWN, MIB
from store.naming.refnames import branch_name
from store.repository import Repository
from store.saving.inputs import ContainerInput, Input, ItemInput, MadeInput, TensorInput, ValueInput
from store.saving.saver import SaveRequest
from store.upkeep.absences import Absence, Why
from tests.arrays import depths
from tests.stores import commit, damage, history, noise, tensor

TORCH = {name: dtype for dtype, name in DTYPE_NAMES.items()}
COUNT = 1000


def has_average(name: str) -> bool:
    known = numeral(name)
    return known is not None and known.encode is not None


AVERAGED = sorted(filter(has_average, DTYPE_NAMES.values()))
EXACT = sorted(set(DTYPE_NAMES.values()) - set(AVERAGED))


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "checkpoints", thread_count=2) as repo:
        yield repo


def lines(repo: Repository, *states: Mapping[str, Input], ties: tuple[tuple[str, ...], ...] = ()) -> list[CommitId]:
    """A commit on a branch of its own (``0``, ``1``, …) for each state."""
    return [
        commit(repo, f"line{number}", items=[ItemInput("model", {"": ContainerInput(0, "dict"), **entries}, ties)])
        for number, entries in enumerate(states)
    ]


def tensors_of(repo: Repository, commit_id: CommitId) -> dict[str, bytes]:
    tree = repo.tree(repo.commit(commit_id), "model")
    return {name: bytes(repo.read_tensor(entry)) for name, entry in tree if isinstance(entry, TensorEntry)}


def of_array(array: np.ndarray[Any, Any]) -> TensorInput:
    return tensor(array.tobytes(), array.dtype.name, array.shape)


def random_numbers(name: str, seed: int) -> torch.Tensor:
    chance = torch.Generator().manual_seed(seed)
    kind = torch.complex128 if TORCH[name].is_complex else torch.float64
    return torch.randn(COUNT, generator=chance, dtype=kind).to(TORCH[name])


def raw(values: torch.Tensor) -> bytes:
    return values.contiguous().view(torch.uint8).numpy().tobytes()


# --- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("weights", [None, (0.5, 0.3, 0.2), (3, 1, 4), (2.0, -0.5, 0.1)])
def test_averages_are_those_of_float64_rounded_once(
    repo: Repository, monkeypatch: pytest.MonkeyPatch, weights: Sequence[float] | None
) -> None:
    monkeypatch.setattr(merging, "ARITHMETIC_ELEMENTS", 300)
    sides = [{name: random_numbers(name, seed) for name in AVERAGED} for seed in range(3)]
    parents = lines(repo, *({name: tensor(raw(side[name]), name, (COUNT,)) for name in AVERAGED} for side in sides))
    got = tensors_of(repo, merge(repo, Merge(parents, "soup", weights)))
    shares = [weight / sum(weights or (1, 1, 1)) for weight in weights or (1, 1, 1)]
    for name in AVERAGED:
        kind = torch.complex128 if TORCH[name].is_complex else torch.float64
        total = sum(share * side[name].to(kind) for share, side in zip(shares, sides, strict=True))
        assert isinstance(total, torch.Tensor)
        known = numeral(name)
        assert known is not None
        assert known.encode is not None
        numbers = torch.view_as_real(total) if kind.is_complex else total
        assert got[name] == known.encode(numbers.numpy()).tobytes(), name
        if name in np.sctypeDict:  # of the others, tests of numerals tell
            assert got[name] == total.numpy().astype(name).tobytes(), name


def test_an_average_may_be_of_many_chunks_and_is_a_delta_against_the_first(repo: Repository) -> None:
    chance = np.random.default_rng(0)
    base = chance.standard_normal(MAX_CHUNK_BYTES // 4 * 2, np.float32)
    near = base + np.float32(1e-6) * chance.standard_normal(len(base), np.float32)
    parents = lines(repo, {"w": of_array(base)}, {"w": of_array(near)})
    merged = merge(repo, Merge(parents, "soup"))
    expected = (0.5 * base.astype(float) + 0.5 * near.astype(float)).astype(np.float32)
    assert tensors_of(repo, merged) == {"w": expected.tobytes()}
    assert set(depths(repo, merged)) == {1}
    assert fsck(repo, full=True).findings == []


def test_what_is_equal_everywhere_is_not_stored_again(repo: Repository) -> None:
    frozen = np.random.default_rng(0).standard_normal(MAX_CHUNK_BYTES // 4 * 2, np.float32)
    partly = frozen.copy()
    partly[:10] = 0
    nan = np.array([np.nan, 1.0] * 100)
    sides = [{"same": of_array(frozen), "partly": of_array(each), "nan": of_array(nan)} for each in (frozen, partly)]
    parents = lines(repo, *sides)
    merged = merge(repo, Merge(parents, "soup", (0.1, 0.7)))

    def chunks(commit_id: CommitId, name: str) -> tuple[bytes, ...]:
        entry = repo.tree(repo.commit(commit_id), "model")[name]
        assert isinstance(entry, TensorEntry)
        return entry.chunks

    for name in ("same", "nan"):
        assert chunks(merged, name) == chunks(parents[0], name)
    assert [
        one == other for one, other in zip(chunks(merged, "partly"), chunks(parents[0], "partly"), strict=True)
    ] == [
        False,
        *[True] * (len(chunks(merged, "partly")) - 1),
    ]


def test_float64_that_is_equal_stays_as_it_is(repo: Repository) -> None:
    left = np.random.default_rng(0).standard_normal(1000)
    right = left.copy()
    right[0] += 1
    parents = lines(repo, {"w": of_array(left)}, {"w": of_array(right)}, {"w": of_array(left)})
    got = np.frombuffer(tensors_of(repo, merge(repo, Merge(parents, "soup", (0.1, 0.2, 0.7))))["w"])
    assert got[1:].tolist() == left[1:].tolist()
    assert left[0] < got[0] < right[0]


def test_nan_and_infinities_come_out_as_arithmetic_has_them(repo: Repository) -> None:
    left = np.array([np.nan, np.inf, np.inf, 1, -np.inf], np.float16)
    right = np.array([1, np.inf, -np.inf, 3, 0], np.float16)
    signalling = np.array([0x7D01, 0, 0, 0, 0], np.uint16).view(np.float16)
    got = tensors_of(repo, merge(repo, Merge(lines(repo, {"w": of_array(left)}, {"w": of_array(right)}), "soup")))
    values = np.frombuffer(got["w"], np.float16)
    assert np.array_equal(values, np.array([np.nan, np.inf, np.nan, 2, -np.inf], np.float16), equal_nan=True)
    repo.set_ref(branch_name("more"), None, repo.resolve("line1"), "branch")
    third = commit(repo, "more", items=[ItemInput("model", {"": ContainerInput(0, "dict"), "w": of_array(signalling)})])
    assert merge(repo, Merge([third, repo.resolve("line1")], "more"))


def test_scalars_and_empty_tensors(repo: Repository) -> None:
    sides = [
        {"s": of_array(np.array(number, np.float32)), "none": of_array(np.zeros((0, 3), np.float32))}
        for number in (1, 4)
    ]
    got = tensors_of(repo, merge(repo, Merge(lines(repo, *sides), "soup")))
    assert got == {"s": np.float32(2.5).tobytes(), "none": b""}


def test_memory_is_bounded(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    count = 12 * MAX_CHUNK_BYTES // 4
    with Repository.init(tmp_path / "checkpoints", thread_count=1) as repo:
        parents = lines(repo, *({"w": of_array(chance.random(count, np.float32))} for _ in range(2)))
        tracemalloc.start()
        merge(repo, Merge(parents, "soup"))
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak_bytes < 32 * MIB  # two tensors of 48, and one that is made


# --- lineage --------------------------------------------------------------------------------------------------------


def test_the_commits_are_the_parents(tmp_path: Path) -> None:
    past = history(tmp_path / "checkpoints")
    tips = [past.main[-1], past.branched[-1]]
    with Repository.open(past.root) as repo:
        merged = merge(repo, Merge(tips, "main", (3, 1), message="soup"))
        commit_object = repo.commit(merged)
        assert commit_object.parents == tuple(tips)
        assert (commit_object.branch, commit_object.step, commit_object.message) == ("main", None, "soup")
        assert commit_object.metadata == {"average": [0.75, 0.25]}
        assert list(commit_object.items) == ["model"]
        assert repo.resolve("main") == merged
        assert repo.resolve("main^2") == past.branched[-1]
        assert {row.id for row in repo.log([merged])} == {merged, *past.main, *past.branched}
        assert [row.id for row in lineage.first_parents(repo.lookup, merged)] == [merged, *reversed(past.main)]
        later = commit(repo, step=400)
        assert repo.commit(later).parents == (merged,)
        assert fsck(repo, full=True).findings == []


def test_a_branch_that_does_not_exist_is_made(tmp_path: Path) -> None:
    past = history(tmp_path / "checkpoints")
    commits = [past.branched[0], past.main[3], past.main[0]]
    with Repository.open(past.root) as repo:
        merged = merge(repo, Merge(commits, "soup"))
        assert repo.commit(merged).parents == tuple(commits)
        assert repo.resolve("soup") == merged
        assert repo.resolve("main") == past.main[-1]


def test_a_branch_that_is_elsewhere_is_left_there(tmp_path: Path) -> None:
    past = history(tmp_path / "checkpoints")
    with Repository.open(past.root) as repo:
        with pytest.raises(Conflict, match="branch 'main' is at"):
            merge(repo, Merge([past.main[0], past.branched[0]], "main"))
        assert repo.resolve("main") == past.main[-1]
        assert list(repo.index.commits_since(1))[-1].id == past.main[-1]


def test_merged_commits_are_leased_while_the_merge_is_made(tmp_path: Path) -> None:
    past = history(tmp_path / "checkpoints")
    seen: list[str] = []
    with Repository.open(past.root) as repo:
        items = [ItemInput("x", {"w": _Watching(past.root, seen).input()})]
        repo.save(SaveRequest(items, "soup", merged=(past.main[0], past.branched[0])))
    assert {past.main[0].hex(), past.branched[0].hex()} <= set(seen)


class _Watching:
    """Bytes that note, as they are made, what leases name."""

    def __init__(self, root: Path, seen: list[str]) -> None:
        self._root = root
        self._seen = seen

    def input(self) -> Input:
        return MadeInput(0, "uint8", (1000,), self.make)

    def make(self, start: int, stop: int) -> memoryview:
        for path in (self._root / "writers").iterdir():
            self._seen += [line.split()[1] for line in path.read_text().splitlines() if line.startswith("commit ")]
        return memoryview(bytes(stop - start))


# --- what cannot be merged ------------------------------------------------------------------------------------------


def refusal(repo: Repository, wanted: Merge) -> str:
    """What is said, with nothing written."""
    files = sorted(path for path in repo.layout.packs.rglob("*"))
    with pytest.raises(Incompatible) as refused:
        merge(repo, wanted)
    assert sorted(path for path in repo.layout.packs.rglob("*")) == files
    assert repo.refs.read(branch_name(wanted.branch)) is None
    return refused.value.message


def test_all_that_does_not_match_is_listed(repo: Repository) -> None:
    weight = np.ones((4, 100), np.float32)
    first = {
        "shape": of_array(weight),
        "dtype": of_array(weight),
        "gone": of_array(weight),
        "kind": of_array(weight),
        "config": ValueInput(0, 1),
    }
    second = {
        "shape": of_array(weight.T),
        "dtype": of_array(weight.astype(np.float16)),
        "new": of_array(weight),
        "kind": ValueInput(0, 1),
        "config": ValueInput(0, 2),
    }
    said = refusal(repo, Merge(lines(repo, first, second), "soup"))
    assert "model::shape is float32 [4, 100] in " in said
    assert ", float32 [100, 4] in " in said
    assert "model::dtype is float32 [4, 100] in " in said
    assert "model::gone is not in " in said
    assert "model::new is not in " in said
    assert "model::kind is float32 [4, 100] in " in said
    assert "model::config (a value) differs, and has no average" in said
    assert said.endswith("--take-first (take_first=True) takes the first commit's")


def test_a_long_list_is_cut_short(repo: Repository) -> None:
    many = {f"w{number}": of_array(np.ones(3)) for number in range(MERGE_PROBLEMS_SHOWN + 5)}
    said = refusal(repo, Merge(lines(repo, many, {}), "soup"))
    assert said.count("is not in") == MERGE_PROBLEMS_SHOWN
    assert said.endswith("and 5 more")


@pytest.mark.parametrize("size", [8, 1000])  # inline and in chunks
def test_what_has_no_average_has_to_be_equal_or_is_the_first_ones(repo: Repository, size: int) -> None:
    def state(seed: int) -> dict[str, Input]:
        integers = {name: tensor(noise((name, seed), size * TORCH[name].itemsize), name, (size,)) for name in EXACT}
        return {**integers, "config": ValueInput(0, {"seed": seed, "long": "x" * 20 * size}), "equal": ValueInput(0, 1)}

    parents = lines(repo, state(1), state(2))
    with pytest.raises(Incompatible) as refused:
        merge(repo, Merge(parents, "soup"))
    problems = refused.value.details["problems"]
    assert {problem.split()[0] for problem in problems} == {f"model::{name}" for name in (*EXACT, "config")}
    merged = merge(repo, Merge(parents, "soup", take_first=True))
    assert repo.commit(merged).items == repo.commit(parents[0]).items
    same = merge(repo, Merge([*lines(repo, state(1)), parents[0]], "other"))
    assert repo.commit(same).items == repo.commit(parents[0]).items


def test_ties_have_to_agree(repo: Repository) -> None:
    states = [{name: of_array(np.full(100, number)) for name in "ab"} for number in (1.0, 3.0)]
    tied = [
        commit(repo, f"tied{number}", items=[ItemInput("model", each, (("a", "b"),))])
        for number, each in enumerate(states)
    ]
    merged = merge(repo, Merge(tied, "soup"))
    assert repo.tree(repo.commit(merged), "model").ties == (("a", "b"),)
    (loose,) = [commit(repo, "loose", items=[ItemInput("model", states[1])])]
    assert "other names are one tensor in" in refusal(repo, Merge([tied[0], loose], "other"))


@pytest.mark.parametrize(
    "weights", [(1,), (1, 2, 3), (1, -1), (-1, -2), (float("nan"), 1), (float("inf"), 1), (1e308, 1e308)]
)
def test_weights_that_make_no_average(repo: Repository, weights: tuple[float, ...]) -> None:
    parents = lines(repo, {"w": of_array(np.ones(3))}, {"w": of_array(np.zeros(3))})
    assert "weights" in refusal(repo, Merge(parents, "soup", weights))


def test_one_commit_is_no_merge(repo: Repository) -> None:
    (only,) = lines(repo, {"w": of_array(np.ones(3))})
    for commits in ([], [only], [only, only]):
        assert "two commits or more" in refusal(repo, Merge(commits, "soup"))


def test_items_that_are_not_there(tmp_path: Path) -> None:
    past = history(tmp_path / "checkpoints")
    with Repository.open(past.root) as repo:
        commits = [past.main[2], past.branched[0]]
        with pytest.raises(NotFound, match="no item 'ema'"):
            merge(repo, Merge(commits, "soup", items=["ema"]))
        with repo.absences.adding() as add:
            add([Absence.of(past.main[2], None, Why.PRUNED, 1)])
        with pytest.raises(Pruned):
            merge(repo, Merge(commits, "soup"))
    with Repository.open(past.root, read_only=True) as repo, pytest.raises(ReadOnly):
        merge(repo, Merge(commits, "soup"))


def test_a_damaged_chunk_is_named_and_refs_stay(tmp_path: Path) -> None:
    past = history(tmp_path / "checkpoints")
    damage(past.root, "fc.weight", "exp/lr3")
    with Repository.open(past.root) as repo:
        with pytest.raises(Corrupt, match=r"^model::fc\.weight: chunk [0-9a-f]{64} is damaged"):
            merge(repo, Merge([past.main[0], past.branched[1]], "soup"))
        assert repo.refs.read(branch_name("soup")) is None
        assert repo.resolve("main") == past.main[-1]


def test_values_stay_values(repo: Repository) -> None:
    state = {"w": of_array(np.ones(100)), "step": ValueInput(1, 7)}
    merged = merge(repo, Merge(lines(repo, state, state | {"w": of_array(np.zeros(100))}), "soup"))
    entry = repo.tree(repo.commit(merged), "model")["step"]
    assert isinstance(entry, ValueEntry)
    assert repo.read_value(entry) == 7
    assert entry.position == 1
