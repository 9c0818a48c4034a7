"""Named arrays through the engine alone: saved, described, and read whole, by name, by rows and by boxes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, basic_indices

from moonclip import CheckpointManager
from store import Repository, StoredCommit
from store.disk.calls import Disk
from store.disk.files import Files
from store.engine.arrays import RawArray
from store.errors import Incompatible, NotFound, ReadOnly

DTYPES = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)


class Counting(Disk):
    """Counts the bytes that are read from packs."""

    def __init__(self) -> None:
        self.read_bytes = 0

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        self.read_bytes += size_bytes
        return super().pread(fd, size_bytes, offset)

    def pread_into(self, fd: int, out: memoryview, offset: int) -> int:
        self.read_bytes += len(out)
        return super().pread_into(fd, out, offset)


class Stubborn:
    """Offers itself as an array, and is none, as some tensors on devices are."""

    def __array__(self, *_: object, **__: object) -> None:
        raise TypeError("move it first")


def noise(*shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    size_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(np.random.default_rng(size_bytes).bytes(size_bytes), dtype).reshape(shape)


def same(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@pytest.fixture
def repo(tmp_path: Path) -> Any:
    with Repository.init(tmp_path / "store") as opened:
        yield opened


def saved(repo: Repository, arrays: dict[str, Any]) -> StoredCommit:
    return repo.at(repo.save_arrays({"model": arrays}).hex())


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_bit_for_bit(repo: Repository, dtype: str) -> None:
    whole = noise(300, 40, dtype="uint8").astype(bool) if dtype == "bool" else noise(300, 40, dtype=dtype)
    arrays = {
        "whole": whole,
        "columns": whole[:, ::3],
        "upside/down": whole[::-1],
        "turned": whole.T,
        "scalar": whole[0, 0],
        "none": whole[:0],
        "big-endian": whole.astype(whole.dtype.newbyteorder(">")),
    }
    read = saved(repo, arrays).read(verify_hash=True)
    assert read.keys() == {f"model::{name}" for name in arrays}
    for name, array in arrays.items():
        little = np.asarray(array).astype(whole.dtype)
        assert same(read[f"model::{name}"], little), name


def test_what_cannot_be_stored_is_refused_by_name(repo: Repository) -> None:
    for array in (np.array(["text"]), np.array([object()]), np.zeros(3, "M8[s]"), np.zeros(2, "i4,i4")):
        with pytest.raises(Incompatible, match="model::a/b: an array of"):
            repo.save_arrays({"model": {"a/b": array}})
    for name in ("", "/a", "a//b", "a/", 7):
        with pytest.raises(Incompatible, match="is no name"):
            repo.save_arrays({"model": {name: np.zeros(3)}})  # type: ignore[dict-item]
    for names in (("a", "a/b"), ("a/b", "a"), ("a/b/c", "a/b")):
        with pytest.raises(Incompatible, match="is no container"):
            repo.save_arrays({"model": dict.fromkeys(names, 1)})
    with pytest.raises(Incompatible, match=r"model::a: a .*Stubborn cannot be made an array"):
        repo.save_arrays({"model": {"a": Stubborn()}})
    with pytest.raises(Incompatible, match="100 bytes"):
        repo.save_arrays({"model": {"a": RawArray("float32", (3,), bytes(100))}})
    assert not repo.refs.list()


@pytest.mark.parametrize("shape", [(0, 1 << 63), (0, 10**30), (-1, -1), (2.0,)])
def test_a_shape_that_no_reader_would_take_is_not_written(repo: Repository, shape: Any) -> None:
    with pytest.raises(Incompatible, match=r"shape|not negative"):
        repo.save_arrays({"model": {"a": RawArray("int8", shape, bytes(1 if all(shape) else 0))}})
    assert not repo.refs.list()


def test_a_buffer_that_is_no_single_run_is_refused(repo: Repository) -> None:
    with pytest.raises(Incompatible, match="a buffer in C order"):
        repo.save_arrays({"model": {"a": RawArray("int8", (2,), memoryview(b"1234")[::2])}})


def test_b31_names_of_two_items_stay_apart(repo: Repository) -> None:
    for items in ({"a::b": {"c": 1}, "a": {"b::c": 2}}, {7: {"c": 1}}):
        with pytest.raises(Incompatible, match="is no name of an item"):
            repo.save_arrays(items)  # type: ignore[arg-type]


def test_a_dtype_that_numpy_lacks_is_stored_and_its_bytes_read(repo: Repository) -> None:
    data = noise(200, dtype="uint16").tobytes()
    commit = saved(repo, {"w": RawArray("bfloat16", (10, 20), memoryview(data))})
    stored = commit.arrays["model::w"]
    assert (stored.dtype, stored.shape, stored.size_bytes) == ("bfloat16", (10, 20), 400)
    assert repo.read_tensor(stored.entry) == data
    with pytest.raises(Incompatible, match="NumPy has no dtype bfloat16; install ml_dtypes"):
        commit.read()


@settings(max_examples=60)
@given(st.data())
def test_an_index_selects_what_it_selects_of_an_array(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    shape = data.draw(array_shapes(min_dims=0, max_dims=4, max_side=9))
    array = noise(*shape, dtype="int16")
    index = data.draw(basic_indices(shape, allow_newaxis=False).filter(_reads_forwards))
    with Repository.init(tmp_path_factory.mktemp("store")) as repo:
        stored = saved(repo, {"a": array}).arrays["model::a"]
        assert same(np.asarray(stored[index]), np.asarray(array[index]))
        assert same(np.asarray(stored), array)


def _reads_forwards(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return all((part.step or 1) > 0 for part in parts if isinstance(part, slice))


def test_an_index_that_selects_nothing_sensible_is_refused(repo: Repository) -> None:
    stored = saved(repo, {"a": noise(4, 5)}).arrays["model::a"]
    for wrong, error in (
        (4, IndexError),
        ((0, 0, 0), IndexError),
        (slice(None, None, -1), ValueError),
        (True, TypeError),
    ):
        with pytest.raises(error):
            stored[wrong]
    with pytest.raises(Incompatible, match=r"outside|inside"):
        stored.box((0, 3), (4, 3))
    with pytest.raises(ValueError, match="copy"):
        np.asarray(stored, copy=False)
    assert len(stored) == 4


def test_a15_a_description_reads_no_array_and_one_array_no_other(tmp_path: Path) -> None:
    big = noise(4, 1 << 20)
    with Repository.init(tmp_path / "store") as repo:
        repo.save_arrays({"model": {"big": big, "other": big[::-1], "small": noise(5)}}, metadata={"loss": 1.5}, step=7)
    disk = Counting()
    with Repository.open(tmp_path / "store", files=Files(disk)) as repo:
        commit = repo.at("main")
        told = {name: (array.dtype, array.shape, len(array.chunk_ids)) for name, array in commit.arrays.items()}
        assert told == {
            "model::big": ("float32", (4, 1 << 20), 4),
            "model::other": ("float32", (4, 1 << 20), 4),
            "model::small": ("float32", (5,), 0),
        }
        assert (commit.step, dict(commit.metadata)) == (7, {"loss": 1.5})
        assert 0 < commit.arrays["model::big"].stored_bytes <= big.nbytes + 1024
        assert disk.read_bytes < 100_000
        assert same(commit.arrays["model::big"][1:2], big[1:2])
        assert disk.read_bytes < big.nbytes // 4 + 200_000
        commit.read(["*::big"])
        assert disk.read_bytes < big.nbytes * 5 // 4 + 300_000


def test_equal_content_has_equal_ids_whatever_commit_it_is_in(repo: Repository) -> None:
    array = noise(300, 300)
    first, second = saved(repo, {"a": array}), saved(repo, {"b": array.copy(), "c": array[::-1]})
    assert first.arrays["model::a"].chunk_ids == second.arrays["model::b"].chunk_ids
    assert first.arrays["model::a"].chunk_ids != second.arrays["model::c"].chunk_ids


def test_arrays_are_read_into_memory_that_is_there(repo: Repository) -> None:
    array = noise(50, 60)
    commit = saved(repo, {"a": array, "b": array[::-1]})
    out = np.zeros_like(array)
    commit.read_into({"model::a": out})
    assert same(out, array)
    out[:] = 7
    frozen = np.zeros_like(array)
    frozen.flags.writeable = False
    for wrong in (np.zeros((60, 50), "f4"), np.zeros((50, 60), "f8"), np.zeros((60, 50), "f4").T, frozen):
        with pytest.raises(Incompatible, match="target"):
            commit.read_into({"model::b": out, "model::a": wrong})
    with pytest.raises(NotFound, match="has no array 'model::c'"):
        commit.read_into({"model::b": out, "model::c": out})
    assert (out == 7).all()


def test_names_and_globs_choose_what_is_read(repo: Repository) -> None:
    commit = repo.save_arrays({"model": {"a/x": noise(3), "a/y": noise(4), "b": noise(5), "lr": 0.1}, "step": 7})
    at = repo.at(commit.hex())
    assert at.read(["model::a/*"]).keys() == {"model::a/x", "model::a/y"}
    assert at.read(["model::b", "*x"]).keys() == {"model::a/x", "model::b"}
    assert at.values() == {"model::lr": 0.1, "step": 7}
    assert at.values(["step"]) == {"step": 7}
    with pytest.raises(NotFound, match=r"has no array 'nothing\*'; its items: model, step"):
        at.read(["nothing*"])


def test_the_surface_reads_what_the_engine_saved(repo: Repository) -> None:
    array = noise(30, 40)
    repo.save_arrays({"model": {"layers/first/w": array, "layers/first/lr": 0.5, "b": np.int64(3)}}, files={"f": b"1"})
    with CheckpointManager(repo.layout.root) as manager:
        loaded = manager.load("main")
        assert loaded["files"] == {"f": b"1"}
        assert loaded["model"]["layers"]["first"]["lr"] == 0.5
        assert same(loaded["model"]["layers"]["first"]["w"].numpy(), array)
        assert loaded["model"]["b"].item() == 3


def test_commits_follow_one_another_on_the_branch_that_is_named(repo: Repository) -> None:
    first = repo.save_arrays({"a": noise(3)}, step=1)
    second = repo.save_arrays({"a": noise(4)}, step=2, message="Second")
    other = repo.save_arrays({"a": noise(5)}, branch="exp", step=9)
    assert [row.id for row in repo.log([repo.resolve("main")])] == [second, first]
    assert repo.at("exp").commit.parents == ()
    assert repo.refs.list() == {"branches/main": second, "branches/exp": other}
    assert repo.at("main").commit.message == "Second"
    assert repo.at("main~1").step == 1


def test_numbers_of_numpy_are_numbers_in_metadata(repo: Repository) -> None:
    metadata = {"loss": np.float32(0.5), "count": np.array(3), "name": "x", "list": [1, 2.5]}
    kept = repo.at(repo.save_arrays({"a": noise(3)}, metadata=metadata).hex()).metadata
    assert list(kept.items()) == [("loss", 0.5), ("count", 3), ("name", "x"), ("list", [1, 2.5])]
    assert (type(kept["loss"]), type(kept["count"])) == (float, int)
    with pytest.raises(Incompatible, match="not a plain value"):
        repo.save_arrays({"a": noise(3)}, metadata={"all": noise(3)})


def test_a_store_that_cannot_be_written_says_so(repo: Repository) -> None:
    repo.save_arrays({"a": noise(3)})
    with Repository.open(repo.layout.root, read_only=True) as reader:
        assert same(reader.at("main").arrays["a"].read(), noise(3))
        with pytest.raises(ReadOnly):
            reader.save_arrays({"a": noise(3)})
        with pytest.raises(ReadOnly):
            reader.put_files({"f": b""})
