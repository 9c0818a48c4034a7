"""Which tensor resembles which, by names and shapes alone."""

import pytest

from moonclip.families.pairing import Key, Kind, against, pair, parts_of
from moonclip.state.names import segment
from store.format.entries import TensorEntry
from store.saving.inputs import ItemInput, MadeInput, ValueInput

SQUARE = Kind("float32", (64, 64))
LAYERS = [f"encoder.layer.{n}.{part}.weight" for n in range(3) for part in ("query", "key", "output")]


def model(*names: str, item: str = "model", kind: Kind = SQUARE) -> dict[Key, Kind]:
    return {(item, segment(name)): kind for name in names}


def names_of(pairs: dict[Key, Key]) -> dict[str, str]:
    return {wanted[1]: held[1] for wanted, held in pairs.items()}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("", ""),
        ("model.", ""),
        ("", "model."),
        ("_orig_mod.", ""),
        ("module.", "_orig_mod.model."),
        ("base_model.model.", ""),
        ("0.auto_model.", "bert."),
        ("transformer.", "module.bert."),
    ],
)
def test_whatever_stands_in_front(ours: str, theirs: str) -> None:
    pairs = pair(model(*(ours + name for name in LAYERS)), model(*(theirs + name for name in LAYERS)))
    assert names_of(pairs) == {ours + name: theirs + name for name in LAYERS}


def test_what_wrappers_put_in_the_middle() -> None:
    pairs = pair(model("model.q_proj.base_layer.weight"), model("model.q_proj.weight"))
    assert names_of(pairs) == {"model.q_proj.base_layer.weight": "model.q_proj.weight"}
    assert parts_of("a/b._fsdp_wrapped_module.c") == ("a", "b", "c")


def test_nested_and_dotted_names_across_items() -> None:
    nested = {("state", name.replace(".", "/")): SQUARE for name in LAYERS}
    assert len(pair(model(*LAYERS), nested)) == len(LAYERS)
    assert names_of(pair(model("0.weight"), {("net", "0/weight"): SQUARE})) == {"0.weight": "0/weight"}


def test_the_same_item_before_another() -> None:
    held = model(*LAYERS, item="ema") | model(*LAYERS)
    assert {item for item, _ in pair(model(*LAYERS), held).values()} == {"model"}


def test_what_stands_in_front_of_most_decides_between_as_good_ones() -> None:
    halves = [f"{side}.{name}" for side in ("left", "right") for name in LAYERS]
    wanted = model(*(f"net.{name}" for name in LAYERS))
    held = model(*halves, "left.extra.weight")
    found = names_of(pair(wanted | model("net.extra.weight"), held))
    assert found == {f"net.{name}": f"left.{name}" for name in (*LAYERS, "extra.weight")}


def test_shapes_and_dtypes_that_fit() -> None:
    held = {("model", "w"): Kind("float32", (100, 64))}
    fitting = [("float32", (100, 64)), ("float32", (120, 64)), ("float32", (90, 64)), ("bfloat16", (100, 64))]
    others = [("float32", (100, 65)), ("float32", (100, 8, 8)), ("int32", (100, 64)), ("float64", (100, 64))]
    for dtype, shape in fitting:
        assert pair({("model", "w"): Kind(dtype, shape)}, held) == {("model", "w"): ("model", "w")}
    for dtype, shape in others:
        assert pair({("model", "w"): Kind(dtype, shape)}, held) == {}


def test_one_part_in_common_says_nothing() -> None:
    assert pair(model("a.b.weight"), model("c.d.weight")) == {}
    assert len(pair(model("weight"), model("fc.weight"))) == 1


def test_no_tensor_is_in_two_pairs() -> None:
    held = model("embed.weight")
    assert len(pair(model("a.embed.weight", "b.embed.weight"), held)) == 1


def test_items_against_what_they_resemble() -> None:
    like = TensorEntry(0, "float32", (2,), inline=bytes(8))
    entries = {"w": MadeInput(0, "float32", (2,), lambda *_: memoryview(b"")), "v": ValueInput(1, 5)}
    (item,) = against([ItemInput("model", entries)], {("model", "w"): like, ("model", "v"): like})
    assert item.entries == {"w": entries["w"]._replace(like=like), "v": entries["v"]}
