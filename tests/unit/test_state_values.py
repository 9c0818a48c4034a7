"""Everything that is not a tensor comes back as what it was."""

import enum
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch

from moonclip.state.flattening import FlatContainer, FlatValue, flatten
from moonclip.state.values import from_plain, to_plain
from store.format import values
from tests.state_trip import stored, trip


class Color(enum.Enum):
    RED = "red"
    CRIMSON = "red"
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


class Outer:
    class Inner(enum.Enum):
        ONE = 1


class Point(NamedTuple):
    x: Any
    y: Any = 0


Pair = namedtuple("Pair", "first second")

SCALARS: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        2**63,
        2**64,
        -(2**200),
        1.5,
        float("inf"),
        -0.0,
        3 - 4j,
        "",
        "text",
        "\ud800",
        b"",
        b"\x00",
    ),
    *(bytearray(b"ab"), range(2, 9, 3), slice(None, 3, -1), Path("/a/b"), PurePosixPath("x"), PureWindowsPath("c:/x")),
    *(date(2024, 2, 29), timedelta(-3, 7, 9), time(1, 2, 3, 4, fold=1), datetime(2024, 1, 2, 3, 4, 5, 6), UTC),
    datetime(2024, 1, 2, tzinfo=timezone(timedelta(minutes=-90, microseconds=5))),
    datetime(2024, 11, 3, 1, 30, fold=1, tzinfo=ZoneInfo("America/New_York")),
    *(Color.RED, Color.CRIMSON, Level.LOW, Mode.READ, Mode.READ | Mode.WRITE, Mode(0), Outer.Inner.ONE),
    *(torch.Size([2, 3]), torch.float8_e5m2, torch.device("cuda:1"), torch.strided, torch.channels_last),
    torch.__version__,
    *(np.float32(1.5), np.int64(-3), np.bool_(True), np.complex128(1j), np.datetime64("2024-01-02T03"), np.str_("né")),
    *(np.bytes_(b"a\x00"), np.longdouble("1.25"), np.float16("nan")),
]

CONTAINERS: list[Any] = [
    *([], {}, (), set(), frozenset(), deque(), OrderedDict(), Counter(), defaultdict(list)),
    *([[], [()], {"a": {}}], {"a": [1, (2, {3})]}, {1, "a", (2, frozenset({3}))}),
    {
        0: "int",
        "0": "text",
        (1, 2): "tuple",
        None: "none",
        1.5: "float",
        True: "bool",
        b"x": "bytes",
        Level.LOW.name: 1,
    },
    {Color.RED: 1, Point(1, 2): 2, np.int64(7): 3, frozenset({1}): 4, -5: 6, 10**30: 7, "": 8, "~": 9, "a/b": 10},
    *(OrderedDict(b=1, a=2), Counter("hello"), deque([1, 2], maxlen=3), defaultdict(int, a=1), defaultdict(None, x=2)),
    *(defaultdict(dict, {5: {"x": 1}}), Point(1, [2]), Pair("a", Point(None)), [Outer.Inner.ONE]),
]


def same(one: Any, other: Any) -> bool:
    """Equal in value, type and order, NaNs included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=True)
        return len(one) == len(other) and all(same(a, b) and same(x, y) for (a, x), (b, y) in pairs)
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or (one != one and other != other)


@pytest.mark.parametrize("value", SCALARS, ids=lambda value: type(value).__name__)
def test_a13_scalars_keep_type_and_value(value: Any) -> None:
    for around in (value, [value], {"k": {"v": value}}):
        assert same(trip(around), around)
    beside_a_tensor = trip({"t": torch.ones(1), "v": value})
    assert same(beside_a_tensor["v"], value)


@pytest.mark.parametrize("value", CONTAINERS, ids=lambda value: type(value).__name__)
def test_a13_containers_keep_type_order_and_content(value: Any) -> None:
    flat = flatten(value)
    assert list(flat.entries) == [""] and isinstance(flat.entries[""], FlatValue)
    assert same(trip(value), value)


def test_a13_attributes_of_containers_are_kept() -> None:
    assert trip(defaultdict(list, a=[1]))["missing"] == []
    assert trip(deque([1], maxlen=3)).maxlen == 3
    assert trip(datetime(2024, 11, 3, 1, 30, fold=1)).fold == 1


def with_tensor(tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "dict": {"b": tensor, 0: 1, "a": [], None: {}},
        "list": [1, tensor, ()],
        "tuple": (tensor, {"x": (tensor.clone(), 2)}),
        "OrderedDict": OrderedDict(z=tensor, a=2),
        "Counter": Counter({"x": tensor, "y": 3}),
        "defaultdict": defaultdict(dict, {5: {"exp_avg": tensor}}),
        "deque": deque([tensor, 2], maxlen=4),
        "namedtuple": Point(tensor, Pair(1, tensor.clone())),
        "slice": slice(tensor, None),
    }


@pytest.mark.parametrize("kind", list(with_tensor(torch.ones(1))))
def test_a13_containers_around_tensors(kind: str) -> None:
    tensor = torch.arange(3.0)
    original = with_tensor(tensor)[kind]
    flat = flatten(original)
    assert isinstance(flat.entries[""], FlatContainer) and flat.entries[""].container == kind
    back = trip(original)
    assert type(back) is type(original)
    assert stored(flatten(back)) == stored(flat)


def test_a13_optimizer_and_scheduler_state_is_a_fixed_point() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=5)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    scheduler.step()
    back = trip({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()})
    assert list(back["optimizer"]["state"]) == [0, 1]
    assert set(back["optimizer"]["param_groups"][0]) == set(optimizer.param_groups[0])
    optimizer.load_state_dict(back["optimizer"])
    scheduler.load_state_dict(back["scheduler"])


def test_a13_a_state_dict_keeps_its_order_and_metadata() -> None:
    state = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).state_dict()
    back = trip(state)
    assert type(back) is OrderedDict and list(back) == list(state)
    assert back._metadata == state._metadata  # type: ignore[attr-defined]
    empty = torch.nn.ReLU().state_dict()
    assert trip(empty)._metadata == empty._metadata  # type: ignore[attr-defined]


def test_names_that_look_alike_all_survive() -> None:
    tensors = {
        "a/b": torch.tensor(1), "a": {"b": torch.tensor(2), "b/c": torch.tensor(3)}, "a.b": torch.tensor(4),
        0: torch.tensor(5), "0": torch.tensor(6), "": torch.tensor(7), "~": torch.tensor(8), "~1": torch.tensor(9),
        "~metadata": torch.tensor(10), (0,): torch.tensor(11), None: torch.tensor(12), "None": torch.tensor(13),
        "\ud800": torch.tensor(14), 1.5: torch.tensor(15), "1.5": torch.tensor(16), -3: torch.tensor(17), "-3": 18,
    }  # fmt: skip
    back = trip(tensors)
    assert list(map(repr, back)) == list(map(repr, tensors))
    assert all(torch.equal(torch.as_tensor(back[k]), torch.as_tensor(tensors[k])) for k in tensors if k != "a")


def test_a14_empty_and_grown_containers() -> None:
    state: dict[str, Any] = {"empty": [], "nothing": {}, "none": (), "grows": [torch.ones(1)], "history": [1.0]}
    assert trip(state)["empty"] == [] and trip(state)["nothing"] == {} and trip(state)["none"] == ()
    state["grows"] += [torch.ones(1) * index for index in range(2, 13)]
    state["history"].append(2.0)
    back = trip(state)
    assert [int(tensor) for tensor in back["grows"]] == [1, *range(2, 13)]
    assert back["history"] == [1.0, 2.0]


def test_a_nan_keeps_its_payload() -> None:
    payload = values.decode(values.encode(to_plain(np.uint64(0x7FF8_0000_DEAD_BEEF).view(np.float64))))
    assert from_plain(payload).view(np.uint64) == 0x7FF8_0000_DEAD_BEEF
    nan = float(np.uint64(0x7FF8_0000_0000_BEEF).view(np.float64))
    assert np.float64(trip([nan])[0]).view(np.uint64) == 0x7FF8_0000_0000_BEEF


def test_a_torch_generator_continues_its_stream() -> None:
    generator = torch.Generator().manual_seed(3)
    torch.rand(5, generator=generator)
    back = trip({"g": generator})["g"]
    assert torch.equal(torch.rand(5, generator=back), torch.rand(5, generator=generator))
