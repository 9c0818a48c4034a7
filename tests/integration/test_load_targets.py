"""What a load can be told to fill: templates and parts of them, models in wrappers, and models without memory."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from moonclip import CheckpointManager, Incompatible


@pytest.fixture
def mgr(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(tmp_path / "checkpoints") as mgr:
        yield mgr


def network() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))


def stored_items() -> dict[str, Any]:
    torch.manual_seed(1)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    return {
        "model": model,
        "optimizer": optimizer,
        "step": 12,
        "blob": b"\x00\x01",
        "settings": {"name": "run", "tags": ["a", "b"], "deep": {"none": None, "rate": 0.5}},
        "state": {"list": [torch.ones(2), torch.ones(3)], "w": torch.arange(4.0), "n": 3},
    }


def test_b3_items_of_every_kind_through_templates(mgr: CheckpointManager) -> None:
    items = stored_items()
    mgr.save("all", items)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    state: dict[str, Any] = {"list": [torch.zeros(2), torch.zeros(3)], "w": torch.zeros(4), "n": 0}
    addresses = [tensor.data_ptr() for tensor in (*model.state_dict().values(), *state["list"], state["w"])]
    into = {"model": model, "optimizer": optimizer, "step": 0, "blob": b"", "settings": {}, "state": state}

    loaded = mgr.load(into=into)

    assert (loaded["step"], loaded["blob"], loaded["settings"]) == (12, b"\x00\x01", items["settings"])
    assert json.loads(json.dumps(loaded["settings"])) == items["settings"]
    assert state["n"] == 3
    for name, tensor in items["model"].state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert torch.equal(state["list"][1], torch.ones(3))
    assert [t.data_ptr() for t in (*model.state_dict().values(), *state["list"], state["w"])] == addresses
    assert all(parameter.requires_grad for parameter in model.parameters())  # B28


def test_b4_only_what_a_nested_template_names_is_changed(mgr: CheckpointManager) -> None:
    mgr.save(state=stored_items()["state"])
    target: dict[str, Any] = {"list": [torch.zeros(2)], "n": 0}
    mgr.load(into={"state": target}, strict=False)
    assert list(target) == ["list", "n"]
    assert len(target["list"]) == 1
    assert torch.equal(target["list"][0], torch.ones(2))


def test_b5_none_takes_the_whole_item(mgr: CheckpointManager) -> None:
    mgr.save(state=stored_items()["state"], settings=stored_items()["settings"])
    loaded = mgr.load(into={"state": None, "settings": None})
    assert torch.equal(loaded["state"]["w"], torch.arange(4.0))
    assert loaded["settings"] == stored_items()["settings"]


def test_b6_names_on_one_side_only_are_told(mgr: CheckpointManager, caplog: pytest.LogCaptureFixture) -> None:
    mgr.save(state=stored_items()["state"])
    target = {"list": [torch.zeros(2), torch.zeros(3)], "w": torch.zeros(4), "deep": {"new": torch.zeros(1)}}
    with pytest.raises(Incompatible) as refused:
        mgr.load(into={"state": target})
    assert sorted(refused.value.details["problems"]) == [
        "state::deep/new: missing in the commit",
        "state::n: in the commit, but not in the target",
    ]
    with caplog.at_level(logging.WARNING):
        mgr.load(into={"state": target}, strict=False)
    assert "state::deep/new" in caplog.text and "state::n" in caplog.text


def test_b7_all_that_does_not_fit_is_named_and_no_target_altered(mgr: CheckpointManager) -> None:
    mgr.save(state=stored_items()["state"], model=network())
    target: dict[str, Any] = {
        "list": [torch.zeros(1), torch.zeros(3, dtype=torch.int64)],
        "w": torch.zeros(2, 2),
        "n": "text",
    }
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for strict in (True, False):
        with pytest.raises(Incompatible) as refused:
            mgr.load(into={"model": model, "state": target}, strict=strict)
        assert [problem.split(": ")[0] for problem in refused.value.details["problems"]] == [
            "state::list/0",
            "state::list/1",
            "state::w",
            "state::n",
        ]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not target["w"].any()


# --- wrappers -----------------------------------------------------------------------------------------------------


class Named(torch.nn.Module):
    """A module with a part that is called as a wrapper calls its own."""

    def __init__(self) -> None:
        super().__init__()
        self.module = torch.nn.Linear(4, 3)
        self.head = torch.nn.Linear(3, 2)


def compiled(model: Any) -> Any:
    """Wrapped as torch.compile does it, and never compiled."""
    return torch.compile(model, backend="eager")


def checkpointed(model: Any) -> Any:
    model[0] = checkpoint_wrapper(model[0])
    return model


WRAPPERS: dict[str, Any] = {
    "none": lambda model: model,
    "compile": compiled,
    "data parallel": torch.nn.DataParallel,
    "both": lambda model: compiled(torch.nn.DataParallel(model)),
    "checkpoint": checkpointed,
    "parts": lambda model: torch.nn.Sequential(*(compiled(part) for part in model)),
}


@pytest.mark.parametrize("loaded_as", WRAPPERS)
@pytest.mark.parametrize("saved_as", WRAPPERS)
def test_g9_a_wrapped_model_is_the_same_model(mgr: CheckpointManager, saved_as: str, loaded_as: str) -> None:
    torch.manual_seed(3)
    model = network()
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    mgr.save(step=1, model=WRAPPERS[saved_as](model))
    assert list(mgr.load()["model"]) == list(expected)
    inner = network()
    wrapped = WRAPPERS[loaded_as](inner)
    mgr.resume(model=wrapped)
    assert all(torch.equal(a, b) for a, b in zip(wrapped.state_dict().values(), expected.values(), strict=True))
    template = {name: torch.zeros_like(tensor) for name, tensor in wrapped.state_dict().items()}
    mgr.load(into={"model": template})
    assert all(torch.equal(a, b) for a, b in zip(template.values(), expected.values(), strict=True))


def test_g9_a_wrapper_costs_no_bytes(mgr: CheckpointManager) -> None:
    model = torch.nn.Linear(64, 64)
    mgr.save(step=1, model=model)
    mgr.save(step=2, model=compiled(torch.nn.DataParallel(model)))
    first, second = (list(mgr.load(f"step:{step}", lazy=True)["model"]) for step in (1, 2))
    assert first == second == ["weight", "bias"]
    assert all(each.is_same_tree for each in mgr.diff("step:1", "step:2").items)


def test_g9_keys_of_ones_own_stay(mgr: CheckpointManager) -> None:
    own = {"module.x": torch.ones(1), "_orig_mod.y": torch.ones(2)}
    model = Named()
    mgr.save(own=own, model=model)
    loaded = mgr.load()
    assert list(loaded["own"]) == list(own)
    assert list(loaded["model"]) == list(model.state_dict())


def test_g9_names_select_as_the_commit_has_them(mgr: CheckpointManager) -> None:
    model = network()
    mgr.save(model=model)
    wrapped: Any = torch.nn.DataParallel(network())
    untouched = wrapped.module[0].weight.detach().clone()
    mgr.load(into={"model": wrapped}, names=["model::2.*"], strict=False)
    assert torch.equal(wrapped.module[2].weight, model[2].weight)
    assert torch.equal(wrapped.module[0].weight, untouched)


def test_an_old_commit_under_wrapped_names_loads(mgr: CheckpointManager) -> None:
    model = network()
    mgr.save(model={f"module.{name}": tensor for name, tensor in model.state_dict().items()})
    again = network()
    mgr.load(into={"model": again})
    assert torch.equal(again[2].weight, model[2].weight)


# --- the meta device ----------------------------------------------------------------------------------------------


class Tied(torch.nn.Module):
    """Tied weights, and a buffer that is no part of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("count", torch.tensor(4))
        self.register_buffer("angles", torch.arange(3.0), persistent=False)


def test_a_model_on_the_meta_device_gets_memory(mgr: CheckpointManager, caplog: pytest.LogCaptureFixture) -> None:
    model: Any = Tied()
    mgr.save(step=1, model=model)
    with torch.device("meta"):
        shell: Any = Tied()
        with caplog.at_level(logging.WARNING):
            assert mgr.resume(model=shell) == 2  # inside, where new tensors would have no memory either
    assert shell.head.weight is shell.embed.weight
    assert shell.embed.weight.requires_grad and isinstance(shell.embed.weight, torch.nn.Parameter)
    assert torch.equal(shell.embed.weight, model.embed.weight)
    assert int(shell.count) == 4
    assert shell.angles.is_meta
    assert "stay on the meta device: angles" in caplog.text


def test_what_is_not_loaded_stays_where_using_it_fails(mgr: CheckpointManager) -> None:
    mgr.save(model={"0.weight": torch.ones(3, 4)})
    with torch.device("meta"):
        shell: Any = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    mgr.load(into={"model": shell}, strict=False)
    assert torch.equal(shell[0].weight, torch.ones(3, 4))
    assert shell[0].bias.is_meta and shell[1].weight.is_meta


def test_a_model_that_has_some_memory_keeps_it(mgr: CheckpointManager) -> None:
    model = network()
    mgr.save(model=model)
    shell = network()
    shell[2].to(device="meta")
    kept = shell[0].weight
    mgr.load(into={"model": shell})
    assert shell[0].weight is kept
    assert all(torch.equal(*pair) for pair in zip(shell.parameters(), model.parameters(), strict=True))


def test_a_template_on_the_meta_device_is_replaced(mgr: CheckpointManager) -> None:
    """It says of which shape and dtype a tensor has to be, not where it goes."""
    mgr.save(state={"w": torch.arange(6.0).view(2, 3), "list": [torch.ones(2)]})
    shell = torch.empty(2, 3, dtype=torch.float16, device="meta")
    target: dict[str, Any] = {"w": shell, "list": [torch.empty(2, device="meta")]}
    with pytest.raises(Incompatible, match="dtype float32 in the commit, float16 in the target"):
        mgr.load(into={"state": target})
    assert target["w"] is shell
    mgr.load(into={"state": target}, strict=False)
    assert torch.equal(target["w"], torch.arange(6.0).view(2, 3).half())
    assert torch.equal(target["list"][0], torch.ones(2))
    with pytest.raises(Incompatible, match=r"shape \[2, 3\] in the commit, \[1, 3\]"):
        mgr.load(into={"state": {"w": torch.empty(1, 3, device="meta")}}, strict=False)


def test_a_state_dict_that_is_not_of_the_modules_own_tensors_is_refused(mgr: CheckpointManager) -> None:
    class Copying(torch.nn.Linear):
        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            destination[f"{prefix}weight"] = self.weight.detach().clone()

    mgr.save(model={"weight": torch.ones(2, 2)})
    with torch.device("meta"):
        shell = Copying(2, 2)
    with pytest.raises(Incompatible, match="weight is on the meta device, and no parameter or buffer"):
        mgr.load(into={"model": shell})


def test_rng_is_no_target(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "store", async_save=False) as mgr:
        mgr.save(step=1, rng=True, model={"w": torch.ones(2)})
        with pytest.raises(Incompatible, match=r"not a dict.*load\(items=\['rng'\]\)"):
            mgr.resume(rng={})  # type: ignore[arg-type] # by way of **items
        assert mgr.load(items=["rng"])["rng"].keys() == {"python", "numpy", "torch", "cuda"}
