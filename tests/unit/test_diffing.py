"""What differs between two commits: what needs no look, how far the rest has changed, and values by path."""

import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moonclip.state.tensors import DTYPE_NAMES
from store.comparing import CommitDiff, ItemDiff, Measures, diff, measuring, segments
from store.comparing.values import value_changes
from store.errors import Corrupt, Pruned
from store.format.dtypes import dtype
from store.format.entries import Piece, TensorEntry
from store.format.numerals import numeral
from store.format.values import Plain, Tagged
from store.ids import CommitId
from store.limits import DIFF_CHILDREN_COUNT, DIFF_NUMBERS_COUNT, MAX_CHUNK_BYTES, MIB
from store.naming.refnames import branch_name
from store.repository import Repository
from store.saving.inputs import Input, ItemInput, StoredInput, TensorInput, ValueInput
from store.upkeep.absences import Absence, Why
from tests.stores import commit, damage, history, item, noise, tensor

TORCH = {name: dtype for dtype, name in DTYPE_NAMES.items()}
COUNT = 1000
NUMERIC = sorted(name for name in DTYPE_NAMES.values() if numeral(name) is not None)
OPAQUE = sorted(name for name in DTYPE_NAMES.values() if numeral(name) is None)


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "checkpoints", thread_count=1) as repo:
        yield repo


def saved(repo: Repository, entries: dict[str, Input], ties: tuple[tuple[str, ...], ...] = ()) -> CommitId:
    return commit(repo, items=[ItemInput("model", entries, ties)])


def only(found: CommitDiff, name: str = "model") -> ItemDiff:
    return next(each for each in found.items if each.name == name)


def measures_of(repo: Repository, before: Input, after: Input) -> Measures:
    found = only(diff(repo, saved(repo, {"w": before}), saved(repo, {"w": after})))
    (changed,) = found.tensors
    assert changed.status == "changed"
    assert changed.measures is not None
    return changed.measures


def of_array(array: np.ndarray[Any, Any], name: str | None = None) -> TensorInput:
    return tensor(array.tobytes(), name or array.dtype.name, array.shape)


def wide(name: str, data: bytes) -> Any:
    """Elements in more than float64 where that takes."""
    found = torch.frombuffer(bytearray(data), dtype=TORCH[name])
    if found.is_complex():
        return torch.view_as_real(found.to(torch.complex128)).numpy().astype(np.longdouble)
    if name in ("uint64", "int64"):
        return np.frombuffer(data, name).astype(np.longdouble).reshape(-1, 1)
    return found.to(torch.float64).numpy().astype(np.longdouble).reshape(-1, 1)


def expected(name: str, before: bytes, after: bytes) -> Measures:
    """The same by the book."""
    width = dtype(name).item_bytes
    one, other = wide(name, before), wide(name, after)
    changed = sum(before[at : at + width] != after[at : at + width] for at in range(0, len(before), width))
    left, right = np.isfinite(one).all(axis=1), np.isfinite(other).all(axis=1)
    one, other = one[left & right], other[left & right]
    size = np.sqrt((one**2).sum())
    return Measures(
        element_count=len(left),
        changed_count=changed,
        relative_l2=pytest.approx(float(np.sqrt(((other - one) ** 2).sum()) / size), rel=1e-12),  # type: ignore[arg-type]
        max_abs=pytest.approx(float(np.sqrt(((other - one) ** 2).sum(axis=1)).max()), rel=1e-12),  # type: ignore[arg-type]
        cosine=pytest.approx(float((one * other).sum() / size / np.sqrt((other**2).sum())), abs=1e-12),  # type: ignore[arg-type]
        nonfinite_before=int((~left).sum()),
        nonfinite_after=int((~right).sum()),
    )


# --- numbers --------------------------------------------------------------------------------------------------------


def test_numbers_are_those_of_numpy_for_each_dtype(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "ARITHMETIC_ELEMENTS", 300)
    before = {name: noise(name, COUNT * dtype(name).item_bytes) for name in NUMERIC}
    before["bool"] = bytes(byte & 1 for byte in before["bool"])
    after = {name: bytearray(data) for name, data in before.items()}
    for name, data in after.items():
        for at in range(0, len(data) // 2, dtype(name).item_bytes):  # half of the elements, by their lowest bit
            data[at] ^= 1
    found = all_measures(repo, before, after)
    for name in NUMERIC:
        with np.errstate(invalid="ignore"):  # random bits hold signalling NaN
            assert found[name] == expected(name, before[name], bytes(after[name])), name
        assert found[name].changed_count == COUNT // 2


def test_bytes_that_are_no_numbers_are_counted(repo: Repository) -> None:
    before, after = ({name: noise((name, n), COUNT * dtype(name).item_bytes) for name in OPAQUE} for n in range(2))
    found = all_measures(repo, before, after)
    for name in OPAQUE:
        width = dtype(name).item_bytes
        changed = sum(
            before[name][at : at + width] != after[name][at : at + width] for at in range(0, COUNT * width, width)
        )
        assert found[name] == Measures(COUNT, changed, None, None, None), name


def all_measures(
    repo: Repository, before: Mapping[str, bytes], after: Mapping[str, bytes | bytearray]
) -> dict[str, Measures]:
    """Tensors of each dtype, by its name."""
    ends = [
        saved(repo, {name: tensor(bytes(data), name, (COUNT,)) for name, data in side.items()})
        for side in (before, after)
    ]
    return {each.name: each.measures for each in only(diff(repo, *ends)).tensors if each.measures is not None}


def test_norms_are_of_whole_tensors_though_most_chunks_are_the_same(repo: Repository) -> None:
    before = np.random.default_rng(0).standard_normal(3 * MAX_CHUNK_BYTES // 4, np.float32)
    after = before.copy()
    after[-1000:] *= 1.5
    got = measures_of(repo, of_array(before), of_array(after))
    assert got.relative_l2 == pytest.approx(
        np.linalg.norm((after - before).astype(float)) / np.linalg.norm(before.astype(float)), rel=1e-12
    )
    assert (got.element_count, got.changed_count) == (len(before), 1000)
    assert got.cosine == pytest.approx(
        np.dot(before.astype(float), after) / np.linalg.norm(before.astype(float)) / np.linalg.norm(after.astype(float))
    )


def test_a_cast_is_measured_by_its_error(repo: Repository) -> None:
    before = torch.randn(MAX_CHUNK_BYTES // 2, generator=torch.Generator().manual_seed(0))  # two chunks, and one
    after = before.to(torch.bfloat16)
    got = measures_of(
        repo,
        of_array(before.numpy()),
        tensor(after.view(torch.int16).numpy().tobytes(), "bfloat16", tuple(before.shape)),
    )
    error = after.double() - before.double()
    assert got.relative_l2 == pytest.approx((error.norm() / before.double().norm()).item(), rel=1e-9)
    assert got.changed_count == int((error != 0).sum())


def test_another_shape_has_no_numbers_and_another_kind_only_a_count(repo: Repository) -> None:
    ones = np.ones(300, np.float32)
    before = {"shape": of_array(ones), "kind": of_array(ones)}
    after = {"shape": of_array(ones.reshape(3, 100)), "kind": of_array(ones.astype(np.complex64))}
    found = {each.name: each for each in only(diff(repo, saved(repo, before), saved(repo, after))).tensors}
    assert found["shape"].measures is None
    assert found["shape"].after is not None
    assert found["shape"].after.shape == (3, 100)
    assert found["kind"].measures == Measures(300, 300, None, None, None)


def test_what_is_not_finite_is_left_out_and_counted(repo: Repository) -> None:
    before = np.array([1, np.nan, 3, np.inf, -np.inf, 4], np.float32)
    after = np.array([1, 2, np.nan, np.inf, np.inf, 7], np.float32)
    got = measures_of(repo, of_array(before), of_array(after))
    assert (got.nonfinite_before, got.nonfinite_after, got.changed_count) == (3, 3, 4)
    assert (got.max_abs, got.relative_l2) == (3, pytest.approx(3 / np.sqrt(17)))
    nothing = measures_of(repo, of_array(np.full(3, np.nan)), of_array(np.full(3, np.inf)))
    assert nothing == Measures(3, 3, None, None, None, 3, 3)


def test_extremes(repo: Repository) -> None:
    zero, one = np.zeros(3), np.ones(3)
    assert measures_of(repo, of_array(zero), of_array(one)) == Measures(3, 3, np.inf, 1.0, None)
    assert measures_of(repo, of_array(zero), of_array(-zero)) == Measures(3, 3, 0.0, 0.0, None)
    for scale in (1e-300, 1e300):  # whose squares float64 cannot hold
        got = measures_of(repo, of_array(scale * one), of_array(-scale * one))
        assert (got.relative_l2, got.max_abs, got.cosine) == (pytest.approx(2), 2 * scale, pytest.approx(-1))
    large = np.array([2**62, 2**62 + 1])  # which are one float64
    assert measures_of(repo, of_array(large), of_array(large[::-1])).max_abs == 1


def test_without_numbers_nothing_is_read(tmp_path: Path) -> None:
    past = history(tmp_path / "checkpoints")
    damage(past.root, "fc.weight", "best")
    damage(past.root, "embed.weight", "main")  # the same in all commits
    with Repository.open(past.root) as repo:
        found = only(diff(repo, past.main[0], past.branched[0], measured=False))
        assert [each.measures for each in found.tensors] == [None, None]
        assert found.identical_tensor_count == 1
        with pytest.raises(Corrupt, match=r"^model::fc\.weight: chunk [0-9a-f]{64} is damaged"):
            diff(repo, past.main[0], past.branched[0])
        assert len(only(diff(repo, past.main[0], past.main[1])).tensors) == 2


def test_memory_is_bounded(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "DIFF_WINDOW_BYTES", 2 * MAX_CHUNK_BYTES)
    before = np.random.default_rng(0).random(12 * MAX_CHUNK_BYTES // 4, np.float32)
    ends = [saved(repo, {"w": of_array(array)}) for array in (before, before * np.float32(1.01))]
    del before
    tracemalloc.start()
    found = diff(repo, *ends)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert only(found).tensors[0].measures is not None
    assert peak_bytes < 36 * MIB  # two tensors of 48


# --- what is there --------------------------------------------------------------------------------------------------


def test_added_removed_changed_identical(repo: Repository) -> None:
    same, gone, old, new = (tensor(noise(seed, 1024), "float32", (256,)) for seed in "abcd")
    before = saved(repo, {"same": same, "gone": gone, "other": old})
    after = saved(repo, {"same": same, "other": new, "new": new, "small": tensor(b"12")})
    found = only(diff(repo, before, after))
    assert [(each.name, each.status) for each in found.tensors] == [
        ("gone", "removed"),
        ("new", "added"),
        ("other", "changed"),
        ("small", "added"),
    ]
    assert (found.status, found.identical_tensor_count) == ("changed", 1)
    by_name = {each.name: each.stored_bytes for each in found.tensors}
    place = repo.index.places(entry_of(repo, after, "new").chunks[0])[0]
    assert by_name == {"gone": 0, "new": place.stored_bytes, "other": place.stored_bytes, "small": 2}
    assert found.stored_bytes == place.stored_bytes + 2  # the chunk of both once
    back = diff(repo, after, before)
    assert {(each.name, each.status) for each in only(back).tensors} >= {("gone", "added"), ("new", "removed")}
    assert diff(repo, after, after).stored_bytes == 0


def entry_of(repo: Repository, commit_id: CommitId, name: str) -> TensorEntry:
    entry = repo.tree(repo.commit(commit_id), "model")[name]
    assert isinstance(entry, TensorEntry)
    return entry


def test_chunks_that_another_item_holds_are_not_new(repo: Repository) -> None:
    weight = tensor(noise("w", 1024), "float32", (256,))
    before = commit(repo, items=[item("model", {"w": weight})])
    after = commit(repo, items=[item("model", {"w": weight}), item("ema", {"w": weight})])
    found = diff(repo, before, after)
    assert [(each.name, each.status) for each in found.items] == [("ema", "added"), ("model", "identical")]
    assert found.stored_bytes == 0


def halves(repo: Repository, data: bytes, at_row: int, rows: int) -> TensorEntry:
    """A tensor of float32[rows, 4] in two pieces, whose chunks are stored on a branch of their own."""
    cut = at_row * 16
    parts = {"0": tensor(data[:cut], "float32", (at_row, 4)), "1": tensor(data[cut:], "float32", (rows - at_row, 4))}
    stored = commit(repo, "parts", items=[ItemInput("model", parts)])
    first, second = (entry_of(repo, stored, name) for name in "01")
    return TensorEntry(
        0,
        "float32",
        (rows, 4),
        pieces=(
            Piece((at_row, 0), (rows - at_row, 4), second.cuts, second.chunks),
            Piece((0, 0), (at_row, 4), first.cuts, first.chunks),
        ),
    )


def test_content_is_compared_not_cuts(repo: Repository) -> None:
    data = noise("w", 1600)
    other = bytearray(data)
    other[1599] ^= 1
    whole = saved(repo, {"w": tensor(data, "float32", (100, 4))})
    cut = saved(repo, {"w": StoredInput(halves(repo, data, 30, 100))})
    cut_otherwise = saved(repo, {"w": StoredInput(halves(repo, data, 70, 100))})
    changed = saved(repo, {"w": StoredInput(halves(repo, bytes(other), 70, 100))})
    for ends in ((whole, cut), (cut, cut_otherwise), (cut_otherwise, whole)):
        found = only(diff(repo, *ends))
        assert (found.status, found.is_same_tree, found.identical_tensor_count) == ("identical", False, 1)
    for start in (whole, cut, cut_otherwise):
        (tensor_diff,) = only(diff(repo, start, changed)).tensors
        assert tensor_diff.measures is not None
        assert tensor_diff.measures.changed_count == 1


def test_empty_tensors_and_scalars(repo: Repository) -> None:
    before = saved(repo, {"none": tensor(b"", "float32", (0, 3)), "one": tensor(b"\x00\x3c", "float16", ())})
    after = saved(repo, {"none": tensor(b"", "float16", (0, 3)), "one": tensor(b"\x00\x40", "float16", ())})
    none, one = only(diff(repo, before, after)).tensors
    assert none.measures == Measures(0, 0, None, None, None)
    assert one.measures == Measures(1, 1, 1.0, 1.0, 1.0)


def test_a_tensor_in_place_of_a_value(repo: Repository) -> None:
    found = only(diff(repo, saved(repo, {"x": ValueInput(0, 1)}), saved(repo, {"x": tensor(b"1")})))
    assert [each.status for each in found.tensors] == ["added"]
    assert [(each.status, each.before) for each in found.values] == [("removed", 1)]


def test_names_of_one_tensor(repo: Repository) -> None:
    old, new = (tensor(noise(seed, 1024), "float32", (256,)) for seed in "ab")
    tied = saved(repo, {"a": old, "b": old}, (("a", "b"),))
    moved = saved(repo, {"a": new, "b": new}, (("a", "b"),))
    loose = saved(repo, {"a": new, "b": new})
    found = only(diff(repo, tied, moved))
    assert found.tensors[0].measures == found.tensors[1].measures is not None
    assert found.stored_bytes == found.tensors[0].stored_bytes
    assert not found.ties_differ
    untied = only(diff(repo, moved, loose))
    assert (untied.ties_differ, untied.status, untied.tensors) == (True, "changed", ())


def test_only_what_is_wanted(repo: Repository) -> None:
    before, after = (commit(repo, step=step) for step in (1, 2))
    found = diff(repo, before, after, is_wanted=lambda item, name: name == "fc.bias")
    assert [(each.name, [tensor.name for tensor in each.tensors]) for each in found.items] == [("model", ["fc.bias"])]
    assert found.items[0].identical_tensor_count == 0


def test_many_names_over_several_leaves(repo: Repository) -> None:
    names = [f"layer{number}/{part}é" for number in range(700) for part in ("weight", "bias")]
    before = {name: tensor(noise(name, 300), "float32", (75,)) for name in names}
    after = before | {names[700]: tensor(noise("new", 300), "float32", (75,)), "zz": tensor(b"1")}
    del after[names[3]]
    found = only(diff(repo, saved(repo, before), saved(repo, after), measured=False))
    assert {(each.name, each.status) for each in found.tensors} == {
        (names[700], "changed"),
        ("zz", "added"),
        (names[3], "removed"),
    }
    assert found.identical_tensor_count == len(names) - 2


def test_an_item_that_was_pruned_says_so(repo: Repository) -> None:
    before, after = (commit(repo, step=step) for step in (1, 2))
    with repo.absences.adding() as add:
        add([Absence.of(before, "optimizer", Why.PRUNED, 1)])
    with pytest.raises(Pruned):
        repo.tree(repo.commit(before), "optimizer")
    for ends in ((before, after), (after, before)):
        found = diff(repo, *ends)
        pruned = only(found, "optimizer")
        assert pruned.status == "absent"
        assert "pruned" in pruned.absent
        assert only(found).tensors


def test_commits_that_are_the_same(repo: Repository) -> None:
    only_one = commit(repo, step=1)
    found = diff(repo, only_one, only_one)
    assert found.header == ()
    assert {each.status for each in found.items} == {"identical"}
    assert all(each.is_same_tree for each in found.items)


# --- values ---------------------------------------------------------------------------------------------------------


def changes(before: Plain, after: Plain) -> list[tuple[Any, ...]]:
    return [(each.keys, each.status, each.before, each.after) for each in value_changes("v", before, after)]


def test_values_by_path() -> None:
    before = [{"lr": 0.1, "betas": (0.9, 0.99)}, {"lr": 0.1, "old": 1}]
    after = [{"lr": 0.1, "betas": (0.9, 0.95)}, {"lr": 0.2, "new": None}, {"lr": 1}]
    assert changes(before, after) == [
        ((0, "betas", 1), "changed", 0.99, 0.95),
        ((1, "lr"), "changed", 0.1, 0.2),
        ((1, "old"), "removed", 1, None),
        ((1, "new"), "added", None, None),
        ((2,), "added", None, {"lr": 1}),
    ]


def test_values_are_compared_bit_for_bit() -> None:
    nan = float("nan")
    for same in (nan, [nan], {nan: 1}, {1, 2}, Tagged("a", [nan])):
        assert changes(same, same) == []
    for before, after in ((0.0, -0.0), (1, True), (1, 1.0), ([1], (1,)), ("a", b"a"), ({1}, frozenset({1}))):
        assert changes(before, after) == [((), "changed", before, after)]
    assert changes({1: "x"}, {True: "x"}) == [((1,), "removed", "x", None), ((True,), "added", None, "x")]


def test_tagged_values_are_looked_into() -> None:
    def ordered(value: int, info: Plain = None, tag: str = "OrderedDict") -> Tagged:
        return Tagged(tag, (info, {"a": value}))

    assert changes(ordered(1), ordered(2)) == [(("a",), "changed", 1, 2)]
    for before, after in (
        (ordered(1), ordered(2, 3)),
        (ordered(1), ordered(1, tag="Counter")),
        (Tagged("torch.Size", (1, 2)), Tagged("torch.Size", (1, 3))),
        (Tagged("t", 1), Tagged("t", 2)),
    ):
        assert changes(before, after) == [((), "changed", before, after)]


def test_another_order_of_keys_is_one_difference() -> None:
    before, after = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    assert changes({"x": before}, {"x": after}) == [(("x",), "changed", before, after)]


def test_a_permutation_is_one_difference_and_groups_are_not() -> None:
    numbers = list(range(DIFF_NUMBERS_COUNT + 1))
    assert changes(numbers, numbers[::-1]) == [((), "changed", numbers, numbers[::-1])]
    assert len(changes(numbers[1:], numbers[:0:-1])) == DIFF_NUMBERS_COUNT
    groups = [{"lr": number} for number in range(DIFF_CHILDREN_COUNT)]
    assert changes(groups, [*groups[:-1], {"lr": -1}]) == [
        ((DIFF_CHILDREN_COUNT - 1, "lr"), "changed", DIFF_CHILDREN_COUNT - 1, -1)
    ]
    assert len(changes([*groups, {}], [*groups, {"lr": 0}])[0][0]) == 0


def test_large_values_are_read(repo: Repository) -> None:
    text = "".join(map(str, range(20_000)))
    before, after = (saved(repo, {"v": ValueInput(0, {"text": text, "n": n})}) for n in (1, 2))
    found = only(diff(repo, before, after))
    assert [(each.name, each.keys, each.before, each.after) for each in found.values] == [("v", ("n",), 1, 2)]
    assert found.stored_bytes > 0
    assert only(diff(repo, before, before)).identical_value_count == 1


def test_the_head_of_a_commit(repo: Repository) -> None:
    before = commit(repo, step=1, metadata={"loss": 2.0, "run": "a"}, message="one")
    repo.set_ref(branch_name("other"), None, before, "branch")
    after = commit(repo, "other", step=2, metadata={"loss": 1.0, "run": "a"}, message="one")
    found = diff(repo, before, after)
    assert [(each.name, each.keys, each.before, each.after) for each in found.header] == [
        ("step", (), 1, 2),
        ("branch", (), "main", "other"),
        ("metadata", ("loss",), 2.0, 1.0),
    ]
