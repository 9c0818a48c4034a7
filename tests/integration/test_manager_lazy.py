"""Lazy tensors: the structure at once, bytes when they are asked for, and only of the rows that are."""

import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moonclip import CheckpointManager, Corrupt, Incompatible, LazyTensor, MoonclipError
from store.limits import MIB
from tests.stores import damage

ROWS = torch.arange(3000 * 512, dtype=torch.float32).reshape(3000, 512)  # 6 MB, eight chunks


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def mgr(root: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(root) as mgr:
        yield mgr


def state() -> dict[str, Any]:
    tied = torch.full((5, 5), 2.0, dtype=torch.bfloat16)
    return {
        "rows": ROWS,
        "nested": [{"embed": tied, "head": tied}, torch.tensor(7), torch.zeros(0, 3)],
        "array": np.arange(6.0),
        "sparse": torch.eye(3).to_sparse(),
        "step": 5,
    }


@pytest.fixture
def lazy(mgr: CheckpointManager) -> dict[str, Any]:
    mgr.save(model=state())
    loaded: dict[str, Any] = mgr.load(lazy=True)["model"]
    return loaded


def test_the_structure_is_the_same_and_tensors_are_unread(lazy: dict[str, Any]) -> None:
    assert list(lazy) == list(state())
    assert lazy["step"] == 5
    rows, (tied, scalar, empty) = lazy["rows"], lazy["nested"]
    assert all(type(leaf) is LazyTensor for leaf in (rows, tied["embed"], scalar, empty))
    assert (rows.shape, rows.dtype, rows.nbytes, rows.ndim, len(rows)) == (
        ROWS.shape,
        torch.float32,
        ROWS.nbytes,
        2,
        3000,
    )
    assert repr(rows) == "LazyTensor('model::rows', shape=[3000, 512], dtype=torch.float32)"
    assert tied["head"] is tied["embed"]


def test_all_of_a_tensor(lazy: dict[str, Any]) -> None:
    assert torch.equal(lazy["rows"].load(), ROWS)
    tied, scalar, empty = lazy["nested"]
    assert torch.equal(tied["embed"].load(), state()["nested"][0]["embed"])
    assert torch.equal(scalar.load(), torch.tensor(7))
    assert empty.load().shape == (0, 3)
    assert lazy["rows"].load() is not lazy["rows"].load()


def test_what_is_no_plain_tensor_is_read_at_once(lazy: dict[str, Any]) -> None:
    assert np.array_equal(lazy["array"], np.arange(6.0))
    assert torch.equal(lazy["sparse"].to_dense(), torch.eye(3))


@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        2999,
        np.int64(7),
        slice(None),
        slice(10, 20),
        slice(745, 755),
        slice(-3, None),
        slice(0, 3000, 700),
        slice(20, 10),
        slice(5000, 6000),
        (5, slice(3, 9)),
        (slice(3, 5), 7),
        (slice(3, 5), None, ...),
        (-2, -1),
    ],
)
def test_rows_are_what_indexing_the_tensor_gives(lazy: dict[str, Any], index: Any) -> None:
    found = lazy["rows"][index]
    assert found.shape == ROWS[index].shape
    assert torch.equal(found, ROWS[index])


def test_iterating_gives_rows(mgr: CheckpointManager) -> None:
    mgr.save(model={"w": ROWS[:4].clone()})
    assert torch.equal(torch.stack(list(mgr.load(lazy=True)["model"]["w"])), ROWS[:4])


def test_iterating_reads_many_rows_at_a_time(lazy: dict[str, Any]) -> None:
    rows = list(lazy["rows"])
    assert torch.equal(torch.stack(rows), ROWS)
    runs = {row.untyped_storage().data_ptr(): row.untyped_storage().nbytes() for row in rows}
    assert sorted(runs.values()) == [ROWS.nbytes - 4 * MIB, 4 * MIB]
    empty = lazy["nested"][2]
    assert list(empty) == []


def test_what_would_read_all_unseen_says_how_to_do_so(mgr: CheckpointManager, lazy: dict[str, Any]) -> None:
    rows, scalar = lazy["rows"], lazy["nested"][1]
    uses: list[Callable[[], object]] = [lambda: 5.0 in rows, lambda: np.array(rows), lambda: np.asarray(rows, float)]
    for use in (*uses, lambda: iter(scalar)):
        with pytest.raises(TypeError, match=r"\.load\(\)"):
            use()
    with pytest.raises(Incompatible, match=r"\.load\(\)"):
        mgr.save(model=lazy)


def test_what_is_no_row_is_refused(lazy: dict[str, Any]) -> None:
    rows, scalar = lazy["rows"], lazy["nested"][1]
    for index, error in ((3000, IndexError), (-3001, IndexError), ("a", TypeError), (True, TypeError), ((), TypeError)):
        with pytest.raises(error):
            rows[index]
    with pytest.raises(ValueError, match="positive"):
        rows[::-1]
    with pytest.raises(IndexError, match="0-d"):
        scalar[0]
    with pytest.raises(TypeError, match="0-d"):
        len(scalar)


def test_rows_touch_only_the_chunks_that_hold_them(root: Path, mgr: CheckpointManager, lazy: dict[str, Any]) -> None:
    damage(root, "rows", "main", "model")  # its first chunk: rows 0 to 374
    assert torch.equal(lazy["rows"][1000:1010], ROWS[1000:1010])
    with pytest.raises(Corrupt):
        lazy["rows"][0]


def test_by_item_and_name(mgr: CheckpointManager) -> None:
    mgr.save(model={"a": torch.ones(100), "b": torch.zeros(100)}, other={"a": torch.ones(3)})
    loaded = mgr.load(items=["model"], names=["a"], lazy=True)
    assert list(loaded) == ["model"]
    assert list(loaded["model"]) == ["a"]


def test_lazy_and_targets_exclude_each_other(mgr: CheckpointManager) -> None:
    mgr.save(model={"a": torch.ones(100)})
    with pytest.raises(Incompatible, match="no targets"):
        mgr.load(into={"model": {}}, lazy=True)


def test_threads_may_share_one(lazy: dict[str, Any]) -> None:
    found: dict[int, torch.Tensor] = {}

    def read(number: int) -> None:
        found[number] = lazy["rows"][number * 100 : number * 100 + 50]

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(rows, ROWS[number * 100 : number * 100 + 50]) for number, rows in found.items())
    assert len(found) == 8


def test_a_later_save_changes_nothing(mgr: CheckpointManager, lazy: dict[str, Any]) -> None:
    mgr.save(model={"rows": ROWS + 1})
    mgr.flush()
    assert torch.equal(lazy["rows"][5], ROWS[5])


def test_one_keeps_the_store_open(root: Path) -> None:
    mgr = CheckpointManager(root)
    mgr.save(model={"rows": ROWS})
    rows = mgr.load(lazy=True)["model"]["rows"]
    del mgr
    gc.collect()
    assert torch.equal(rows[7], ROWS[7])
    rows._source.owner.close()


@pytest.mark.parametrize("is_read_before", [False, True])
def test_reading_after_the_manager_was_closed_says_so(root: Path, is_read_before: bool) -> None:
    with CheckpointManager(root) as mgr:
        mgr.save(model={"rows": ROWS})
        rows = mgr.load(lazy=True)["model"]["rows"]
        if is_read_before:
            rows.load()
    for read in (rows.load, lambda: rows[3]):
        with pytest.raises(MoonclipError, match=r"model::rows: the manager .* is closed"):
            read()
    assert rows.shape == (3000, 512)


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_reads_too(lazy: dict[str, Any]) -> None:
    assert torch.equal(lazy["rows"][1], ROWS[1])
    child = os.fork()
    if not child:
        os._exit(0 if lazy["rows"][1500].equal(ROWS[1500]) else 1)
    assert os.waitpid(child, 0)[1] == 0
