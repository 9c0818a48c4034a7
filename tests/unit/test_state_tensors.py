"""Tensors of every dtype, stride and kind keep their bits."""

from typing import Any

import pytest
import torch

from moonclip.state.entries import FlatTensor
from moonclip.state.flattening import flatten
from moonclip.state.tensors import DTYPE_NAMES, TensorSource, tensor_from
from store.errors import Incompatible
from tests.state_trip import bytes_of, loaded, stored, trip

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions"),
    pytest.mark.filterwarnings("ignore:Sparse CS[RC] tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:Sparse BS[RC] tensor support is in beta"),
]

ALL_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
QUANTIZED = [torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4]


def source_of(tensor: object) -> TensorSource:
    entry = flatten(tensor).entries[""]
    assert isinstance(entry, FlatTensor)
    return entry.source


def bits(dtype: torch.dtype, count: int) -> bytes:
    """Bytes that are not all alike, and valid where the dtype cares (a bool)."""
    raw = bytes((7 * index + 3) % 256 for index in range(count * dtype.itemsize))
    return bytes(byte & 1 for byte in raw) if dtype is torch.bool else raw


@pytest.mark.parametrize("dtype", [dtype for dtype in ALL_DTYPES if dtype not in QUANTIZED], ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (6, 4)], ids=str)
def test_a8_every_dtype_of_the_installed_torch_comes_back_bit_for_bit(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    raw = bits(dtype, torch.Size(shape).numel())
    tensor = tensor_from(DTYPE_NAMES[dtype], shape, bytearray(raw))
    back = trip(tensor)
    assert back.dtype == dtype and back.shape == shape
    assert bytes_of(source_of(back)) == raw


@pytest.mark.parametrize("dtype", [dtype for dtype in ALL_DTYPES if dtype not in QUANTIZED], ids=str)
def test_a8_every_dtype_is_read_through_strides(dtype: torch.dtype) -> None:
    raw, width = bits(dtype, 6), dtype.itemsize
    transposed = tensor_from(DTYPE_NAMES[dtype], (2, 3), bytearray(raw)).t()
    elements = [raw[at * width : (at + 1) * width] for at in (0, 3, 1, 4, 2, 5)]
    assert bytes_of(source_of(transposed)) == b"".join(elements)


@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.qint32], ids=str)
def test_a8_quantized_per_tensor(dtype: torch.dtype) -> None:
    tensor = torch.quantize_per_tensor(torch.linspace(-3, 3, 24).view(4, 6), 0.05, 3, dtype)
    for view in (tensor, tensor.t(), tensor[1:, 2:]):
        back = trip({"w": view})["w"]
        assert back.dtype == dtype and back.q_scale() == 0.05 and back.q_zero_point() == 3
        assert torch.equal(back.int_repr(), view.int_repr())


@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.qint32], ids=str)
def test_a8_quantized_per_channel(dtype: torch.dtype) -> None:
    scales, zeros = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64), torch.tensor([1, 0, 2])
    tensor = torch.quantize_per_channel(torch.randn(4, 3), scales, zeros, 1, dtype)
    back = trip(tensor)
    assert back.qscheme() == torch.per_channel_affine and back.q_per_channel_axis() == 1
    assert torch.equal(back.q_per_channel_scales(), scales) and torch.equal(back.int_repr(), tensor.int_repr())


@pytest.mark.parametrize("dtype", [torch.quint4x2, torch.quint2x4], ids=str)
def test_a9_packed_quantized_tensors_of_odd_sizes(dtype: torch.dtype) -> None:
    scales, zeros = torch.rand(3) + 0.1, torch.rand(3)
    tensor = torch.quantize_per_channel(torch.randn(3, 7), scales, zeros, 0, dtype)
    back = trip(tensor)
    assert back.shape == (3, 7) and back.dtype == dtype
    assert bytes(back.untyped_storage()) == bytes(tensor.untyped_storage())
    assert torch.equal(back.dequantize(), tensor.dequantize())


def test_a9_packed_floats_keep_their_packed_shape_and_bytes() -> None:
    packed = torch.arange(12, dtype=torch.uint8).view(3, 4).view(torch.float4_e2m1fn_x2)
    back = trip(packed)
    assert back.dtype == torch.float4_e2m1fn_x2 and torch.equal(back.view(torch.uint8), packed.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a10_all_bit_patterns_of_half_floats(dtype: torch.dtype) -> None:
    words = torch.arange(65536, dtype=torch.int32).to(torch.uint16)
    for layout in (words, words.view(256, 256).t()):
        back = trip(layout.view(dtype))
        assert torch.equal(back.view(torch.uint16), layout.contiguous())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128], ids=str)
def test_a10_signalling_nans_and_negative_zeros(dtype: torch.dtype) -> None:
    words = torch.tensor([0x7F800001, 0xFFBFFFFF, 0x80000000, 1] * 8, dtype=torch.uint32)
    if dtype.itemsize // (1 + dtype.is_complex) == 8:
        words = torch.tensor([0x7FF0000000000001, 0xFFF7FFFFFFFFFFFF, 1 << 63, 1] * 8, dtype=torch.uint64)
    tensor = words.view(4, -1).view(dtype).t()
    assert torch.equal(trip(tensor).view(torch.uint8), tensor.contiguous().view(torch.uint8))


def test_a1_a_slice_stores_its_own_bytes_only() -> None:
    big = torch.arange(100_000)
    assert source_of(big[:10]).size_bytes == 80
    assert torch.equal(trip(big[5:15]), big[5:15])


def test_a1_overlapping_views_come_back_by_value_and_apart() -> None:
    whole = torch.arange(10)
    flat = flatten({"head": whole[:6], "tail": whole[4:], "whole": whole})
    assert flat.ties == ()
    back = trip({"head": whole[:6], "tail": whole[4:]})
    back["head"][5] = -1
    assert torch.equal(back["tail"], whole[4:])


def test_a2_tied_names_share_a_source_and_are_listed() -> None:
    weight = torch.nn.Parameter(torch.randn(4, 3))
    flat = flatten({"embed": {"weight": weight}, "other": torch.ones(3), "lm_head": weight.data})
    assert flat.ties == (("embed/weight", "lm_head"),)
    assert flat.entries["embed/weight"].source is flat.entries["lm_head"].source  # type: ignore[union-attr]
    back = loaded(stored(flat), flat.ties)
    assert back["lm_head"] is back["embed"]["weight"]
    assert loaded(stored(flat))["lm_head"] is not back["embed"]["weight"]


def test_a2_equal_values_another_shape_or_a_pending_conjugation_are_no_tie() -> None:
    tensor = torch.randn(4, 4, dtype=torch.complex64)
    alike = {"a": tensor, "equal": tensor.clone(), "t": tensor.t(), "flat": tensor.view(-1), "conj": tensor.conj()}
    assert flatten(alike).ties == ()
    assert flatten({"a": tensor.conj(), "b": tensor.conj()}).ties == (("a", "b"),)


def test_a3_a_tied_name_loaded_without_its_partner_resolves() -> None:
    shared = torch.randn(3)
    flat = flatten({"encoder": {"embed": shared}, "decoder": {"embed": shared}})
    kept = {name: entry for name, entry in stored(flat).items() if not name.startswith("encoder")}
    assert torch.equal(loaded(kept, flat.ties)["decoder"]["embed"], shared)


def views() -> dict[str, torch.Tensor]:
    base = torch.randn(2, 3, 4, 5)
    return {
        "transposed": base.transpose(1, 3),
        "expanded": torch.randn(3, 1).expand(3, 4),
        "channels_last": base.to(memory_format=torch.channels_last),
        "flipped": base.flip(0, 2),
        "sliced": base[:, ::2, 1:, ::3],
        "strided": torch.as_strided(base, (3, 3), (1, 1)),
        "conjugated": torch.randn(3, 3, dtype=torch.complex64).conj(),
        "negated": torch.randn(3, 3, dtype=torch.complex64).conj().imag,
        "scalar": torch.tensor(3.5),
        "shared": _shared_tensor(),
        "leaf": torch.randn(3, requires_grad=True),
        "computed": torch.randn(3, requires_grad=True) * 2,
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
        "inference": _inference_tensor(),
    }


def _shared_tensor() -> torch.Tensor:
    tensor = torch.randn(3)
    tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor


def _inference_tensor() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(3)


@pytest.mark.parametrize("name", list(views()))
def test_a5_any_view_is_stored_in_c_order(name: str) -> None:
    tensor = views()[name]
    back = trip(tensor)
    assert torch.equal(back, tensor) and back.is_contiguous() and type(back) is torch.Tensor
    dense = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    assert bytes_of(source_of(tensor)) == bytes_of(source_of(dense))


class ArrayLike:
    """Shape, dtype and values, but no strides: what other libraries' tensors look like."""

    def __init__(self, values: list[int]) -> None:
        self.shape = (len(values),)
        self.dtype = "int64"
        self._values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        import numpy as np

        return np.array(self._values, dtype or self.dtype)


class DlpackLike:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tensor.shape
        self._tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


def test_a6_array_likes_are_stored_contiguous() -> None:
    assert trip({"x": ArrayLike([1, 2, 3])})["x"].tolist() == [1, 2, 3]
    assert trip(DlpackLike(torch.arange(6).view(2, 3).t())).tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a6_an_array_like_that_cannot_be_read_is_named() -> None:
    broken = ArrayLike([1])
    broken.dtype = "no such dtype"
    with pytest.raises(Incompatible, match=r"state: 'a/x': .*ArrayLike cannot be read"):
        flatten({"a": {"x": broken}})


def coo(coalesced: bool) -> torch.Tensor:
    indices = torch.tensor([[0, 1, 1], [2, 0, 0]])
    tensor = torch.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0, 3.0]), (2, 3), check_invariants=True)
    return tensor.coalesce() if coalesced else tensor


@pytest.mark.parametrize("coalesced", [True, False])
def test_a11_sparse_coo_keeps_its_flag(coalesced: bool) -> None:
    tensor = coo(coalesced)
    back = trip({"x": tensor})["x"]
    assert back.is_coalesced() is coalesced
    assert torch.equal(back._indices(), tensor._indices()) and torch.equal(back._values(), tensor._values())
    assert back.shape == tensor.shape


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc], ids=str)
def test_a11_compressed_sparse(layout: torch.layout) -> None:
    dense = torch.tensor([[1.0, 0, 2, 0], [0, 0, 0, 3]])
    blocks = (1, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    tensor = dense.to_sparse(layout=layout, blocksize=blocks)
    back = trip(tensor)
    assert back.layout == layout and torch.equal(back.to_dense(), dense)


def test_a11_an_invalid_sparse_tensor_fails_at_save() -> None:
    indices = torch.tensor([[0, 5], [0, 0]])
    broken = torch.sparse_coo_tensor(indices, torch.ones(2), (2, 2), check_invariants=False)
    with pytest.raises(Incompatible, match=r"'layer/w': an invalid sparse tensor"):
        flatten({"layer": {"w": broken}})
    crow, column = torch.tensor([0, 3, 1]), torch.tensor([0, 1, 0])
    csr = torch.sparse_csr_tensor(crow, column, torch.ones(3), (2, 2), check_invariants=False)
    with pytest.raises(Incompatible, match="an invalid sparse tensor"):
        flatten(csr)


def refused() -> dict[str, tuple[torch.Tensor, str]]:
    freed = torch.ones(4)
    freed_view = freed[1:]
    freed.untyped_storage().resize_(0)
    lazy = torch.nn.LazyLinear(3).weight
    return {
        "meta": (torch.ones(2, device="meta"), "meta device"),
        "freed": (freed, "storage was freed"),
        "freed view": (freed_view, "storage was freed"),
        "lazy": (lazy, "no shape yet"),
        "nested": (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested tensor"),
        "mkldnn": (torch.ones(2).to_mkldnn(), "to_dense"),
        "no quantizer": (torch.empty(2, dtype=torch.qint8), "without a quantizer"),
    }


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature", "ignore:The PyTorch API of nested tensors")
def test_tensors_without_values_of_their_own_are_refused_by_path() -> None:
    for tensor, reason in refused().values():
        with pytest.raises(Incompatible, match=rf"model: 'a/0': .*{reason}"):
            flatten({"a": [tensor]}, item="model")


def test_default_device_does_not_matter() -> None:
    with torch.device("meta"):
        back = trip([torch.ones(3, device="cpu"), torch.ones(0, device="cpu")])
    assert back[0].device.type == "cpu" and torch.equal(back[0], torch.ones(3)) and back[1].device.type == "cpu"


@pytest.mark.slow
def test_a18_more_than_two_gib_are_copied_whole() -> None:
    tensor = torch.zeros(2**31 + 1, dtype=torch.uint8)
    tensor[-1], tensor[2**31 - 1] = 7, 5
    out = bytearray(2**31 + 1)
    source_of(tensor).copy_into(memoryview(out))
    assert out[-1] == 7 and out[2**31 - 1] == 5 and not any(out[:1000])


def test_a20_twenty_thousand_tensors_make_one_entry_each() -> None:
    flat = flatten({f"layer.{index}": torch.zeros(2) for index in range(20_000)})
    assert len(flat.entries) == 20_001 and flat.ties == ()
