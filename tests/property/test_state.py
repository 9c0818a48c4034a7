"""Any nesting of what can be kept is a fixed point; any payload that cannot be read is an error of ours."""

import contextlib
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from moonclip.state.flattening import FlatContainer, FlatValue, LoadedTensor, flatten, unflatten
from moonclip.state.names import key_of, segment
from moonclip.state.values import from_plain
from store.errors import MoonclipError
from store.format.values import Tagged
from tests.state_trip import stored, trip

text = st.one_of(st.text(max_size=6), st.sampled_from(["", "0", "-1", "~", "~s0", "a/b", "a", "~metadata", "\ud800"]))
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), text, st.binary(max_size=9),
    st.sampled_from([torch.float16, torch.Size([1]), torch.device("cpu"), np.float32(2), range(3), slice(1, None)]),
)  # fmt: skip
keys = st.one_of(text, st.integers(), st.none(), st.tuples(st.integers(), text), st.floats(allow_nan=False))
shared = torch.arange(12.0)


@st.composite
def tensors(draw: st.DrawFn) -> Any:
    """Small tensors of some dtypes and strides, some of them views of one memory, and arrays."""
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]))
    plain = torch.arange(int(np.prod(shape)), dtype=torch.int64).view(shape).to(dtype)
    turned = plain.T if plain.dim() == 2 else plain
    return draw(st.sampled_from([plain, turned, shared[:4], shared, shared[3:].numpy()]))


def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists, mappings = st.lists(children, max_size=4), st.dictionaries(keys, children, max_size=4)
    return st.one_of(
        lists, mappings, lists.map(tuple), lists.map(deque), mappings.map(OrderedDict),
        mappings.map(lambda items: defaultdict(list, items)),
    )  # fmt: skip


counters = st.dictionaries(keys, st.integers(), max_size=3).map(Counter)
structures = st.recursive(st.one_of(leaves, tensors(), counters), containers, max_leaves=12)


@given(structures)
def test_a13_save_load_save_is_a_fixed_point(obj: Any) -> None:
    back = trip(obj)
    assert type(back) is type(obj) or isinstance(obj, torch.Tensor)


@given(structures, structures)
def test_different_structures_are_stored_differently(one: Any, other: Any) -> None:
    if repr(one) != repr(other):
        assert stored(flatten([one])) != stored(flatten([other]))


@given(keys)
def test_a_segment_has_one_key(key: Any) -> None:
    assert repr(key_of(segment(key))) == repr(key)


tags = [
    "enum", "pickle", "OrderedDict", "defaultdict", "Counter", "deque", "namedtuple", "slice", "bytearray", "range",
    "path", "date", "datetime", "time", "timedelta", "time zone", "torch.Size", "torch.device", "torch.Generator",
    "torch.dtype", "torch.version", "numpy.scalar", "numpy.bytes", "numpy.str", "dict", "list", "?",
]  # fmt: skip
hashable = st.one_of(st.none(), st.integers(), st.text(max_size=4), st.binary(max_size=4), st.floats())
payloads = st.recursive(
    hashable,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(hashable, inner, max_size=2), st.builds(Tagged, st.sampled_from(tags), inner),
    ),
    max_leaves=6,
)  # fmt: skip


@given(st.sampled_from(tags), payloads)
def test_any_payload_is_read_or_is_an_error_of_ours(tag: str, payload: Any) -> None:
    with contextlib.suppress(MoonclipError):
        from_plain(Tagged(tag, payload))


kinds = [
    "ndarray",
    "quantized",
    "sparse_coo",
    "sparse_compressed",
    "subclass",
    "namedtuple",
    "dict",
    "deque",
    "OrderedDict",
]
fields = st.sampled_from(["data", "words", "indices", "values", "crow_indices", "col_indices", "scales", "0", "~k00"])


sizes = st.lists(st.sampled_from([0, 1, 3, -1, 2**40, 2**70, 1.5]), max_size=3).map(tuple)
quantized_infos = st.fixed_dictionaries(
    {"dtype": st.sampled_from(["qint8", "quint4x2", "?"]), "shape": sizes},
    optional={"scale": payloads, "zero_point": payloads, "axis": st.integers(-9, 9)},
)
infos = st.one_of(
    payloads, st.tuples(sizes, st.booleans()), st.tuples(st.sampled_from(["sparse_csr", "sparse_bsc", "?"]), sizes),
    quantized_infos, st.sampled_from(["<f4", "|b1", "O", "<U3", ",", "<V999999999999"]),
)  # fmt: skip


@given(st.sampled_from(kinds), infos, st.dictionaries(fields, st.one_of(tensors(), payloads), max_size=3))
def test_any_container_is_built_or_is_an_error_of_ours(kind: str, info: Any, children: dict[str, Any]) -> None:
    entries: dict[str, Any] = {"": FlatContainer(0, kind, info)}
    for name, child in children.items():
        entries[name] = LoadedTensor(0, child) if isinstance(child, torch.Tensor) else FlatValue(0, child)
    with contextlib.suppress(MoonclipError):
        unflatten(entries)
