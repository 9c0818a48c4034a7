"""What cannot be kept, and what hostile or outdated stores hold, is refused by path, and nothing runs."""

import enum
import sys
from collections import OrderedDict, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from moonclip.state.flattening import flatten
from moonclip.state.policy import Policy
from moonclip.state.values import from_plain, to_plain
from store.errors import Corrupt, Incompatible, Unsafe
from store.format import values
from store.format.values import Tagged
from tests.state_trip import loaded, stored


class Color(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: Any
    y: Any = 0


class Settings(dict):  # type: ignore[type-arg]
    """A dict of a class that nobody knows."""


class Text(str):
    __slots__ = ()


def cyclic() -> list[Any]:
    itself: list[Any] = []
    itself.append(itself)
    return itself


def local_enum() -> enum.Enum:
    class Hidden(enum.Enum):
        A = 1

    return Hidden.A


UNKNOWN: list[tuple[Any, str]] = [
    (Settings(a=1), r"tests\.unit\.test_state_values\.Settings is no type|Settings is no type that can be kept"),
    (Text("x"), "Text is no type"),
    (object(), "builtins.object is no type"),
    (lambda: 0, "builtins.function is no type"),
    (int, "builtins.type is no type"),
    (cyclic(), "contains itself"),
    (local_enum(), "define it at a module's top level"),
    (defaultdict(lambda: 0), "factory"),
    ({torch.ones(1)}, "a tensor cannot be"),
    ({(torch.ones(1), 1): 2}, "a tensor cannot be"),
    (np.array([(1, 2)], "i4,i4")[0], "numpy.void is no type"),
]


@pytest.mark.parametrize(
    ("value", "reason"), UNKNOWN, ids=lambda part: part if isinstance(part, str) else type(part).__name__
)
def test_what_cannot_be_kept_is_refused_with_its_path(value: Any, reason: str) -> None:
    with pytest.raises(Incompatible, match=reason) as caught:
        flatten({"ok": torch.ones(1), "a": [1, {"b/c": value}]}, item="trainer")
    assert str(caught.value).startswith("trainer: 'a/1/b~1c")


def test_an_attribute_that_would_be_lost_is_refused() -> None:
    state = OrderedDict(a=1)
    state.extra = 2  # type: ignore[attr-defined]
    with pytest.raises(Incompatible, match="'extra'"):
        flatten(state)


def test_deep_nesting_is_refused_before_the_engine_has_to() -> None:
    deepest: Any = {"t": 1, "d": datetime(2024, 1, 1, tzinfo=UTC)}
    for _ in range(9):
        deepest = OrderedDict(x=deepest)
    values.encode(to_plain(deepest))
    with pytest.raises(Incompatible, match="nested deeper"):
        to_plain(OrderedDict(x=OrderedDict(x=deepest)))


def test_to_plain_has_no_room_for_tensors() -> None:
    with pytest.raises(Incompatible, match=r"metadata: 'loss': a Tensor cannot be here"):
        to_plain({"loss": torch.ones(1)}, what="metadata")


# --- hostile and outdated payloads --------------------------------------------------------------------------------

MALFORMED = [
    Tagged("bytearray", 10**12),
    Tagged("torch.Generator", ("cpu", 10**12)),
    Tagged("torch.Generator", ("cpu", b"short")),
    Tagged("torch.dtype", "ops"),
    Tagged("torch.dtype", "nn"),
    Tagged("range", (1, 2, 0)),
    Tagged("datetime", ("never", 0, None)),
    Tagged("time zone", "../../etc/passwd"),
    Tagged("numpy.scalar", ("O", b"12345678")),
    Tagged("numpy.scalar", ("<f8", b"1234")),
    Tagged("numpy.scalar", ("<V99999999999", b"")),
    Tagged("deque", ("many", [1])),
    Tagged("OrderedDict", 3),
    Tagged("defaultdict", ("Popen", {})),
    Tagged("namedtuple", (("builtins", "dict"), {})),
    Tagged("namedtuple", ((("builtins", "tuple"),), ())),
    Tagged("slice", (None, [1, 2, 3, 4])),
    Tagged("pickle", b"cos\nsystem"),
    Tagged("enum", (("builtins", "dict"), "keys")),
    [{Tagged("bytearray", b"x"): 1}],
    {Tagged("bytearray", b"x")},
]


@pytest.mark.parametrize("plain", MALFORMED, ids=lambda plain: type(plain).__name__)
def test_malformed_payloads_are_corrupt(plain: Any) -> None:
    with pytest.raises(Corrupt, match="item"):
        from_plain(plain, what="item")


def test_an_unknown_tag_names_itself() -> None:
    with pytest.raises(Incompatible, match=r"item: 'a/0': unknown type 'hologram'"):
        from_plain({"a": [Tagged("hologram", 1)]}, what="item")


def class_payload(module: str, name: str) -> Tagged:
    return Tagged("enum", ((module, name), "RED", None))


def test_a_class_is_never_imported_unasked() -> None:
    absent = "moonclip_test_absent_module"
    with pytest.raises(Unsafe, match=rf"import {absent} first or pass allow=\['{absent}.Color'\]"):
        from_plain(class_payload(absent, "Color"))
    with pytest.raises(Incompatible, match=f"{absent} cannot be imported"):
        from_plain(class_payload(absent, "Color"), Policy(classes=(f"{absent}.Color",)))


def test_a_listed_class_may_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "moonclip_test_colors.py").write_text("import enum\nclass Color(enum.Enum):\n    RED = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    payload = class_payload("moonclip_test_colors", "Color")
    with pytest.raises(Unsafe):
        from_plain(payload)
    assert "moonclip_test_colors" not in sys.modules
    try:
        assert from_plain(payload, Policy(classes=("moonclip_test_colors.Color",))).name == "RED"
    finally:
        sys.modules.pop("moonclip_test_colors", None)


@pytest.mark.parametrize(
    "name", [("os", "system"), ("subprocess", "Popen"), ("builtins", "eval"), ("os", "environ.clear")]
)
def test_a17_a_name_of_something_else_is_no_enum(name: tuple[str, str]) -> None:
    with pytest.raises((Incompatible, Unsafe)):
        from_plain(class_payload(*name))


def test_a_member_that_is_gone_and_fields_that_changed() -> None:
    module = Color.__module__
    with pytest.raises(Incompatible, match="no member 'GREEN'"):
        from_plain(Tagged("enum", ((module, "Color"), "GREEN", None)))
    with pytest.raises(Incompatible, match="no longer has the fields"):
        from_plain(Tagged("namedtuple", (((module, "Point"), ("x", "z")), (1, 2))))


def test_a_named_tuple_is_made_without_running_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = to_plain(Point(1, 2))
    monkeypatch.setattr(Point, "__new__", lambda *args: pytest.fail("its constructor ran"))
    assert tuple(from_plain(plain)) == (1, 2)


def test_a_missing_list_element_closes_up_but_a_missing_container_does_not() -> None:
    kept = stored(flatten({"a": [torch.tensor(1), torch.tensor(2)], "b": 3}))
    del kept["a/0"]
    assert loaded(kept)["a"] == [torch.tensor(2)]
    del kept["a"]
    with pytest.raises(Incompatible, match="'a/1' lies in 'a'"):
        loaded(kept)
