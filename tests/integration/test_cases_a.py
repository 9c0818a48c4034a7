"""What a state can hold, through the manager and a real store on disk, read back by a manager that never saw it."""

import enum
import gc
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from moonclip import CheckpointManager, Incompatible, Unsafe
from moonclip.state.flattening import flatten
from moonclip.state.tensors import DTYPE_NAMES, TensorSource, tensor_from, writable_bytes
from store.fsck import fsck
from store.history.stats import collect
from store.repository import Repository

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions"),
    pytest.mark.filterwarnings("ignore:Sparse CS[RC] tensor support is in beta"),
]

DTYPES = sorted(DTYPE_NAMES, key=str)


class Color(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: torch.Tensor


def stored(root: Path, obj: object, step: int = 0) -> Any:
    """``obj``, saved by one manager and loaded by another."""
    with CheckpointManager(root) as mgr:
        mgr.save(step=step, it=obj)
    with CheckpointManager(root) as mgr:
        return mgr.load()["it"]


def tree_of(root: Path, revision: str) -> bytes:
    with Repository.open(root) as repository:
        return repository.commit(repository.resolve(revision)).items["it"]


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    def bits(tensor: torch.Tensor) -> bytes:
        source = next(entry.source for entry in flatten(tensor).entries.values() if hasattr(entry, "source"))
        assert isinstance(source, TensorSource)
        out = bytearray(source.size_bytes)
        source.copy_into(memoryview(out))
        return bytes(out)

    return one.dtype == other.dtype and one.shape == other.shape and bits(one) == bits(other)


def random_bits(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    raw = np.random.default_rng(seed).bytes(torch.Size(shape).numel() * dtype.itemsize)
    if dtype is torch.bool:
        raw = bytes(byte & 1 for byte in raw)
    return tensor_from(DTYPE_NAMES[dtype], shape, bytearray(raw))


def touched(tensor: torch.Tensor) -> torch.Tensor:
    """Some elements changed a little: what a delta is for."""
    for at in range(0, tensor.nbytes, 97):
        view = writable_bytes(tensor)
        assert view is not None
        view[at] ^= 1
    return tensor


def test_a8_every_dtype_is_bit_exact_inline_in_chunks_and_as_a_delta(tmp_path: Path) -> None:
    shapes = [(), (0, 3), (3,), (40, 50)]
    first = {f"{dtype}-{shape}": random_bits(dtype, shape, 1) for dtype in DTYPES for shape in shapes}
    second = {f"{dtype}-{shape}": touched(random_bits(dtype, shape, 1)) for dtype in DTYPES for shape in shapes}
    with CheckpointManager(tmp_path / "store") as mgr:
        for step, state in enumerate([first, second]):
            mgr.save(step=step, it=state).result()
    with CheckpointManager(tmp_path / "store") as mgr:
        for step, state in enumerate([first, second]):
            back = mgr.load(f"step:{step}")["it"]
            assert list(back) == list(state)
            assert [name for name in state if not same_bits(back[name], state[name])] == []
        assert mgr.fsck(full=True).clean


def test_a10_all_patterns_of_16_bits(tmp_path: Path) -> None:
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    state = {str(dtype): patterns.view(dtype).clone() for dtype in (torch.bfloat16, torch.float16)}
    back = stored(tmp_path / "store", state)
    assert all(same_bits(back[name], tensor) for name, tensor in state.items())
    shifted = {name: tensor.view(torch.int16).roll(1).view(tensor.dtype) for name, tensor in state.items()}
    back = stored(tmp_path / "store", shifted, step=1)
    assert all(same_bits(back[name], tensor) for name, tensor in shifted.items())


def test_a1_a_view_takes_its_own_bytes_and_overlapping_views_keep_their_values(tmp_path: Path) -> None:
    big = torch.arange(4_000_000, dtype=torch.float32)
    back = stored(tmp_path / "store", {"ten": big[:10], "left": big[100:300], "right": big[200:400]})
    assert torch.equal(back["ten"], big[:10])
    assert torch.equal(back["left"], big[100:300]) and torch.equal(back["right"], big[200:400])
    with Repository.open(tmp_path / "store") as repository:
        assert collect(repository).tensor_bytes == (10 + 200 + 200) * 4


def test_a5_the_tree_does_not_depend_on_strides(tmp_path: Path) -> None:
    image = torch.randn(2, 3, 16, 16)
    odd = image.to(memory_format=torch.channels_last)
    assert odd.stride() != image.stride()
    stored(tmp_path / "store", {"x": image, "t": image.transpose(1, 3).contiguous(), "e": torch.ones(300, 2)})
    back = stored(
        tmp_path / "store", {"x": odd, "t": image.transpose(1, 3), "e": torch.ones(1, 2).expand(300, 2)}, step=1
    )
    assert torch.equal(back["x"], image)
    assert tree_of(tmp_path / "store", "step:0") == tree_of(tmp_path / "store", "step:1")


def test_a6_an_array_like_without_strides_is_stored(tmp_path: Path) -> None:
    class ArrayLike:
        shape = (2, 250)

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return np.arange(500, dtype=np.float32).reshape(2, 250)[:, ::-1]

    back = stored(tmp_path / "store", {"x": ArrayLike()})
    assert np.array_equal(np.asarray(back["x"]), np.asarray(ArrayLike()))


def test_a11_sparse_tensors_keep_layout_and_flags(tmp_path: Path) -> None:
    indices, values = torch.tensor([[0, 1, 1], [2, 0, 0]]), torch.tensor([1.0, 2.0, 3.0])
    coo = torch.sparse_coo_tensor(indices, values, (2, 3), check_invariants=True)
    state = {"coo": coo, "coalesced": coo.coalesce(), "csr": coo.coalesce().to_sparse_csr()}
    back = stored(tmp_path / "store", state)
    assert not back["coo"].is_coalesced() and back["coalesced"].is_coalesced()
    assert back["csr"].layout == torch.sparse_csr
    assert all(torch.equal(back[name].to_dense(), tensor.to_dense()) for name, tensor in state.items())


def test_a11_an_invalid_sparse_tensor_fails_at_save(tmp_path: Path) -> None:
    bad = torch.sparse_coo_tensor(torch.tensor([[0, 9]]), torch.ones(2), (3,), check_invariants=False)
    with CheckpointManager(tmp_path / "store") as mgr, pytest.raises(Incompatible, match="x"):
        mgr.save(step=0, it={"x": bad})


def test_a13_a14_nested_state_is_a_fixed_point(tmp_path: Path) -> None:
    state = {
        "ints": {0: torch.ones(100), 1: {"step": torch.tensor(3.0)}, "0": "text key"},
        "containers": [OrderedDict(b=1, a=2), Counter("aab"), defaultdict(list, x=[1]), (1, (2,)), {3}, frozenset({4})],
        "empty": [[], {}, (), set(), {"deep": []}],
        "misc": [None, Color.RED, torch.Size([2]), torch.bfloat16, np.float32(1.5), np.arange(300), 2**100, -0.0],
        "point": Point(1, torch.zeros(2)),
        "a": {"b": torch.ones(1)},
        "a/b": torch.zeros(1),
        "a.b": 7,
    }
    back = stored(tmp_path / "store", state)
    assert list(back) == list(state)
    assert list(back["ints"]) == [0, 1, "0"]
    assert [type(thing) for thing in back["containers"]] == [type(thing) for thing in state["containers"]]
    assert back["containers"] == state["containers"] and back["empty"] == state["empty"]
    assert type(back["point"]) is Point and torch.equal(back["point"].y, torch.zeros(2))
    assert torch.equal(back["a"]["b"], torch.ones(1)) and torch.equal(back["a/b"], torch.zeros(1))
    stored(tmp_path / "store", back, step=1)
    assert tree_of(tmp_path / "store", "step:0") == tree_of(tmp_path / "store", "step:1")


def test_a14_a_list_that_grew_is_restored_at_its_length(tmp_path: Path) -> None:
    for step, count in enumerate([1, 12, 2]):
        back = stored(tmp_path / "store", {"losses": [0.5] * count, "rows": [torch.ones(99)] * count}, step=step)
        assert len(back["losses"]) == len(back["rows"]) == count


def test_a17_a_pickle_in_a_commit_is_never_run_unless_asked_for(tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    class Attack:
        def __reduce__(self) -> Any:
            return (Path.touch, (ran,))

    root = tmp_path / "store"
    with CheckpointManager(root, allow_pickle=True) as mgr:
        mgr.save(step=0, it={"x": Attack(), "w": torch.ones(3)})
    with CheckpointManager(root) as mgr:
        with pytest.raises(Unsafe, match="'x'"):
            mgr.load()
        assert torch.equal(mgr.load_tensors("it::w")["it::w"], torch.ones(3))
        assert len(list(mgr.log())) == 1 and mgr.describe().tensors
    with Repository.open(root) as repository:
        assert fsck(repository, full=True).clean
    assert not ran.exists()
    with CheckpointManager(root, allow_pickle=True) as mgr:
        mgr.load()
    assert ran.exists()


def test_a20_many_tiny_tensors_take_few_objects(tmp_path: Path) -> None:
    state = {f"layer.{number}.scale": torch.full((4,), float(number)) for number in range(20_000)}
    back = stored(tmp_path / "store", state)
    assert len(back) == 20_000
    assert torch.equal(back["layer.19999.scale"], state["layer.19999.scale"])
    with Repository.open(tmp_path / "store") as repository:
        stats = collect(repository)
    assert stats.chunk_count == 0
    assert stats.pack_bytes < 2_000_000


@pytest.mark.slow
def test_a18_a_tensor_of_two_gib_and_a_byte(tmp_path: Path) -> None:
    size = 2**31 + 1
    tensor = torch.zeros(size, dtype=torch.uint8)
    tensor[-1], tensor[2**31 - 1], tensor[12345] = 7, 8, 9
    with CheckpointManager(tmp_path / "store") as mgr:
        mgr.save(step=0, it=tensor).result()
    gc.collect()
    with Repository.open(tmp_path / "store") as repository:
        commit = repository.commit(repository.resolve("main"))
        entry = repository.tree(commit, "it")[""]
        out = bytearray(size)
        repository.read_tensors([(entry, memoryview(out))])  # type: ignore[list-item]
    assert (out[-1], out[2**31 - 1], out[12345]) == (7, 8, 9)
    assert sum(map(bool, (out[0], out[2**30], out[-3]))) == 0
    assert out.count(0) == size - 3
