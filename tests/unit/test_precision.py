"""Rules for the precision of what is stored: which tensors they are about, and what they say of typing errors."""

import logging
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from moonclip.saving.precision import Precision
from moonclip.state.entries import FlatState, FlatTensor
from moonclip.state.items import flattened
from moonclip.state.policy import SAFE
from store.errors import Incompatible


def states(**items: Any) -> dict[str, FlatState]:
    return flattened(items, SAFE)


def marked(asked: str | Mapping[str, str] | None, **items: Any) -> dict[str, tuple[str | None, bool]]:
    found = states(**items)
    Precision(asked).mark(found)
    return {
        f"{item}::{name}": (entry.source.stored, entry.source.by_row)
        for item, state in found.items()
        for name, entry in state.entries.items()
        if isinstance(entry, FlatTensor)
    }


def stored(asked: str | Mapping[str, str] | None, **items: Any) -> dict[str, str | None]:
    return {name: cast for name, (cast, _) in marked(asked, **items).items()}


def stepped() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_one_name_is_for_all_floats_that_are_wider() -> None:
    tensors = {
        "double": torch.ones(3, dtype=torch.float64),
        "single": torch.ones(3),
        "half": torch.ones(3, dtype=torch.float16),
        "brain": torch.ones(3, dtype=torch.bfloat16),
        "byte": torch.ones(3).to(torch.float8_e4m3fn),
        "integer": torch.ones(3, dtype=torch.int64),
        "truth": torch.ones(3, dtype=torch.bool),
        "complex": torch.ones(3, dtype=torch.complex64),
    }
    assert stored("bf16", model=tensors) == {
        f"model::{name}": "bfloat16" if name in {"double", "single"} else None for name in tensors
    }
    assert stored("fp8_e4m3", model=tensors) == {
        f"model::{name}": "float8_e4m3fn" if name in {"double", "single", "half", "brain"} else None for name in tensors
    }


@pytest.mark.parametrize("asked", ["none", "fp64", None, {}])
def test_what_is_asked_for_may_be_nothing(asked: Any) -> None:
    assert set(stored(asked, model={"w": torch.ones(3)}).values()) == {None}


def test_counters_are_never_cast() -> None:
    tensors = {
        "scalar": torch.tensor(70001.0),
        "one": torch.tensor([70001.0]),
        "square": torch.ones(1, 1),
        "none": torch.ones(0),
    }
    assert set(stored("fp16", state=tensors).values()) == {None}


def test_patterns_name_the_moments_of_an_optimizer() -> None:
    model, optimizer = stepped()
    found = stored({"*/exp_avg": "bf16", "optimizer::*exp_avg_sq": "fp8_e5m2"}, model=model, optimizer=optimizer)
    assert found == {
        "model::weight": None,
        "model::bias": None,
        **{f"optimizer::state/{n}/step": None for n in (0, 1)},
        **{f"optimizer::state/{n}/exp_avg": "bfloat16" for n in (0, 1)},
        **{f"optimizer::state/{n}/exp_avg_sq": "float8_e5m2" for n in (0, 1)},
    }


def test_the_first_pattern_that_fits_counts() -> None:
    tensors = {"head": {"w": torch.ones(3)}, "body": {"w": torch.ones(3)}}
    asked = {"model/head/*": "none", "model/*": "bf16"}
    assert stored(asked, model=tensors) == {"model::head/w": None, "model::body/w": "bfloat16"}
    assert set(stored(dict(reversed(asked.items())), model=tensors).values()) == {"bfloat16"}


def test_an_item_may_be_a_tensor_itself() -> None:
    assert stored({"ema": "fp16"}, ema=torch.ones(3), other=torch.ones(3)) == {"ema::": "float16", "other::": None}


def test_rows_have_scales_of_their_own_where_there_are_rows() -> None:
    shapes = {"matrix": (3, 8, 8), "vector": (300,), "row": (1, 64), "short": (300, 63)}
    tensors = {name: torch.ones(shape) for name, shape in shapes.items()}
    found = marked("fp8_e4m3_rows", model=tensors)
    assert found["model::matrix"] == ("float8_e4m3fn", True)
    del found["model::matrix"]
    assert set(found.values()) == {("float8_e4m3fn", False)}


def test_one_tensor_of_several_names_is_as_precise_as_any_asks_for() -> None:
    tied = torch.ones(3)
    tensors = {"embed": tied, "head": tied}
    for asked, expected in [
        ({"*embed": "bf16"}, None),
        ({"*embed": "bf16", "*head": "fp8_e4m3"}, "bfloat16"),
        ({"*head": "bf16", "*embed": "fp8_e5m2"}, "bfloat16"),
        ({"*head": "fp8_e5m2", "*embed": "fp8_e4m3"}, "float8_e4m3fn"),
    ]:
        assert set(stored(asked, model=tensors).values()) == {expected}


@pytest.mark.parametrize("asked", ["bf-16", {"model/*": "float17"}, {"model/*": None}, {3: "bf16"}, 16, ["bf16"]])
def test_a_slip_is_told_at_once(asked: Any) -> None:
    with pytest.raises(Incompatible, match="save_dtype"):
        Precision(asked)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_what_torch_calls_a_dtype_will_do(name: str) -> None:
    assert stored({"model/*": name}, model={"w": torch.ones(3)}) == {"model::w": name}
    assert stored(name, model={"w": torch.ones(3)}) == {"model::w": name}


def test_names_of_torch_that_are_not_narrower_leave_tensors_as_they_are() -> None:
    for name in ("float32", "float64"):
        assert stored(name, model={"w": torch.ones(3)}) == stored(None, model={"w": torch.ones(3)})


def test_the_error_lists_what_there_is() -> None:
    with pytest.raises(Incompatible, match=r"no dtype 'b16' for 'model/\*'; there are 'none', 'fp64', 'fp32', 'bf16'"):
        Precision({"model/*": "b16"})


def test_rules_that_are_about_nothing_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    precision = Precision({"modle/*": "bf16", "model/*": "fp16", "model/w": "none"})
    with caplog.at_level(logging.WARNING, "moonclip"):
        for _ in range(3):
            precision.mark(states(model={"w": torch.ones(3)}))
    (message,) = caplog.messages
    assert "'modle/*', 'model/w'" in message
    assert "'model::w'" in message


def test_an_optimizer_that_has_not_stepped_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer = stepped()
    fresh = torch.optim.AdamW(torch.nn.Linear(4, 3).parameters())
    precision = Precision({"optimizer/*exp_avg": "bf16", "optimizer/*exp_avg_qs": "bf16"})
    with caplog.at_level(logging.WARNING, "moonclip"):
        precision.mark(states(model=model, optimizer=fresh))
        assert caplog.messages == []
        precision.mark(states(model=model, optimizer=optimizer))
    (message,) = caplog.messages
    assert "'optimizer/*exp_avg_qs'" in message
    assert "exp_avg'" not in message


def test_rules_that_are_met_are_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "moonclip"):
        assert stored({"model/*": "bf16"}, model={"w": torch.ones(3)}) == {"model::w": "bfloat16"}
        assert stored("fp64", settings={"lr": 3}) == {}
    assert caplog.messages == []
