"""Tensors that are stored in a narrower dtype: whatever is read of them is what torch's cast makes of it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.boxes import Box
from store.errors import Corrupt, Incompatible
from store.format import canonical
from store.format.casts import SCALED, STORED, exponents_of, has_row_scales, is_narrower, packed
from store.format.entries import Piece, TensorEntry, decode_entry, encode_entry
from store.format.entryforms import read_leaf
from store.format.objects import TreeNode
from store.ids import chunk_id
from store.limits import MAX_INLINE_BYTES
from store.naming.refnames import branch_name
from store.reading.boxes import contiguous, plan_box
from store.repository import Repository
from store.saving.bases import LastSave
from store.saving.inputs import ItemInput, TensorInput
from store.saving.saver import Saved, SaveRequest
from tests.arrays import damage

CASTS = [
    (dtype, stored)
    for dtype in ("float64", "float32", "float16", "bfloat16")
    for stored in sorted(STORED)
    if is_narrower(dtype, stored)
]
RELATIVE = {"float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3}
"""Half of the distance of two numbers of one exponent, in units of the lesser."""
LEAST = {"float8_e4m3fn": 2.0**-10, "float8_e5m2": 2.0**-17}
"""Half of the least number."""

SHAPES = st.one_of(
    st.lists(st.integers(1, 12), min_size=1, max_size=4).map(tuple),
    st.sampled_from([(300, 700), (5, 250_000), (1_100_000,), (3, 1, 500)]),
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    with Repository.init(tmp_path_factory.mktemp("made") / "store") as opened:
        yield opened


def numbers(dtype: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=drawn, dtype=torch.float64)
    sizes = torch.randint(-12, 8, shape, generator=drawn, dtype=torch.int32)
    return torch.ldexp(values, sizes).to(getattr(torch, dtype))


def raw_of(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def saved(repository: Repository, tensor: torch.Tensor, stored: str, *, by_row: bool = False) -> TensorEntry:
    return entry_of(repository, saved_after(repository, tensor, stored, None, by_row=by_row))


def read(repository: Repository, entry: TensorEntry) -> torch.Tensor:
    return torch.frombuffer(repository.read_tensor(entry), dtype=getattr(torch, entry.dtype)).view(entry.shape)


def cast_by_torch(tensor: torch.Tensor, entry: TensorEntry) -> torch.Tensor:
    stored = getattr(torch, entry.stored_dtype)
    if not entry.scale:
        return tensor.to(stored).to(tensor.dtype)
    exponents = torch.tensor(exponents_of(entry.scale), dtype=torch.int32)
    exponents = exponents.view(-1, *[1] * (tensor.dim() - 1))
    return torch.ldexp(torch.ldexp(tensor.double(), -exponents).to(stored).double(), exponents).to(tensor.dtype)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(CASTS), SHAPES, st.integers(0, 50), st.booleans(), st.data())
def test_what_is_read_is_what_the_cast_makes_of_it(
    repository: Repository, cast: tuple[str, str], shape: tuple[int, ...], seed: int, by_row: bool, data: st.DataObject
) -> None:
    dtype, stored = cast
    tensor = numbers(dtype, shape, seed)
    entry = saved(repository, tensor, stored, by_row=by_row)
    expected = cast_by_torch(tensor, entry)
    assert (entry.dtype, entry.stored, entry.shape) == (dtype, stored, shape)
    assert (entry.inline is not None) == (tensor.numel() * getattr(torch, stored).itemsize <= MAX_INLINE_BYTES)
    assert torch.equal(read(repository, entry), expected)

    start = data.draw(st.integers(0, shape[0]))
    stop = data.draw(st.integers(start, shape[0]))
    rows = torch.zeros_like(expected[start:stop])
    if rows.numel():
        repository.read_rows(entry, start, stop, memoryview(rows.view(-1).view(torch.uint8).numpy()))
    assert torch.equal(rows, expected[start:stop])

    box = data.draw(boxes(shape))
    part = torch.zeros(box.sizes, dtype=tensor.dtype)
    memory = memoryview(part.view(-1).view(torch.uint8).numpy())
    repository.read_copies(plan_box(entry, box, contiguous(box.sizes, tensor.itemsize, memory)))
    assert torch.equal(part, expected[tuple(slice(o, o + s) for o, s in zip(*box, strict=True))])


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    offsets = tuple(draw(st.integers(0, size - 1)) for size in shape)
    return Box(offsets, tuple(draw(st.integers(1, s - o)) for s, o in zip(shape, offsets, strict=True)))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([cast for cast in CASTS if cast[1] in SCALED]), SHAPES, st.integers(0, 50), st.booleans())
def test_the_error_of_one_byte_is_within_the_formats_bound(
    repository: Repository, cast: tuple[str, str], shape: tuple[int, ...], seed: int, by_row: bool
) -> None:
    tensor = numbers(cast[0], shape, seed)
    entry = saved(repository, tensor, cast[1], by_row=by_row)
    exponents = torch.tensor(exponents_of(entry.scale), dtype=torch.int32).view(-1, *[1] * (tensor.dim() - 1))
    assert exponents.numel() == (shape[0] if by_row and has_row_scales(shape) else 1)
    least = LEAST[cast[1]] * torch.pow(2.0, exponents.double())
    size = tensor.double().abs()
    error = (read(repository, entry).double() - tensor.double()).abs()
    on_the_way = size * 2.0**-23 if cast[0] == "float64" else 0.0  # it becomes a single first, as torch has it
    assert (error <= torch.maximum(size * RELATIVE[cast[1]], least) + on_the_way).all()


@pytest.mark.parametrize("stored", sorted(SCALED))
@pytest.mark.parametrize("seed", range(4))
def test_the_scale_is_the_least_that_keeps_all_within_reach(repository: Repository, stored: str, seed: int) -> None:
    largest = torch.finfo(getattr(torch, stored)).max
    for tensor in (numbers("float32", (900,), seed), torch.linspace(-1, largest * 2.0 ** (seed - 8), 900)):
        (exponent,) = exponents_of(saved(repository, tensor, stored).scale)
        assert tensor.abs().max().item() <= largest * 2.0**exponent < 2 * tensor.abs().max().item()


@pytest.mark.parametrize("stored", sorted(SCALED))
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), 2.0**127, -3e38])
def test_a_tensor_with_infinities_is_not_cast_to_one_byte(repository: Repository, stored: str, value: float) -> None:
    tensor = torch.ones(900)
    tensor[7] = value
    entry = saved(repository, tensor, stored)
    assert entry.stored is None
    assert torch.equal(read(repository, entry), tensor)


def test_nan_and_zeros_survive_every_cast(repository: Repository) -> None:
    for dtype, stored in CASTS:
        tensor = torch.tensor([float("nan"), 0.0, -0.0, 1.0] * 300, dtype=getattr(torch, dtype))
        found = read(repository, saved(repository, tensor, stored))
        assert torch.equal(found.isnan(), tensor.isnan())
        assert torch.equal(found.nan_to_num(2), tensor.nan_to_num(2))
        assert torch.equal(found[1:].signbit(), tensor[1:].signbit())


def test_zeros_and_the_least_numbers_have_a_scale(repository: Repository) -> None:
    for stored in sorted(SCALED):
        zeros, least = torch.zeros(900), torch.full((900,), 1e-44)
        assert torch.equal(read(repository, saved(repository, zeros, stored)), zeros)
        assert read(repository, saved(repository, least, stored)).abs().max() <= least[0]


def test_a_cast_to_what_is_no_narrower_float_is_refused(repository: Repository) -> None:
    for tensor, stored in [(torch.ones(9), "float64"), (torch.ones(9), "int8"), (torch.ones(9).int(), "bfloat16")]:
        with pytest.raises(Incompatible, match="cannot be stored as"):
            saved(repository, tensor, stored)


# --- saves in a row ---------------------------------------------------------------------------------------------------


def saved_after(
    repository: Repository, tensor: torch.Tensor, stored: str, last: LastSave | None, *, by_row: bool = False
) -> Saved:
    dtype = str(tensor.dtype).removeprefix("torch.")
    given = TensorInput(0, dtype, tuple(tensor.shape), memoryview(raw_of(tensor)), stored, by_row)
    parent = repository.refs.read(branch_name("main"))
    return repository.save(SaveRequest([ItemInput("model", {"": given})], branch="main", parent=parent, last=last))


def entry_of(repository: Repository, done: Saved) -> TensorEntry:
    entry = repository.tree(repository.commit(done.commit), "model")[""]
    assert isinstance(entry, TensorEntry)
    return entry


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("stored", ["bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("in_memory", [True, False])
def test_what_did_not_change_is_found_and_what_did_a_little_is_a_delta(
    tmp_path: Path, stored: str, in_memory: bool, by_row: bool
) -> None:
    tensor = numbers("float32", (300, 700), 4)
    tensor[:, 0] = 40000.0  # so that scales stay
    with Repository.init(tmp_path / "store") as repository:
        first = saved_after(repository, tensor, stored, None, by_row=by_row)
        tensor[150:, 1:] *= 0.97
        second = saved_after(repository, tensor, stored, first.last if in_memory else None, by_row=by_row)
        third = saved_after(repository, tensor, stored, second.last if in_memory else None, by_row=by_row)
        entry = entry_of(repository, second)
        assert second.counts.delta_count > 0
        assert third.counts.new_raw_bytes == 0
        assert third.counts.unchanged_count == (len(entry.chunks) if in_memory else 0)
        assert entry_of(repository, third) == entry
        assert torch.equal(read(repository, entry), cast_by_torch(tensor, entry))


def test_equal_elements_under_another_scale_are_not_taken_for_unchanged(repository: Repository) -> None:
    tensor = numbers("float32", (3, 300_000), 7)
    first = saved_after(repository, tensor, "float8_e4m3fn", None)
    tensor[2, -1] = 2.0 * tensor.abs().max()  # in the last chunk alone, and the scale is everybody's
    second = saved_after(repository, tensor, "float8_e4m3fn", first.last)
    entry = entry_of(repository, second)
    assert second.counts.unchanged_count == 0
    assert entry.scale != entry_of(repository, first).scale
    assert torch.equal(read(repository, entry), cast_by_torch(tensor, entry))


@pytest.mark.parametrize("stored", ["bfloat16", "float8_e5m2"])
def test_an_unchanged_chunk_of_which_no_copy_is_good_is_cast_again(tmp_path: Path, stored: str) -> None:
    tensor = numbers("float32", (300, 700), 3)
    with Repository.init(tmp_path / "store") as repository:
        first = saved_after(repository, tensor, stored, None)
        entry = entry_of(repository, first)
        damage(repository, entry.chunks[0])
        with pytest.raises(Corrupt):
            repository.read_tensor(entry)
        second = saved_after(repository, tensor, stored, first.last)
        assert second.counts.new_raw_bytes > 0
        assert torch.equal(read(repository, entry_of(repository, second)), cast_by_torch(tensor, entry))


def test_a_base_of_another_cast_is_none(repository: Repository) -> None:
    tensor, last = numbers("float32", (300, 700), 5), None
    for stored in ("bfloat16", "float16", "bfloat16"):
        done = saved_after(repository, tensor, stored, last)
        last = done.last
        assert done.counts.delta_count == 0
        assert torch.equal(read(repository, entry_of(repository, done)), tensor.to(getattr(torch, stored)).float())


# --- entries ----------------------------------------------------------------------------------------------------------


def cut_entry(stored: str | None = "bfloat16", scale: bytes = b"") -> TensorEntry:
    chunk = chunk_id(b"1")
    item_bytes = 4 if stored is None else getattr(torch, stored).itemsize
    return TensorEntry(
        3, "float32", (30, 20), (Piece((0, 0), (30, 20), (600 * item_bytes,), (chunk,)),), None, stored, scale
    )


ENTRIES = [
    cut_entry(),
    cut_entry("float8_e4m3fn", packed([-3])),
    cut_entry("float8_e5m2", packed(range(30))),
    TensorEntry(3, "float32", (2,), (), bytes(4), "bfloat16"),
    TensorEntry(3, "float64", (4,), (), bytes(4), "float8_e5m2", packed([100])),
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_comes_back_both_ways_of_reading(entry: TensorEntry) -> None:
    encoded = encode_entry("", entry)
    assert decode_entry(canonical.parse(encoded, "entry")[1], "entry") == entry
    others = [replace(entry, position=position) for position in (0, 24, 5)]
    node = TreeNode(tuple((str(number), each) for number, each in enumerate(others)))
    assert TreeNode.decode(node.encode()).entries == node.entries
    assert read_leaf(node.encode()) == (node.entries, ())


def test_forms_with_and_without_a_cast_are_told_apart() -> None:
    scales = [packed([-3]), packed([5])]
    entries = [cut_entry(None), cut_entry(), cut_entry("float16"), *(cut_entry("float8_e5m2", s) for s in scales)]
    node = TreeNode(tuple((str(number), entry) for number, entry in enumerate(entries)))
    assert read_leaf(node.encode()) == (node.entries, ())


@pytest.mark.parametrize(
    "entry",
    [
        cut_entry("float32"),
        cut_entry("bfloat16", packed([1])),
        cut_entry("float8_e5m2"),
        cut_entry("float8_e5m2", packed([1, 2])),
        cut_entry("float8_e5m2", packed([1]) + b"\0"),
        cut_entry("float8_e5m2", packed([-101])),
        cut_entry("float8_e5m2", packed([1017])),
        replace(cut_entry(), dtype="int64"),
        replace(cut_entry(None), stored="bfloat16"),
    ],
)
def test_a_cast_that_cannot_be_is_damage(entry: TensorEntry) -> None:
    with pytest.raises(Corrupt):
        decode_entry(canonical.parse(encode_entry("", entry), "entry")[1], "entry")
