"""Tensors of which a resharder says what they hold of a global one: B25."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moonclip import Box, CheckpointManager, Incompatible, ItemSpec, Part, Sharding, Snapshot
from tests import workers


def padded(name: str, tensor: torch.Tensor) -> Sharding | None:
    """Rows beyond the vocabulary's ten are padding."""
    if name != "embedding":
        return None
    shape = (10, tensor.shape[1])
    return Sharding(shape, (Part(Box((0, 0), shape), (0, 0)),))


def turned(name: str, tensor: torch.Tensor) -> Sharding | None:
    """Both halves the other way round."""
    half = tensor.shape[0] // 2
    low, high = Box((0,), (half,)), Box((half,), (tensor.shape[0] - half,))
    return Sharding(tuple(tensor.shape), (Part(low, (tensor.shape[0] - half,)), Part(high, (0,))))


def test_b25_a_resharder_says_what_of_a_tensor_is_stored_and_where_it_comes_back(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, items={"model": ItemSpec(resharder=padded)}) as mgr:
        state = {"embedding": torch.arange(64.0).view(16, 4), "bias": torch.ones(3)}
        mgr.save(model=state)
        assert mgr.load()["model"]["embedding"].shape == (10, 4)
        wider = {"embedding": torch.full((12, 4), -1.0), "bias": torch.zeros(3)}
        assert mgr.load(into={"model": wider})["model"] is wider
    assert torch.equal(wider["embedding"][:10], state["embedding"][:10])
    assert (wider["embedding"][10:] == -1).all()
    assert torch.equal(wider["bias"], state["bias"])


def test_b25_a_resharder_may_order_a_tensor_otherwise_and_serves_modules_too(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 5)
    specs = {"model": ItemSpec(resharder=lambda name, tensor: turned(name, tensor) if name == "bias" else None)}
    with CheckpointManager(tmp_path, items=specs) as mgr:
        mgr.save(model=model)
        whole = mgr.load()["model"]["bias"]
        assert torch.equal(whole, torch.cat([model.bias[3:], model.bias[:3]]))
        fresh = torch.nn.Linear(3, 5)
        mgr.resume(model=fresh)
    assert torch.equal(fresh.bias, model.bias)
    assert torch.equal(fresh.weight, model.weight)
    with CheckpointManager(tmp_path) as mgr:
        plain = torch.zeros(5)
        mgr.load(into={"model": {"bias": plain}}, names=["bias"])
    assert torch.equal(plain, whole)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (3, "its resharder answers with a int; give a Sharding or None"),
        (
            Sharding((4,), (Part(Box((0,), (4,)), (2,)),)),
            r"\[0:4\] would begin at \[2\] of the rank's own tensor of shape",
        ),
        (Sharding((8,), (Part(Box((0,), (4,)), (0,)),)), r"nobody has \[4:8\] of shape \[8\]"),
        (
            Sharding((8,), (Part(Box((0,), (4,)), (0,)), Part(Box((4,), (4,)), (0,)))),
            "in one place of the rank's own tensor",
        ),
    ],
)
def test_b25_a_resharder_that_makes_no_sense_is_refused_with_the_tensors_name(
    tmp_path: Path, answer: Any, message: str
) -> None:
    with CheckpointManager(tmp_path, items={"model": ItemSpec(resharder=lambda *_: answer)}) as mgr:
        with pytest.raises(Incompatible, match=f"model::w.*{message}"):
            mgr.save(model={"w": torch.zeros(4)})
        assert mgr.list_snapshots() == []


def test_b25_a_resharder_is_not_asked_for_what_arrays_and_sparse_tensors_are_made_of(tmp_path: Path) -> None:
    asked: list[str] = []

    def halves_exchanged(name: str, tensor: torch.Tensor) -> Sharding | None:
        asked.append(name)
        return turned(name, tensor)

    with CheckpointManager(tmp_path, items={"model": ItemSpec(resharder=halves_exchanged)}) as mgr:
        state = {"array": np.arange(4.0), "sparse": torch.tensor([0.0, 1, 0, 2]).to_sparse(), "w": torch.arange(4.0)}
        mgr.save(model=state)
        target = {"array": np.zeros(4), "sparse": torch.zeros(4).to_sparse(), "w": torch.zeros(4)}
        loaded = mgr.load(into={"model": target})["model"]
    assert asked == ["w", "w"]
    assert loaded["array"].tolist() == [0, 1, 2, 3]
    assert loaded["sparse"].to_dense().tolist() == [0, 1, 0, 2]
    assert torch.equal(loaded["w"], state["w"])


def test_b25_a_sharding_that_cannot_be_made_is_told_with_the_tensors_name(tmp_path: Path) -> None:
    specs = {"model": ItemSpec(resharder=lambda *_: Sharding((3,), (Part(Box((0,), (4,)), (0,)),)))}
    with (
        CheckpointManager(tmp_path, items=specs) as mgr,
        pytest.raises(Incompatible, match=r"^model::w: \[0:4\] reaches outside of shape \[3\]"),
    ):
        mgr.save(model={"w": torch.zeros(4)})


def test_b25_two_parts_in_one_place_of_a_target_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as mgr:
        mgr.save(model={"w": torch.arange(8.0)})
    parts = (Part(Box((0,), (4,)), (0,)), Part(Box((4,), (4,)), (2,)))
    target = torch.full((6,), -1.0)
    with (
        CheckpointManager(tmp_path, items={"model": ItemSpec(resharder=lambda *_: Sharding((8,), parts))}) as mgr,
        pytest.raises(Incompatible, match="model::w: two boxes would lie in one place"),
    ):
        mgr.load(into={"model": {"w": target}})
    assert (target == -1).all()


def test_b25_an_object_that_takes_its_state_whole_cannot_be_resharded(tmp_path: Path) -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(4))])
    with CheckpointManager(tmp_path, items={"optimizer": ItemSpec(resharder=turned)}) as mgr:
        mgr.save(optimizer=optimizer)
        with pytest.raises(
            Incompatible, match=r"optimizer: its object takes its state whole.* give its state_dict\(\)"
        ):
            mgr.load(into={"optimizer": optimizer})
        state = optimizer.state_dict()
        assert mgr.load(into={"optimizer": state})["optimizer"] is state


def test_b25_ranks_without_torch_distributed_are_resharded_checked_and_announced_as_well(tmp_path: Path) -> None:
    whole = torch.arange(70_000.0)
    seen: list[tuple[str, int | None]] = []

    def held(rank: int) -> ItemSpec:
        box = Box((rank * 30_000,), (30_000 + rank * 10_000,))
        return ItemSpec(required=True, resharder=lambda *_: Sharding((70_000,), (Part(box, (0,)),)))

    def check(snapshot: Snapshot) -> None:
        workers.require_no_save(tmp_path)
        seen.append(("before", snapshot.step))

    with (
        CheckpointManager(
            tmp_path,
            items={"model": held(0)},
            pre_finalize=check,
            finalize=lambda snapshot: seen.append(("after", snapshot.step)),
        ) as first,
        CheckpointManager(tmp_path, items={"model": held(1)}) as second,
    ):
        snapshot = first.create_snapshot(4, world_size=2)
        with pytest.raises(Incompatible, match="model: required, and missing in the save"):
            second.save_rank(snapshot, 1, {"other": 1})
        first.save_rank(snapshot, 0, {"model": {"w": whole[:30_000]}})
        second.save_rank(snapshot, 1, {"model": {"w": whole[30_000:]}})
        commit = first.finalize_snapshot(snapshot)
        assert seen == [("before", 4), ("after", 4)]
        target = torch.zeros(40_000)
        second.load(commit, into={"model": {"w": target}})
        assert torch.equal(target, whole[30_000:])
        assert torch.equal(first.load()["model"]["w"], whole)
