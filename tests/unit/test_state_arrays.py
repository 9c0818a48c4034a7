"""NumPy arrays come back as arrays, and share chunks with tensors."""

from typing import Any

import numpy as np
import pytest
import torch

from moonclip.state.flattening import FlatTensor, flatten
from store.errors import Incompatible
from tests.state_trip import trip

ARRAYS = [
    np.arange(6, dtype=np.int16).reshape(2, 3),
    np.arange(6, dtype=np.uint64)[::-2],
    np.array(3.5),
    np.zeros((0, 3), np.float32),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array([True, False]),
    np.array([1 + 2j], np.complex64),
    np.array([1.5, -2], ">f4"),
    np.array(["a", "bcd"]),
    np.array([b"a\x00", b"bcd"]),
    np.array(["2024-01-02"], "M8[D]"),
    np.array([1, -2], "m8[ns]"),
    np.array([(1, 2.0), (3, 4.0)], [("i", "<i2"), ("f", ">f8")]),
    np.array([1, 2], np.longdouble),
    np.array([], "<U0"),
]


@pytest.mark.parametrize("array", ARRAYS, ids=repr)
def test_a13_arrays_come_back_as_arrays(array: Any) -> None:
    back = trip({"x": array})["x"]
    assert type(back) is np.ndarray and back.dtype == array.dtype and back.shape == array.shape
    assert back.tobytes() == array.tobytes()


def test_a13_numeric_arrays_are_tensor_entries_and_tie() -> None:
    array = np.arange(4, dtype=np.float32)
    flat = flatten({"x": array, "y": array, "t": torch.from_numpy(array)})
    data = flat.entries["x/data"]
    assert isinstance(data, FlatTensor) and data.source.dtype == "float32"
    assert flat.ties == (("x/data", "y/data", "t"),)


def test_a13_a_read_only_array_is_taken_without_a_warning() -> None:
    array = np.arange(4)
    array.flags.writeable = False
    assert trip(array).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "array",
    [np.array([None, 1]), np.ma.masked_array(np.arange(2), np.array([False, True])), np.array([(None,)], "O,")],
    ids=repr,
)
def test_arrays_that_would_lose_something_are_refused(array: Any) -> None:
    with pytest.raises(Incompatible, match=r"state: 'x': an? "):
        flatten({"x": array})
