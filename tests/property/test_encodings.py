"""One value, one encoding; and whatever bytes a decoder is fed, it raises ``Corrupt`` or succeeds."""

import math
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from store.errors import Corrupt, Incompatible, MoonclipError
from store.format import canonical, values
from store.format.objects import Commit, TreeNode
from store.format.values import Tagged

hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
plain = st.recursive(
    hashable | st.floats() | st.complex_numbers() | st.characters(categories=["Cs"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.sets(hashable, max_size=4)
        | st.dictionaries(hashable, inner, max_size=4)
        | st.builds(Tagged, st.text(max_size=5), inner)
    ),
    max_leaves=12,
)
nodes = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def same(left: Any, right: Any) -> bool:
    """Equality that tells types, order of mappings, NaN payloads and signs of zero apart."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack("<d", left) == struct.pack("<d", right)
    if isinstance(left, complex):
        return same(left.real, right.real) and same(left.imag, right.imag)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    if isinstance(left, Tagged):
        return left.tag == right.tag and same(left.payload, right.payload)
    return bool(left == right)


@given(plain)
@example(2**5000)
@example(-(2**63) - 1)
@example(struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf0\x7f")[0])
@example({1: "a", True: "b", "1": -0.0})
def test_values_round_trip_exactly(value: Any) -> None:
    encoded = values.encode(value)
    again = values.decode(encoded)
    assert same(again, value)
    assert values.encode(again) == encoded


@given(nodes)
def test_canonical_round_trips(node: Any) -> None:
    assert canonical.decode(canonical.encode(node)) == node


@given(st.dictionaries(st.text(), st.integers(0, 9), min_size=2))
def test_canonical_does_not_depend_on_insertion_order(mapping: dict[str, int]) -> None:
    assert canonical.encode(mapping) == canonical.encode(dict(reversed(list(mapping.items()))))


def test_keys_are_in_bytewise_order_not_length_first() -> None:
    assert canonical.encode({"b": 1, "aa": 2}) == bytes.fromhex("a262616102616201")


@pytest.mark.parametrize(
    "hexadecimal",
    [
        "a2616201616101",  # keys out of order
        "a2616101616101",  # a key twice
        "1801",  # a longer form of 1
        "9f01ff",  # indefinite length
        "fb3ff0000000000000",  # a float
        "c11a514b67b0",  # a tagged date
        "c24101",  # a big integer
        "d8236161",  # a regular expression
        "d81c81d81d00",  # an array that holds itself
        "d9fff801",  # a tag that nobody knows
        "81" * 200 + "00",  # too deep
        "a10101",  # a key that is no text
        "0100",  # trailing bytes
        "",
    ],
)
def test_other_encodings_are_refused(hexadecimal: str) -> None:
    with pytest.raises(Corrupt):
        canonical.decode(bytes.fromhex(hexadecimal))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_corrupt_and_nothing_else(data: bytes) -> None:
    for decode in (canonical.decode, values.decode, TreeNode.decode, Commit.decode):
        with suppress(Corrupt):
            decode(data)


@given(st.data())
def test_flipped_byte_in_a_commit_is_refused_or_another_commit(data: st.DataObject) -> None:
    encoded = bytearray(Commit(items={}, step=5, branch="main", metadata={"loss": 1.25}).encode())
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] ^= data.draw(st.integers(1, 255))
    try:
        again = Commit.decode(bytes(encoded))
    except Corrupt:
        return
    assert again.encode() == encoded


def test_cycle_is_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(Incompatible, match="cycle"):
        values.encode(cycle)


@pytest.mark.parametrize("value", [object(), {1: object()}, range(3), type("Sub", (dict,), {})()])
def test_what_is_not_plain_is_refused(value: Any) -> None:
    with pytest.raises(MoonclipError, match="not a plain value"):
        values.encode(value)


def test_nan_key_survives() -> None:
    (key,) = values.decode(values.encode({math.nan: 1}))
    assert math.isnan(key)


def test_shared_references_do_not_multiply_a_few_bytes_into_gigabytes() -> None:
    laughs = b"\xf6"
    for level in range(9, 0, -1):
        again = b"".join(b"\xd8\x1d" + canonical.encode(level) for _ in range(20))
        laughs = b"\xd8\x1c\x82\x64list" + bytes([0x80 | 21]) + laughs + again
    with pytest.raises(Corrupt, match="tag"):
        values.decode(laughs)
