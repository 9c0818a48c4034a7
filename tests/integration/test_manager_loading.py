"""Loading into what exists: all of it fits or nothing is touched, and every object stays the object it was."""

import logging
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moonclip import CheckpointManager, Corrupt, Incompatible, NotFound
from store.codec import Transform
from store.format.dtypes import Element
from store.format.objects import Kind
from store.format.pack import ObjectHeader, seal
from store.repository import Repository
from tests import packing

Pair = namedtuple("Pair", "left right")


@pytest.fixture
def mgr(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(tmp_path / "checkpoints") as mgr:
        yield mgr


def stored_state() -> dict[str, Any]:
    return {
        "big": torch.arange(100_000, dtype=torch.float32),
        "nested": {"list": [torch.ones(3), {"x": torch.full((2, 2), 2.0)}, 5], "pair": (torch.zeros(1), "text")},
        "named": Pair(torch.ones(2), None),
        "config": {"lr": 0.5, "betas": (0.9, 0.99)},
        "losses": [3.0, 2.0, 1.0],
        "array": np.arange(6.0).reshape(2, 3),
        "n": 7,
    }


def blank_state() -> dict[str, Any]:
    return {
        "big": torch.zeros(100_000),
        "nested": {"list": [torch.zeros(3), {"x": torch.zeros(2, 2)}, 0], "pair": (torch.ones(1), "")},
        "named": Pair(torch.zeros(2), None),
        "config": {"lr": 0.0, "betas": (0.0, 0.0)},
        "losses": [9.0],
        "array": np.zeros((2, 3)),
        "n": 0,
    }


def tensors_of(obj: Any) -> list[torch.Tensor]:
    if isinstance(obj, torch.Tensor):
        return [obj]
    children = obj.values() if isinstance(obj, dict) else obj if isinstance(obj, list | tuple) else []
    return [tensor for child in children for tensor in tensors_of(child)]


def test_a_template_is_filled_in_place(mgr: CheckpointManager) -> None:
    mgr.save(step=0, state=stored_state())
    target = blank_state()
    tensors, nested, losses, array = tensors_of(target), target["nested"], target["losses"], target["array"]
    versions = [tensor._version for tensor in tensors]
    into = {"state": target}

    loaded = mgr.load(into=into)

    assert loaded["state"] is target is into["state"]
    assert all(new is old for new, old in zip(tensors_of(target), tensors, strict=True))
    assert all(tensor._version > version for tensor, version in zip(tensors, versions, strict=True))
    assert (target["nested"] is nested, target["losses"] is losses, target["array"] is array) == (True, True, True)
    expected = stored_state()
    assert all(torch.equal(*pair) for pair in zip(tensors, tensors_of(expected), strict=True))
    assert (target["config"], losses, target["n"]) == (expected["config"], [3.0, 2.0, 1.0], 7)
    assert nested["list"][2] == 5
    assert nested["pair"][1] == "text"
    assert type(target["named"]) is Pair
    assert np.array_equal(array, expected["array"])


def test_everything_that_does_not_fit_is_told_at_once_and_nothing_is_touched(mgr: CheckpointManager) -> None:
    mgr.save(step=0, state=stored_state(), model=torch.nn.Linear(3, 3).state_dict(), other=1)
    target = blank_state()
    target["big"] = torch.zeros(99)
    target["nested"]["list"][0] = torch.zeros(3, dtype=torch.int32)
    target["nested"]["list"][1]["y"] = torch.zeros(1)
    target["config"] = {"lr": "text", "eps": 0.0, "betas": ()}
    target["losses"] = torch.zeros(3)
    target["expanded"] = torch.zeros(1).expand(4)
    del target["n"]
    model = torch.nn.Linear(3, 4, bias=False)
    before = [tensor.clone() for tensor in (*tensors_of(target), model.weight)]

    with pytest.raises(Incompatible, match="nothing was changed") as refused:
        mgr.load(into={"state": target, "model": model, "absent": {}})

    assert sorted(refused.value.details["problems"]) == [
        "absent: no such item in the commit, which has model, other, state",
        "model::bias: in the commit, but not in the target",
        "model::weight: shape [3, 3] in the commit, [4, 3] in the target",
        "state::big: shape [100000] in the commit, [99] in the target",
        "state::config/eps: missing in the commit",
        "state::config/lr: a float in the commit, a str in the target",
        "state::expanded: missing in the commit",
        "state::losses: a value in the commit, a tensor in the target",
        "state::n: in the commit, but not in the target",
        "state::nested/list/0: dtype float32 in the commit, int32 in the target",
        "state::nested/list/1/y: missing in the commit",
    ]
    assert all(problem in str(refused.value) for problem in refused.value.details["problems"])
    after = [*tensors_of(target), model.weight]
    assert all(torch.equal(*pair) for pair in zip(after, before, strict=True))
    assert target["config"]["lr"] == "text"


def test_an_expanded_view_is_refused_before_anything_is_written(mgr: CheckpointManager) -> None:
    mgr.save(state={"a": torch.ones(4), "b": torch.ones(4)})
    target = {"a": torch.zeros(4), "b": torch.zeros(1).expand(4)}
    with pytest.raises(Incompatible, match="share memory"):
        mgr.load(into={"state": target})
    assert torch.equal(target["a"], torch.zeros(4))


def test_not_strict_passes_over_names_and_casts_but_never_reshapes(
    mgr: CheckpointManager, caplog: pytest.LogCaptureFixture
) -> None:
    mgr.save(state={"both": torch.ones(3), "there": torch.ones(3), "cast": torch.full((3,), 1.5), "v": 3, "w": 4})
    target = {"both": torch.zeros(3), "here": torch.zeros(3), "cast": torch.zeros(3, dtype=torch.bfloat16), "v": 0}
    with caplog.at_level(logging.WARNING, logger="moonclip"):
        mgr.load(into={"state": target, "absent": {}}, strict=False)
    assert torch.equal(target["both"], torch.ones(3))
    assert torch.equal(target["here"], torch.zeros(3))
    assert torch.equal(target["cast"], torch.full((3,), 1.5, dtype=torch.bfloat16))
    assert (target["v"], "there" in target, "w" in target) == (3, False, False)
    assert "state::here" in caplog.text
    assert "state::there" in caplog.text

    for unfit in (torch.zeros(4), torch.zeros(3, dtype=torch.int64)):
        with pytest.raises(Incompatible):
            mgr.load(into={"state": {"both": unfit}}, strict=False)


def test_a_subset_of_keys_and_indices_is_all_that_changes(mgr: CheckpointManager) -> None:
    mgr.save(state=stored_state())
    target = {"nested": {"list": [torch.zeros(3)]}, "config": {"lr": 0.0}}
    mgr.load(into={"state": target}, strict=False)
    assert list(target) == ["nested", "config"]
    assert len(target["nested"]["list"]) == 1
    assert torch.equal(target["nested"]["list"][0], torch.ones(3))
    assert target["config"] == {"lr": 0.5}
    values_only = {"n": 0, "config": {"lr": 0.0}}
    mgr.load(into={"state": values_only}, strict=False)
    assert values_only == {"n": 7, "config": {"lr": 0.5}}


def test_none_and_empty_containers_take_whatever_there_is(mgr: CheckpointManager) -> None:
    mgr.save(state=stored_state(), n=3)
    empty: dict[str, Any] = {}
    into = {"state": empty, "n": None}
    mgr.load(into=into)
    assert into["state"] is empty
    assert empty["n"] == 7
    assert torch.equal(empty["nested"]["list"][1]["x"], torch.full((2, 2), 2.0))
    assert into["n"] == 3
    partly = {**blank_state(), "nested": None, "losses": []}
    losses = partly["losses"]
    mgr.load(into={"state": partly})
    assert torch.equal(partly["nested"]["list"][0], torch.ones(3))
    assert losses == [3.0, 2.0, 1.0]


@pytest.mark.parametrize(
    "target",
    [
        torch.zeros(50, 60).t(),
        torch.zeros(120, 50)[::2],
        torch.zeros(60, 50, 2)[..., 1],
        torch.zeros(60, 50).requires_grad_(),
        torch.nn.Parameter(torch.zeros(60, 50)),
    ],
    ids=["transposed", "rows", "inner", "leaf", "parameter"],
)
def test_odd_targets_keep_their_memory(mgr: CheckpointManager, target: torch.Tensor) -> None:
    value = torch.arange(3000.0).view(60, 50)
    mgr.save(x={"t": value})
    address, strides = target.data_ptr(), target.stride()
    loaded = mgr.load(into={"x": {"t": target}})["x"]["t"]
    assert loaded is target
    assert (target.data_ptr(), target.stride()) == (address, strides)
    assert torch.equal(target.detach(), value)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_tensors_that_are_several_in_one_are_built_anew(mgr: CheckpointManager) -> None:
    dense = torch.eye(4)
    mgr.save(
        x={"s": dense.to_sparse(), "q": torch.quantize_per_tensor(dense, 0.5, 0, torch.qint8)}, top=dense.to_sparse()
    )
    target = {"s": torch.zeros(4, 4).to_sparse(), "q": torch.quantize_per_tensor(dense * 0, 0.1, 1, torch.qint8)}
    into = {"x": target, "top": torch.zeros(4, 4).to_sparse()}
    mgr.load(into=into)
    assert torch.equal(target["s"].to_dense(), dense)
    assert torch.equal(target["q"].dequantize(), dense)
    assert torch.equal(into["top"].to_dense(), dense)
    with pytest.raises(Incompatible, match="x::s: a sparse_coo with tensors in the commit"):
        mgr.load(into={"x": {"s": dense, "q": None}})


def test_items_and_names_choose_what_is_loaded(mgr: CheckpointManager) -> None:
    model = {"enc.w": torch.ones(2), "enc.b": torch.ones(1), "dec.w": torch.full((2,), 2.0)}
    mgr.save(model=model, optimizer={"list": [torch.ones(1), torch.full((1,), 2.0)]}, extra={"n": 1})
    assert list(mgr.load(items=["model", "ex*"])) == ["extra", "model"]
    with pytest.raises(NotFound, match=r"no item 'modle'.*it has extra, model, optimizer"):
        mgr.load(items=["modle"])

    assert list(mgr.load(names=["enc.*"])["model"]) == ["enc.w", "enc.b"]
    assert set(mgr.load(names=["model::*.w", "extra"])) == {"model", "extra"}
    with pytest.raises(NotFound, match="'model::nothing'"):
        mgr.load(names=["model::nothing"])

    target = {"enc.w": torch.zeros(2), "enc.b": torch.zeros(1), "dec.w": torch.zeros(2)}
    optimizer = {"list": [torch.zeros(1), torch.zeros(1)]}
    mgr.load(into={"model": target, "optimizer": optimizer}, names=["dec.*", "optimizer::list/1"])
    assert torch.equal(target["dec.w"], torch.full((2,), 2.0))
    assert torch.equal(target["enc.w"], torch.zeros(2))
    assert [tensor.item() for tensor in optimizer["list"]] == [0.0, 2.0]

    taken: dict[str, Any] = {"model": None}
    mgr.load(into=taken, names=["enc.*"])
    assert list(taken["model"]) == ["enc.w", "enc.b"]


def test_a_module_is_loaded_in_place_whole_or_in_part(mgr: CheckpointManager) -> None:
    source = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    source(torch.randn(5, 3))
    mgr.save(model=source)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    parameters = list(model.parameters())
    assert mgr.load(into={"model": model})["model"] is model
    assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
    assert all(
        torch.equal(*pair) for pair in zip(model.state_dict().values(), source.state_dict().values(), strict=True)
    )

    part = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    bias = part[0].bias.detach().clone()
    mgr.load(into={"model": part}, names=["0.weight"])
    assert torch.equal(part[0].weight, source[0].weight)
    assert torch.equal(part[0].bias, bias)


class Counting(torch.nn.Module):
    """A module with a state of its own beside tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.seen: dict[str, Any] = {}

    def get_extra_state(self) -> dict[str, Any]:
        return self.seen

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.seen = state


def test_extra_state_of_a_module_comes_back_whatever_its_shape(mgr: CheckpointManager) -> None:
    source, model = Counting(), Counting()
    source.seen = {"batches": 3, "mean": torch.ones(2)}
    mgr.save(model=source)
    mgr.load(into={"model": model})
    assert model.seen["batches"] == 3
    assert torch.equal(model.seen["mean"], torch.ones(2))


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(300, 10)
        self.lm_head = torch.nn.Linear(10, 300, bias=False)
        self.lm_head.weight = self.embed.weight


def test_a2_a_tied_pair_is_stored_once_and_comes_back_tied(mgr: CheckpointManager) -> None:
    source = Tied()
    mgr.save(model=source)
    told = mgr.describe()
    assert set(told.tensors) == {"model::embed.weight", "model::lm_head.weight"}
    assert told.stored_bytes == told.tensors["model::embed.weight"].stored_bytes

    loaded = mgr.load()["model"]
    assert loaded["embed.weight"] is loaded["lm_head.weight"]
    model = Tied()
    mgr.load(into={"model": model})
    assert model.lm_head.weight is model.embed.weight
    assert torch.equal(model.embed.weight, source.embed.weight)

    untied = {"embed.weight": torch.zeros(300, 10), "lm_head.weight": torch.zeros(300, 10)}
    mgr.load(into={"model": untied})
    assert torch.equal(untied["embed.weight"], source.embed.weight)
    assert torch.equal(untied["lm_head.weight"], source.embed.weight)


def test_a3_either_name_of_a_tied_pair_will_do(mgr: CheckpointManager) -> None:
    source = Tied()
    mgr.save(model=source)
    head = {"lm_head.weight": torch.zeros(300, 10)}
    mgr.load(into={"model": head}, names=["lm_head.*"])
    assert torch.equal(head["lm_head.weight"], source.embed.weight)

    mgr.save("half", {"model": {"embed.weight": source.embed.weight}})
    model = Tied()
    mgr.load("half", into={"model": model})  # the other name is the same memory
    assert torch.equal(model.lm_head.weight, source.embed.weight)


def test_a_target_that_ties_what_differs_is_refused(mgr: CheckpointManager) -> None:
    mgr.save(model={"embed.weight": torch.zeros(300, 10), "lm_head.weight": torch.ones(300, 10)})
    with pytest.raises(Incompatible, match=r"one tensor with lm_head\.weight in the target"):
        mgr.load(into={"model": Tied()})


def test_a_list_that_grew_comes_back_at_its_length(mgr: CheckpointManager) -> None:
    history: list[float] = []
    for step in range(3):
        history.append(step / 2)
        mgr.save(step=step, history=history, empty={"list": [], "dict": {}, "tuple": ()})
    assert mgr.resume(history=[]) == 3
    assert mgr.load("step:0")["history"] == [0.0]
    mgr.load("step:1", into={"history": history})
    assert history == [0.0, 0.5]
    assert mgr.load()["empty"] == {"list": [], "dict": {}, "tuple": ()}


def test_an_ordered_dict_fits_a_dict(mgr: CheckpointManager) -> None:
    mgr.save(model=torch.nn.Linear(2, 2).state_dict(), plain={"a": torch.ones(1)})
    mgr.load(into={"model": dict(torch.nn.Linear(2, 2).state_dict()), "plain": OrderedDict(a=torch.zeros(1))})


def test_an_object_takes_its_state_whole(mgr: CheckpointManager) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    mgr.save(model=model, optimizer=optimizer)
    with pytest.raises(Incompatible, match="optimizer: its object takes its state whole, not by names"):
        mgr.load(into={"optimizer": optimizer}, names=["optimizer::state/*"])
    assert set(mgr.load(names=["optimizer::state/*"])["optimizer"]["state"]) == {0, 1}


# --- how much is checked ----------------------------------------------------------------------------------------------


def test_full_verification_sees_what_a_checksum_cannot(mgr: CheckpointManager, tmp_path: Path) -> None:
    """An object that decodes to other bytes than it is named after, and whose checksum is right."""
    state = torch.arange(1000.0)
    mgr.save(state={"w": state})
    mgr.flush()
    repo = Repository.open(tmp_path / "checkpoints")
    with repo:
        (chunk,) = repo.tree(repo.commit(repo.resolve("main")), "state")["w"].chunks
        other = (-state).numpy().tobytes()
        header = ObjectHeader(Kind.CHUNK, Transform.RAW, False, Element.FP32, len(other), chunk)
        (pack,) = {place.pack for place in repo.index.places(chunk)}
        table = packing.write(repo.layout.packs, [seal(header, [other])])
        repo.index.write(lambda writer: writer.add_pack(table.id, table.entries))
        repo.index.mark_bad(chunk, pack)
    target = torch.zeros(1000)
    mgr.load(into={"state": {"w": target}})
    assert torch.equal(target, -state)
    assert torch.equal(mgr.load_tensors("w")["state::w"], -state)
    unread = mgr.load(verify="full", lazy=True)["state"]["w"]
    for read in (
        unread.load,
        lambda: mgr.load(verify="full"),
        lambda: mgr.load_latest(verify="full"),
        lambda: mgr.load_tensors("w", verify="full"),
        lambda: mgr.resume(state={"w": target}, verify="full"),
    ):
        with pytest.raises(Corrupt, match="content does not match its id"):
            read()


def test_an_unknown_verification_is_refused(mgr: CheckpointManager) -> None:
    mgr.save(state={"w": torch.ones(3)})
    for read in (mgr.load, mgr.load_latest, mgr.resume, lambda **how: mgr.load_tensors("w", **how)):
        with pytest.raises(Incompatible, match="'fast' or 'full', not 'none'"):
            read(verify="none")  # type: ignore[operator]


def test_a_loss_in_the_metadata_is_its_number(mgr: CheckpointManager) -> None:
    loss = (torch.tensor(3.0, requires_grad=True) / 2).to(torch.bfloat16)
    metadata = {"loss": loss, "best": np.array(0.25), "tokens": torch.tensor(7)}
    mgr.save(state=1, metadata=metadata)
    found = mgr.describe().snapshot.metadata
    assert found == {"loss": 1.5, "best": 0.25, "tokens": 7}
    assert [type(value) for value in found.values()] == [float, float, int]
    with pytest.raises(Incompatible, match="metadata 'loss': a Tensor cannot be here; save it as an item of its own"):
        mgr.save(state=1, metadata={"loss": torch.ones(1)})


@pytest.mark.parametrize("hooks", ["register_load_state_dict_pre_hook", "register_load_state_dict_post_hook"])
def test_hooks_of_a_part_run_when_its_module_is_loaded(tmp_path: Path, hooks: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    called: list[str] = []
    with CheckpointManager(tmp_path) as mgr:
        mgr.save(step=1, model=model)
        mgr.load(into={"model": model})
        assert not called
        getattr(model[1], hooks)(lambda *_: called.append(hooks))
        mgr.load(into={"model": model})
    assert called == [hooks]


def test_a_module_that_takes_its_state_itself_is_asked_to(tmp_path: Path) -> None:
    class Counting(torch.nn.Linear):
        load_count = 0

        def _load_from_state_dict(self, *arguments: Any) -> None:
            self.load_count += 1
            super()._load_from_state_dict(*arguments)

    model = torch.nn.Sequential(Counting(4, 4))
    wanted = model[0].weight.detach().clone()
    with CheckpointManager(tmp_path) as mgr:
        mgr.save(step=1, model=model)
        torch.nn.init.zeros_(model[0].weight)
        mgr.load(into={"model": model})
    assert model[0].load_count == 1
    assert torch.equal(model[0].weight, wanted)
