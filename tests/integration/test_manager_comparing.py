"""The manager's ways to compare commits and to merge them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from moonclip import CheckpointManager, Conflict, Diff, Incompatible, NotFound


def model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(20, 20), torch.nn.BatchNorm1d(20))


@pytest.fixture
def mgr(tmp_path: Path) -> Iterator[CheckpointManager]:
    """A store with two lines that begin at one commit: ``main`` and ``other``."""
    with CheckpointManager(tmp_path / "checkpoints") as mgr:
        mgr.save(step=1, model=model(0), config={"lr": 0.1, "dtype": torch.float32})
        mgr.flush()
        mgr.branch("other")
        mgr.save(step=2, model=model(1), config={"lr": 0.1, "dtype": torch.float32})
        mgr.flush()
        mgr.switch("other")
        mgr.save(
            step=2,
            model=model(2),
            config={"lr": 0.2, "dtype": torch.bfloat16},
            metadata={"device": torch.device("cpu")},
        )
        mgr.switch("main")
        yield mgr


def test_diff(mgr: CheckpointManager) -> None:
    found = mgr.diff("main", "other")
    assert isinstance(found, Diff)
    assert (found.before, found.after) == (mgr.head, mgr.branches()["other"])
    config, weights = found.items
    assert [(each.name, each.keys, each.before, each.after) for each in config.values] == [
        ("", ("lr",), 0.1, 0.2),
        ("", ("dtype",), torch.float32, torch.bfloat16),
    ]
    (device,) = [change for change in found.header if change.name == "metadata"]
    assert (device.keys, device.after) == (("device",), torch.device("cpu"))
    one, other = model(1).state_dict(), model(2).state_dict()
    measured = {each.name: each.measures for each in weights.tensors}
    assert set(measured) == {name for name in one if not torch.equal(one[name], other[name])}
    for name, measures in measured.items():
        change, before = (other[name] - one[name]).double(), one[name].double()
        assert measures is not None
        assert measures.relative_l2 == pytest.approx((change.norm() / before.norm()).item(), rel=1e-6)
    assert found.stored_bytes > weights.tensors[0].stored_bytes > 0


def test_diff_with_the_tip_of_the_bound_branch(mgr: CheckpointManager) -> None:
    assert mgr.diff("main~1").after == mgr.head
    mgr.switch("other")
    assert mgr.diff("main").after == mgr.head


def test_diff_of_some_names_without_numbers(mgr: CheckpointManager) -> None:
    found = mgr.diff("main", "other", names="model::0.*", measured=False)
    assert [item.name for item in found.items] == ["model"]
    assert {tensor.name for tensor in found.items[0].tensors} == {"0.weight", "0.bias"}
    assert {tensor.measures for tensor in found.items[0].tensors} == {None}
    with pytest.raises(NotFound, match="'nothing'"):
        mgr.diff("main", "other", names=["0.weight", "nothing"])


def test_diff_waits_for_saves_under_way(mgr: CheckpointManager) -> None:
    mgr.save(step=3, model=model(1), config={"lr": 0.3})
    found = mgr.diff("main~1", "main")
    assert {item.name: item.status for item in found.items} == {"config": "changed", "model": "identical"}


def test_merge_and_go_on(mgr: CheckpointManager) -> None:
    merged = mgr.merge("main", "other", weights=[3, 1])
    assert mgr.head == merged
    target = model(9)
    mgr.load(into={"model": target})
    one, other, got = (each.state_dict() for each in (model(1), model(2), target))
    for name, tensor in got.items():
        if tensor.is_floating_point():
            assert torch.equal(tensor, (0.75 * one[name].double() + 0.25 * other[name].double()).float())
    snapshot = mgr.describe().snapshot
    assert snapshot.parents == (mgr.diff("main^1", "main").before, mgr.branches()["other"])
    assert (snapshot.metadata, snapshot.items) == ({"average": [0.75, 0.25]}, ("model",))
    assert mgr.resume(model=target) == 3
    later = mgr.save(step=3, model=target).result()
    assert mgr.describe(later).snapshot.parents == (merged,)
    assert mgr.fsck(full=True).findings == []


def test_merge_on_another_branch(mgr: CheckpointManager) -> None:
    before = mgr.head
    merged = mgr.merge("other", "main", "main~1", branch="soup")
    assert mgr.branches()["soup"] == merged
    assert mgr.head == before
    assert mgr.bound_branch == "main"
    mgr.save(step=3, model=model(3)).result()


def test_merge_that_is_refused(mgr: CheckpointManager) -> None:
    with pytest.raises(Conflict):
        mgr.merge("other", "main")
    with pytest.raises(Incompatible, match="config"):
        mgr.merge("main", "other", items="config")
    with pytest.raises(Incompatible, match="two commits"):
        mgr.merge("main")
    mgr.save(step=3, model=model(3)).result()


def test_merge_with_batches_tracked_unevenly(mgr: CheckpointManager) -> None:
    trained = model(4)
    trained(torch.ones(4, 20))
    mgr.save(step=3, model=trained).result()
    with pytest.raises(Incompatible, match="num_batches_tracked"):
        mgr.merge("main", "other")
    mgr.merge("main", "other", take_first=True)
    assert mgr.load()["model"]["1.num_batches_tracked"] == 1
