"""Composite tensors: sparse, quantized and subclassed ones, and arrays, as containers of plain tensors.

Each is one object whose children are its fields, and is built again from them.
"""

import sys
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final, TypeGuard, cast

import numpy as np
import torch

from store.errors import Corrupt, Incompatible

from ..sharding.placed import is_placed
from .arrays import build_array, foreign_tensor, split_array
from .classes import dotted, name_of, resolve
from .containers import Parts
from .policy import Policy
from .refusals import Refused
from .tensors import is_tensor_like

Fields = Mapping[str, Any]

_STRIDED: Final = torch.strided
PLAIN_CLASSES: Final = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
"""Tensors whose class adds nothing to them."""

_COMPRESSED: Final = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
_COMPRESSED_BY_NAME: Final = {str(layout).removeprefix("torch."): layout for layout in _COMPRESSED}
_QUANTIZED_BITS: Final = {torch.qint8: 8, torch.quint8: 8, torch.qint32: 32, torch.quint4x2: 4, torch.quint2x4: 2}
_QUANTIZED_BY_NAME: Final = {str(dtype).removeprefix("torch."): dtype for dtype in _QUANTIZED_BITS}


def taken_apart(obj: object) -> torch.Tensor | Parts | None:
    """A plain tensor as it is, a composite one or an array taken apart, ``None`` for anything else.

    A tensor loses what is not its content: that it requires gradients, is a parameter, or is of a subclass that adds
    neither tensors nor dispatch. In a target that is loaded into, all of these stay.

    Raises:
        Refused: a kind of tensor that cannot be kept; the reason says what to do instead.
    """
    if type(obj) in PLAIN_CLASSES or isinstance(obj, torch.Tensor):
        return _tensor(cast(torch.Tensor, obj))
    if isinstance(obj, np.ndarray):
        return split_array(obj)
    if is_tensor_like(obj):
        return foreign_tensor(obj)
    return None


def is_plainly_strided(obj: object) -> TypeGuard[torch.Tensor]:
    """Whether :func:`taken_apart` gives this tensor as it is: it does, of those that are nothing special."""
    if type(obj) not in PLAIN_CLASSES:
        return False
    tensor = cast("torch.Tensor", obj)
    return tensor.is_cpu and tensor.layout is _STRIDED and not tensor.is_nested and not tensor.is_quantized


def is_distributed(tensor: torch.Tensor) -> bool:
    """Whether this is a DTensor, or stands in for a tensor of which a person said where it lies.

    Nothing can be a DTensor unless that module, which takes long to load, was imported.
    """
    if type(tensor) in PLAIN_CLASSES:
        return False
    if is_placed(tensor):
        return True
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def build(kind: str, fields: Fields, info: Any, policy: Policy) -> object:
    """Inverse of :func:`taken_apart` for composites.

    Args:
        kind: as in ``Parts``; a key of ``BUILDERS``.
        fields: the loaded tensors; the result may alias them.
        info: as in ``Parts``.
        policy: whether a subclass may be imported.

    Raises:
        Refused: the fields do not make a valid tensor, or the class is not there.
    """
    try:
        return BUILDERS[kind](fields, info, policy)
    except Refused:
        raise
    except Exception as error:  # parts come from anywhere, and what torch and NumPy raise about them varies
        raise Refused(Corrupt, f"its parts make no valid {kind} ({error})") from error


def form(kind: str, info: Any) -> Any:
    """What of a composite's ``info`` a target has to agree with: its form, not its content."""
    try:
        return _FORMS[kind](info) if kind in _FORMS else info
    except (TypeError, LookupError):  # a damaged one: whatever is built from it says so
        return info


def _tensor(tensor: torch.Tensor) -> torch.Tensor | Parts:
    if type(tensor) not in PLAIN_CLASSES:
        return _subclassed(tensor)
    if tensor.is_nested:
        raise Refused(Incompatible, "a nested tensor cannot be kept; save its values and offsets")
    if tensor.is_meta:
        raise Refused(Incompatible, "a tensor on the meta device has no values; materialize it first")
    if tensor.is_quantized:
        return _split_quantized(tensor)
    if tensor.layout is torch.sparse_coo:
        return _split_coo(tensor.detach())
    if tensor.layout in _COMPRESSED:
        return _split_compressed(tensor.detach())
    if tensor.layout is not torch.strided:
        raise Refused(Incompatible, f"a tensor of layout {tensor.layout} cannot be kept; convert it with .to_dense()")
    return tensor


# --- subclasses -----------------------------------------------------------------------------------------------


def _subclassed(tensor: torch.Tensor) -> torch.Tensor | Parts:
    cls = type(tensor)
    text = dotted((cls.__module__, cls.__qualname__))
    if torch.nn.parameter.is_lazy(tensor):
        raise Refused(Incompatible, f"{text} has no shape yet; run the module once before it is saved")
    if is_distributed(tensor):
        return _all_here(tensor, text)
    if hasattr(cls, "__tensor_flatten__"):
        return _split_subclass(tensor)
    if cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise Refused(Incompatible, f"{text} is a tensor subclass without __tensor_flatten__; save its inner tensors")
    with torch._C.DisableTorchFunctionSubclass():
        return _tensor(tensor.as_subclass(torch.Tensor))


def _all_here(tensor: torch.Tensor, text: str) -> torch.Tensor:
    """A DTensor that this process has all of: one rank's own, or a copy."""
    from ..sharding.dtensors import shards_of  # loads torch.distributed.tensor, as whoever made this one has

    shards = shards_of(tensor)
    if shards.local.shape != tensor.shape:
        raise Refused(
            Incompatible,
            f'{text} is spread over ranks; save on all of them, world_size="auto", or gather it with .full_tensor()',
        )
    return shards.local


def _split_subclass(tensor: Any) -> Parts:
    names, context = tensor.__tensor_flatten__()
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    if not all(type(size) is int for size in (*shape, *stride)):
        raise Refused(Incompatible, f"{type(tensor).__name__} has sizes that are not numbers; save its inner tensors")
    fields = {name: getattr(tensor, name) for name in names}
    return Parts("subclass", fields, (name_of(type(tensor)), shape, stride, context))


def _build_subclass(fields: Fields, info: Any, policy: Policy) -> object:
    name, shape, stride, context = info
    cls: Any = resolve(name, torch.Tensor, policy)
    if not (hasattr(cls, "__tensor_flatten__") and hasattr(cls, "__tensor_unflatten__")):
        raise Refused(Incompatible, f"{dotted(name)} no longer has __tensor_flatten__ and __tensor_unflatten__")
    return cls.__tensor_unflatten__(dict(fields), context, torch.Size(shape), tuple(stride))


# --- sparse ---------------------------------------------------------------------------------------------------


def _split_coo(tensor: torch.Tensor) -> Parts:
    indices, values, coalesced = tensor._indices(), tensor._values(), tensor.is_coalesced()
    try:
        torch._validate_sparse_coo_tensor_args(indices, values, tensor.shape, coalesced)
    except RuntimeError as error:
        raise Refused(Incompatible, f"an invalid sparse tensor ({error})") from error
    return Parts("sparse_coo", {"indices": indices, "values": values}, (tuple(tensor.shape), coalesced))


def _build_coo(fields: Fields, info: Any, policy: Policy) -> object:
    shape, coalesced = info
    indices, values = fields["indices"], fields["values"]
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=coalesced, check_invariants=True)


def _split_compressed(tensor: torch.Tensor) -> Parts:
    compressed, plain = (getattr(tensor, name)() for name in _COMPRESSED[tensor.layout])
    values = tensor.values()
    try:
        torch._validate_sparse_compressed_tensor_args(compressed, plain, values, tensor.shape, tensor.layout)
    except RuntimeError as error:
        raise Refused(Incompatible, f"an invalid sparse tensor ({error})") from error
    fields = dict(zip((*_COMPRESSED[tensor.layout], "values"), (compressed, plain, values), strict=True))
    return Parts("sparse_compressed", fields, (str(tensor.layout).removeprefix("torch."), tuple(tensor.shape)))


def _build_compressed(fields: Fields, info: Any, policy: Policy) -> object:
    layout = _COMPRESSED_BY_NAME[info[0]]
    compressed, plain = (fields[name] for name in _COMPRESSED[layout])
    return torch.sparse_compressed_tensor(
        compressed, plain, fields["values"], info[1], layout=layout, check_invariants=True
    )


# --- quantized ------------------------------------------------------------------------------------------------


def _split_quantized(tensor: torch.Tensor) -> Parts:
    try:
        scheme = tensor.qscheme()
    except RuntimeError as error:
        raise Refused(Incompatible, f"a {tensor.dtype} tensor without a quantizer; give it a scale first") from error
    fields = {"words": _quantized_words(tensor)}
    info = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": tuple(tensor.shape)}
    if scheme is torch.per_tensor_affine:
        return Parts("quantized", fields, info | {"scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()})
    fields["scales"], fields["zero_points"] = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return Parts("quantized", fields, info | {"axis": tensor.q_per_channel_axis()})


def _quantized_words(tensor: torch.Tensor) -> torch.Tensor:
    """The stored integers, sharing the tensor's memory; packed ones as a run of bytes."""
    bits = _QUANTIZED_BITS[tensor.dtype]
    words = torch.empty(0, dtype=torch.int32 if bits == 32 else torch.uint8, device=tensor.device)
    storage = tensor.untyped_storage()
    if bits >= 8:
        return words.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    if not tensor.is_contiguous() or tensor.storage_offset():
        raise Refused(Incompatible, f"a view of a packed {tensor.dtype} tensor cannot be kept; clone it first")
    return words.set_(storage, 0, (_packed_bytes(tuple(tensor.shape), bits),), (1,))


def _packed_bytes(shape: tuple[int, ...], bits: int) -> int:
    """Bytes that torch gives a packed tensor: it rounds each row up."""
    return prod(shape[:-1]) * -(-shape[-1] * bits // 8) if shape else -(-bits // 8)


def _build_quantized(fields: Fields, info: Any, policy: Policy) -> object:
    shape, dtype = info["shape"], _QUANTIZED_BY_NAME[info["dtype"]]
    bits, loaded = _QUANTIZED_BITS[dtype], fields["words"]
    if _packed_bytes(shape, bits) != loaded.nbytes:  # before anything of that shape is allocated
        raise Refused(Corrupt, f"{loaded.nbytes} bytes are no {dtype} tensor of shape {shape}")
    if "axis" in info:
        made = torch._empty_per_channel_affine_quantized(
            shape, scales=fields["scales"], zero_points=fields["zero_points"], axis=info["axis"], dtype=dtype
        )
    else:
        made = torch._empty_affine_quantized(shape, scale=info["scale"], zero_point=info["zero_point"], dtype=dtype)
    _quantized_words(made).copy_(loaded)
    return made


BUILDERS: Final[dict[str, Callable[[Fields, Any, Policy], object]]] = {
    "ndarray": build_array,
    "quantized": _build_quantized,
    "sparse_compressed": _build_compressed,
    "sparse_coo": _build_coo,
    "subclass": _build_subclass,
}

_FORMS: Final[dict[str, Callable[[Any], Any]]] = {
    "quantized": lambda info: (info["dtype"], info["shape"], "per channel" if "axis" in info else "per tensor"),
    "sparse_coo": lambda info: info[0],
    "subclass": lambda info: (dotted(info[0]), info[1]),
}
"""Form of those whose ``info`` says more: scales, whether it is coalesced, strides and what a subclass adds."""
