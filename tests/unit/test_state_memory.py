"""Tensors over buffers, and writing into tensors that are there already."""

import gc

import pytest
import torch

from moonclip.state.flattening import FlatTensor, flatten
from moonclip.state.tensors import dtype_name, fill, mark_written, tensor_from, torch_dtype, writable_bytes
from store.errors import Incompatible


def test_a_writable_buffer_is_the_tensors_memory() -> None:
    buffer = bytearray(12)
    tensor = tensor_from("int32", (3,), buffer)
    buffer[4] = 9
    assert tensor.tolist() == [0, 9, 0]
    tensor[0] = 1
    assert buffer[0] == 1


def test_a_read_only_buffer_is_copied() -> None:
    tensor = tensor_from("uint8", (2,), b"\x01\x02")
    tensor[0] = 5
    assert tensor.tolist() == [5, 2]


def test_the_buffer_has_to_fit() -> None:
    with pytest.raises(Incompatible, match="5 bytes are no float32 tensor"):
        tensor_from("float32", (1,), bytearray(5))
    with pytest.raises(Incompatible, match="has no dtype 'float9'"):
        torch_dtype("float9")
    with pytest.raises(Incompatible, match="quint8 has no stored form"):
        dtype_name(torch.quint8)


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(()), torch.zeros(2, 3, requires_grad=True), torch.zeros(3, dtype=torch.bool),
     torch.zeros(4)[1:3], torch.zeros(2, dtype=torch.complex128), torch.zeros(2, 1, 3).transpose(0, 1),
     torch.zeros(5, dtype=torch.bfloat16)],
    ids=repr,
)  # fmt: skip
def test_writable_bytes_are_the_tensors_memory(tensor: torch.Tensor) -> None:
    view = writable_bytes(tensor)
    assert view is not None and view.format == "B" and view.nbytes == tensor.nbytes and not view.readonly
    view[0] = 1
    assert tensor.detach().contiguous().view(-1).view(torch.uint8)[0] == 1


def test_writable_bytes_outlive_the_tensor() -> None:
    tensor = torch.full((1000,), 7, dtype=torch.uint8)
    view = writable_bytes(tensor)
    del tensor
    gc.collect()
    assert view is not None and bytes(view) == b"\x07" * 1000


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(2, 3).t(), torch.zeros(0), torch.zeros(1).expand(3), torch.zeros(2, dtype=torch.complex64).conj(),
     torch.zeros(2, device="meta"), torch.eye(2).to_sparse()],
    ids=repr,
)  # fmt: skip
def test_memory_in_another_order_is_not_offered(tensor: torch.Tensor) -> None:
    assert writable_bytes(tensor) is None


def test_autograd_learns_of_bytes_written() -> None:
    weight = torch.ones(2, requires_grad=True)
    product = (weight * weight).sum()
    mark_written(weight)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(product)
    with torch.inference_mode():
        mark_written(torch.ones(1))


def test_autograd_learns_of_a_fill() -> None:
    weight = torch.ones(2, requires_grad=True)
    product = (weight * weight).sum()
    fill(weight, torch.zeros(2))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(product)
    assert weight.tolist() == [0, 0] and weight.requires_grad


def test_fill_reaches_any_view() -> None:
    base = torch.zeros(4, 6)
    loaded = torch.arange(6.0).view(3, 2)
    fill(base[::2, 1::2].t(), loaded)
    assert torch.equal(base[::2, 1::2].t(), loaded) and base.count_nonzero() == 5
    memory = torch.zeros(2, dtype=torch.complex64)
    fill(memory.conj(), torch.tensor([1j, 2]))
    assert memory.tolist() == [-1j, 2]
    int4 = torch_dtype("int4")
    packed = torch.zeros(2, 2, dtype=torch.uint8).view(int4)
    fill(packed.t(), torch.arange(4, dtype=torch.uint8).view(2, 2).view(int4))
    assert packed.view(torch.uint8).tolist() == [[0, 2], [1, 3]]


def test_fill_refuses_what_does_not_fit() -> None:
    with pytest.raises(Incompatible, match=r"torch.float32 \(2,\) cannot take one of torch.float32 \(3,\)"):
        fill(torch.zeros(2), torch.zeros(3))
    with pytest.raises(Incompatible, match="cannot take"):
        fill(torch.zeros(2), torch.zeros(2, dtype=torch.int32))
    with pytest.raises(Incompatible, match="in place"):
        fill(torch.zeros(1).expand(2), torch.zeros(2))


def test_sources_alias_the_callers_memory_until_they_are_copied() -> None:
    tensor = torch.zeros(3)
    entry = flatten({"t": tensor}).entries["t"]
    assert isinstance(entry, FlatTensor) and entry.source.tensor.data_ptr() == tensor.data_ptr()
    out = bytearray(12)
    entry.source.copy_into(memoryview(out))
    tensor.fill_(-1)
    assert bytes(out) == bytes(12) and entry.source.address == tensor.data_ptr()
    with pytest.raises(Incompatible, match="11 bytes of room for a tensor of 12"):
        entry.source.copy_into(memoryview(out)[1:])


def test_a_slice_of_a_larger_buffer_takes_the_copy() -> None:
    arena = memoryview(bytearray(64))
    entry = flatten(torch.tensor([1, 2], dtype=torch.int64)).entries[""]
    assert isinstance(entry, FlatTensor)
    entry.source.copy_into(arena[8:24])
    assert arena.tobytes() == bytes(8) + (1).to_bytes(8, "little") + (2).to_bytes(8, "little") + bytes(40)
