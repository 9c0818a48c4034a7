"""torch's distributed checkpointing on a store, in one process: what is saved, what it is called, what comes back."""

import enum
import gc
import io
import pickle
from collections import OrderedDict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import CheckpointException, DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.planner import LoadPlan, WriteItem
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

from moonclip import CheckpointManager
from moonclip.dcp import StorageReader, StorageWriter
from moonclip.dcp.ids import step_of, tag_of
from moonclip.dcp.kept import _kept, forget
from store.errors import Conflict, Incompatible, NotFound, Unsafe
from store.fsck import fsck
from store.repository import Repository

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:TypedStorage is deprecated")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "store"
    for _, root, branch in list(_kept):
        forget(root, branch)


def save(state: dict[str, Any], root: Path, name: str | Path | None = None, **options: Any) -> str:
    """A commit's id, by a writer that is made for this save."""
    planner = options.pop("planner", None)
    metadata = dcp.save(state, checkpoint_id=name, storage_writer=StorageWriter(root, **options), planner=planner)
    return str(metadata.storage_data)


def load(state: dict[str, Any], root: Path, rev: str | None = None, **options: Any) -> dict[str, Any]:
    planner = options.pop("planner", None)
    dcp.load(state, storage_reader=StorageReader(root, rev, **options), planner=planner)
    return state


def failure(error: pytest.ExceptionInfo[BaseException], rank: int = 0) -> BaseException:
    assert isinstance(error.value, CheckpointException)
    return error.value.failures[rank][0]


def network(width: int = 300) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(width, 400), nn.ReLU(), nn.Linear(400, 7))


def stored_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / "packs").iterdir())


def tree_ids(root: Path, rev: str) -> dict[str, Any]:
    with Repository.open(root) as repo:
        return dict(repo.commit(repo.resolve(rev)).items)


class Counter:
    """Something with a state."""

    def __init__(self, at: int) -> None:
        self.at = at

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "history": torch.arange(self.at)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Color(enum.Enum):
    RED = 1


# --- what is in the commit ----------------------------------------------------------------------------------------


def test_a_commit_made_through_torch_is_the_one_that_a_manager_makes(root: Path) -> None:
    state = {
        "model": dict(network().state_dict()),
        "schedule": {"lr": 0.1, "milestones": [1, 2], "nested": {"deep": None}},
        "mixed": {"list": [torch.arange(3), {"x": 1, "y": torch.ones(600)}], "empty": [], "text": "a/b~c"},
        "step": 7,
        "pair": (torch.ones(2), 3),
        "root": torch.arange(5.0),
    }
    made = save(state, root)
    with CheckpointManager(root) as mgr:
        loaded = mgr.load(made)
        assert repr(sorted(loaded.items())) == repr(sorted(state.items()))
        same = mgr.save(None, state).result(60)
    assert tree_ids(root, same) == tree_ids(root, made)


def test_any_commit_of_a_manager_can_be_loaded_through_torch(root: Path) -> None:
    model = network()
    with CheckpointManager(root) as mgr:
        array = np.arange(6).reshape(2, 3)
        mgr.save("first", {"model": model, "extra": {"lr": 0.5, 3: [1, 2], "t": (torch.ones(3), array)}, "n": 4})
        mgr.flush()
    target = network().requires_grad_(requires_grad=True)
    nn.init.zeros_(target[0].weight)
    address = target[0].weight.data_ptr()
    loaded = load({"model": target.state_dict(), "extra": {"lr": 0.0, "3": None, "t": None}, "n": 0}, root, "first")
    assert target[0].weight.data_ptr() == address
    torch.testing.assert_close(dict(target.state_dict()), dict(model.state_dict()), rtol=0, atol=0)
    assert (loaded["n"], loaded["extra"]["lr"], loaded["extra"]["3"]) == (4, 0.5, [1, 2])
    assert torch.equal(loaded["extra"]["t"][0], torch.ones(3))
    assert np.array_equal(loaded["extra"]["t"][1], np.arange(6).reshape(2, 3))
    whole = _load_state_dict_from_keys(storage_reader=StorageReader(root, "first"))
    torch.testing.assert_close(whole["model"], dict(model.state_dict()), rtol=0, atol=0)


def test_a_modules_state_dict_that_is_saved_as_it_is_becomes_the_item_model(root: Path) -> None:
    model = network()
    save({**model.state_dict(), "train_state": {"step": 3}}, root, "flat")
    with CheckpointManager(root) as mgr:
        assert set(mgr.load("flat")) == {"model", "train_state"}
        other = network()
        nn.init.zeros_(other[0].weight)
        mgr.load("flat", into={"model": other})
        assert torch.equal(other[0].weight, model[0].weight)
    loaded = load({name: torch.zeros_like(each) for name, each in model.state_dict().items()}, root, "flat")
    assert torch.equal(loaded["0.weight"], model[0].weight)


def test_tied_and_shared_parameters_are_stored_once(root: Path) -> None:
    shared = torch.randn(1000, 300)
    before = save({"model": {"a": shared}}, root)
    size = stored_bytes(root)
    save({"model": {"a": shared, "b": shared, "c": shared.clone()}}, root)
    assert stored_bytes(root) - size < shared.nbytes // 50
    loaded = load({"model": {"b": torch.zeros(1000, 300), "c": torch.zeros(1000, 300)}}, root)
    assert torch.equal(loaded["model"]["b"], shared) and torch.equal(loaded["model"]["c"], shared)
    assert len(before) == 64


def test_every_kind_of_plain_tensor_comes_back(root: Path) -> None:
    base = torch.arange(24).reshape(4, 6)
    state = {
        "t": {
            "transposed": base.t(),
            "strided": base[:, ::2],
            "expanded": torch.ones(1, 3).expand(2, 3),
            "scalar": torch.tensor(1.5),
            "none": torch.empty(0, 3),
            "complex": torch.randn(4, dtype=torch.complex64),
            "conj": torch.randn(4, dtype=torch.complex64).conj(),
            "bool": torch.tensor([True, False]),
            "bf16": torch.randn(500).bfloat16(),
            "fp8": torch.randn(500).to(torch.float8_e4m3fn),
            "u16": torch.arange(5).to(torch.uint16),
            "parameter": nn.Parameter(torch.randn(3)),
        }
    }
    save(state, root)
    targets = {"t": {name: torch.zeros(each.shape, dtype=each.dtype) for name, each in state["t"].items()}}
    loaded = load(targets, root)["t"]
    for name, each in state["t"].items():
        plain = each.detach().resolve_conj().contiguous()
        assert torch.equal(
            loaded[name].view(torch.uint8) if name == "fp8" else loaded[name],
            plain.view(torch.uint8) if name == "fp8" else plain,
        ), name


def test_tensors_in_what_torch_takes_for_one_object(root: Path) -> None:
    x = torch.arange(300.0)
    state = {
        "t": {
            "tuple": (x, [x * 2, "n"], {"deep": (x * 3,)}),
            "deque": deque([x * 4, 1], maxlen=5),
            "slice": slice(x * 6, None),
            "array": np.arange(500),
            "both": (np.arange(3.0), x),
        }
    }
    save(state, root)
    loaded = load({"t": dict.fromkeys(state["t"])}, root)
    assert repr(loaded) == repr(state)


def test_objects_with_a_state_and_what_is_no_tensor(root: Path) -> None:
    state = {
        "counter": Counter(5),
        "values": {"np": np.float32(2.5), "color": Color.RED, "size": torch.Size([2]), "set": {1, 2}},
    }
    save(state, root)
    fresh = {"counter": Counter(5), "values": {"np": None, "color": None, "size": None, "set": None}}
    fresh["counter"].at = 5
    loaded = load(fresh, root)
    assert loaded["counter"].at == 5
    assert loaded["values"] == {"np": np.float32(2.5), "color": Color.RED, "size": torch.Size([2]), "set": {1, 2}}


def test_a_state_that_is_not_flattened_is_an_item_for_each_key(root: Path) -> None:
    state = {"model": {"w": torch.randn(300), "n": [1, {"b": torch.ones(2)}]}, "a.b": torch.arange(3), "k": 1}
    save(state, root, planner=DefaultSavePlanner(flatten_state_dict=False))
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    target: dict[str, Any] = {"model": None, "a.b": torch.zeros(3, dtype=torch.int64), "k": None}
    loaded = load(target, root, planner=planner)
    torch.testing.assert_close(loaded, state, rtol=0, atol=0)
    with CheckpointManager(root) as mgr:
        torch.testing.assert_close(mgr.load(), state, rtol=0, atol=0)


# --- the next save ------------------------------------------------------------------------------------------------


def test_the_next_save_stores_what_changed_whatever_object_makes_it(root: Path) -> None:
    state = {
        "model": {"frozen": torch.randn(1000, 600), "tuned": torch.randn(1000, 600)},
        "blob": bytes(range(256)) * 4096,
    }
    save(state, root)
    size = stored_bytes(root)
    with torch.no_grad():
        state["model"]["tuned"][:500] += 1e-4
    written = pickle.loads(pickle.dumps(StorageWriter(root)))
    dcp.save(state, storage_writer=written)
    grown = stored_bytes(root) - size
    assert grown < state["model"]["tuned"].nbytes // 2
    dcp.save(state, storage_writer=written)
    assert stored_bytes(root) - size - grown < 4096
    loaded = load({"model": {"tuned": torch.zeros(1000, 600)}}, root)
    assert torch.equal(loaded["model"]["tuned"], state["model"]["tuned"])


def test_a_new_process_stores_against_what_the_branch_holds(root: Path) -> None:
    state = {"model": {"frozen": torch.randn(1000, 600)}, "step": 1}
    save(state, root)
    size = stored_bytes(root)
    StorageWriter(root).close()
    assert not _kept
    save({**state, "step": 2}, root)
    assert stored_bytes(root) - size < 8192


def test_saves_go_to_their_branch_and_take_up_what_others_committed(root: Path) -> None:
    first = save({"step": 1}, root)
    with CheckpointManager(root) as mgr:
        between = mgr.save(None, {"step": 2}).result(60)
    last = save({"step": 3}, root)
    other = save({"step": 9}, root, branch="other")
    with Repository.open(root) as repo:
        parents = [repo.commit(repo.resolve(each)).parents for each in (last, between, other)]
        assert [[each.hex() for each in found] for found in parents] == [[between], [first], []]
        assert fsck(repo, full=True).clean
    assert load({"step": 0}, root, branch="other")["step"] == 9
    assert load({"step": 0}, root, "main~1")["step"] == 2


# --- ids ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "tag", "step"),
    [
        ("step-100", "step-100", 100),
        (Path("/data/run1/checkpoint/step_7"), "data/run1/checkpoint/step_7", 7),
        ("./outputs/step-10/", "outputs/step-10", 10),
        ("../up/epoch=1-step=12", "up/epoch=1-step=12", 12),
        ("nightly", "nightly", None),
        ("overstep-3", "overstep-3", None),
        ("run/step-x", "run/step-x", None),
    ],
)
def test_an_id_becomes_a_tag_and_its_end_a_step(given: str | Path, tag: str, step: int | None) -> None:
    assert tag_of(given) == tag
    assert step_of(tag) == step
    assert StorageWriter.validate_checkpoint_id(given)


@pytest.mark.parametrize("given", ["", ".", "..", "/", "a b", "x~1", "a/.hidden", "b.lock"])
def test_an_id_that_can_be_no_tag_is_refused(root: Path, given: str) -> None:
    assert not StorageWriter.validate_checkpoint_id(given)
    with pytest.raises(CheckpointException) as caught:
        save({"step": 1}, root, given)
    assert isinstance(failure(caught), Incompatible)
    assert not root.exists()


def test_an_id_that_exists_is_refused_before_anything_is_written(root: Path) -> None:
    made = save({"step": 1}, root, "run/step-5")
    before = sorted(root.rglob("*"))
    with pytest.raises(CheckpointException) as caught:
        save({"step": 2, "more": torch.randn(500)}, root, "./run/step-5")
    assert isinstance(failure(caught), Conflict)
    assert sorted(root.rglob("*")) == before
    state = {"step": 0}
    dcp.load(state, checkpoint_id=Path("run/step-5"), storage_reader=StorageReader(root))
    assert state == {"step": 1}
    moved = save({"step": 2}, root, "run/step-5", overwrite=True)
    assert moved != made
    dcp.load(state, checkpoint_id="run/step-5", storage_reader=StorageReader(root))
    assert state == {"step": 2}
    dcp.load(state, checkpoint_id=made[:12], storage_reader=StorageReader(root))
    assert state == {"step": 1}
    with Repository.open(root) as repo:
        assert repo.commit(repo.resolve("run/step-5")).step == 5
    with pytest.raises(CheckpointException) as caught:
        dcp.load(state, checkpoint_id="run/step-6", storage_reader=StorageReader(root))
    assert "run/step-6" in str(failure(caught))


def test_b15_a_save_that_was_refused_costs_the_next_one_nothing(root: Path) -> None:
    state = {"model": {"w": torch.randn(1000, 300)}}
    save(state, root, "taken")
    with pytest.raises(CheckpointException):
        save(state, root, "taken")
    size = stored_bytes(root)
    save(state, root)
    assert stored_bytes(root) - size < 4096


def test_ranks_that_do_not_talk_are_one_process_here(root: Path) -> None:
    dcp.save({"step": 1}, storage_writer=StorageWriter(root), use_collectives=False)
    assert load({"step": 0}, root)["step"] == 1


def test_an_id_is_that_of_one_save(root: Path) -> None:
    writer = StorageWriter(root)
    dcp.save({"step": 1}, checkpoint_id="only", storage_writer=writer)
    dcp.save({"step": 2}, storage_writer=writer)
    assert load({"step": 0}, root, "only")["step"] == 1
    assert load({"step": 0}, root)["step"] == 2


# --- what is refused ----------------------------------------------------------------------------------------------


class Opaque:
    """Nothing that could be kept without pickle."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque)

    __hash__ = None  # type: ignore[assignment]


class Foreign(DefaultSavePlanner):
    """A planner that makes its archives itself."""

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:  # noqa: A002
        if isinstance(object, bytes):
            return io.BytesIO(object)
        return super().transform_object(write_item, object)  # type: ignore[no-untyped-call]


def refusal(state: dict[str, Any], root: Path, **options: Any) -> tuple[type[BaseException], str]:
    """Why a state is not saved; nothing is committed, and the next save works."""
    with pytest.raises(CheckpointException) as caught:
        save(state, root, **options)
    error = failure(caught)
    told = type(error), str(error)
    del error, caught  # they keep alive what they came from
    gc.collect()
    save({"step": 1}, root)
    with Repository.open(root) as repo:
        assert len(list(repo.log([repo.resolve("main")]))) == 1
        assert fsck(repo, full=True).clean
        assert not any(repo.layout.parts.iterdir())
    return told


def test_what_could_only_be_pickled_is_refused_unless_asked_for(root: Path) -> None:
    kind, text = refusal({"a": {"b": Opaque()}}, root)
    assert kind is Incompatible
    assert "a.b" in text and "Opaque" in text
    save({"a": {"b": Opaque()}, "c": Opaque(), "d": 1}, root, allow=[f"{__name__}.Opaque"])
    for state in ({"a": {"b": None}}, {"c": None, "d": 0}):
        with pytest.raises(CheckpointException, match="Unsafe"):
            load(state, root)
    assert load({"d": 0}, root)["d"] == 1
    assert load({"a": {"b": None}}, root, allow=[f"{__name__}.Opaque"])["a"]["b"] == Opaque()


def test_archives_of_a_planner_of_ones_own_are_opened_without_running_code(root: Path) -> None:
    state = {"a": {"plain": [1, "x", {"k": torch.ones(2)}], "t": (OrderedDict(k=torch.ones(2)), 3), "b": 2.5}}
    save(state, root, planner=Foreign())
    with CheckpointManager(root) as mgr:
        assert repr(mgr.load()["a"]) == repr(state["a"])
    assert refusal({"a": Opaque()}, root / "two", planner=Foreign())[0] is Unsafe
    assert refusal({"a": b"no archive"}, root / "three", planner=Foreign())[0] is Incompatible
    for torn in (b"PK\x03\x04torn", archive_of([1, torch.ones(99)])[:-99]):
        kind, text = refusal({"a": torn}, root / f"torn{len(torn)}", planner=Foreign())
        assert kind is Incompatible
        assert "a: the planner gives an archive that torch.load cannot read" in text
    for number, trusted in enumerate(({"allow_pickle": True}, {"allow": [f"{__name__}.Opaque"]})):
        save({"a": Opaque()}, root / f"two{number}", planner=Foreign(), **trusted)
        assert load({"a": None}, root / f"two{number}", **trusted)["a"] == Opaque()
    assert Opaque not in torch.serialization.get_safe_globals()


def archive_of(value: object) -> bytes:
    archive = io.BytesIO()
    torch.save(value, archive)
    return archive.getvalue()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(),
        torch.empty(3, device="meta"),
    ],
    ids=["sparse", "meta"],
)
def test_b32_tensors_that_are_not_plain_are_refused_by_name(root: Path, tensor: torch.Tensor) -> None:
    kind, text = refusal({"model": {"odd": tensor, "w": torch.ones(300)}}, root)
    assert kind is Incompatible
    assert "model.odd" in text


def test_names_that_torch_takes_for_one_are_told(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        mgr.save(None, {"a": {"b.c": 1, "b": {"c": torch.ones(2)}}}).result(60)
    with pytest.raises(Incompatible, match="takes for one"):
        StorageReader(root).read_metadata()


# --- loading ------------------------------------------------------------------------------------------------------


def test_missing_names_and_other_sizes_are_told_and_nothing_is_altered(root: Path) -> None:
    save({"model": {"w": torch.ones(4, 4)}}, root)
    target = torch.zeros(4, 5)
    for state, word in (({"model": {"w": target}}, "Size mismatch"), ({"model": {"x": target}}, "Missing key")):
        with pytest.raises(CheckpointException) as caught:
            load(state, root)
        assert word in str(failure(caught))
    assert not target.any()
    state = {"model": {"w": torch.zeros(4, 4), "x": target}}
    load(state, root, planner=DefaultLoadPlanner(allow_partial_load=True))
    assert state["model"]["w"].all() and not target.any()


def test_another_precision_is_cast_and_another_kind_of_number_refused(root: Path) -> None:
    save({"model": {"w": torch.randn(300)}}, root)
    half = torch.zeros(300, dtype=torch.bfloat16)
    whole = torch.zeros(300)
    load({"model": {"w": half}}, root)
    load({"model": {"w": whole}}, root)
    assert torch.equal(half, whole.bfloat16())
    target = torch.zeros(300, dtype=torch.int32)
    with pytest.raises(CheckpointException) as caught:
        load({"model": {"w": target}}, root)
    assert "another kind of number" in str(failure(caught))
    assert not target.any()


def test_targets_may_lie_in_any_way(root: Path) -> None:
    full = torch.randn(40, 30)
    save({"w": full}, root)
    columns = torch.zeros(40, 60)
    for target in (torch.zeros(30, 40).t(), columns[:, ::2], nn.Parameter(torch.zeros(40, 30))):
        version = target._version
        load({"w": target}, root)
        assert torch.equal(target, full)
        assert target._version > version
    assert not columns[:, 1::2].any()


def test_what_ranks_found_at_different_times_is_refused(root: Path) -> None:
    with pytest.raises(Conflict, match="different commits"):
        StorageReader(root).prepare_global_plan([LoadPlan([], "a" * 64), LoadPlan([], "b" * 64)])


def test_without_a_store_or_a_commit_there_is_nothing_to_load(root: Path) -> None:
    with pytest.raises(NotFound):
        StorageReader(root).read_metadata()
    Repository.init(root).close()
    with pytest.raises(NotFound):
        StorageReader(root).read_metadata()


# --- in the background --------------------------------------------------------------------------------------------


def test_an_async_save_in_a_thread_stores_what_was_when_it_was_called(root: Path) -> None:
    weight = torch.randn(500, 500)
    expected = weight.clone()
    future = dcp.async_save({"model": {"w": weight}}, checkpoint_id="step-1", storage_writer=StorageWriter(root))
    weight.zero_()
    metadata = future.result(60)
    assert torch.equal(
        load({"model": {"w": torch.zeros(500, 500)}}, root, metadata.storage_data)["model"]["w"], expected
    )


def test_saves_that_overlap_are_both_made(root: Path) -> None:
    states = [{"model": {"w": torch.full((500, 500), float(number))}} for number in range(4)]
    futures = [
        dcp.async_save(state, checkpoint_id=f"n{number}", storage_writer=StorageWriter(root, branch=f"b{number % 2}"))
        for number, state in enumerate(states[:2])
    ]
    for future in futures:
        future.result(60)
    for number in range(2):
        loaded = load({"model": {"w": torch.zeros(500, 500)}}, root, f"n{number}")
        assert torch.equal(loaded["model"]["w"], states[number]["model"]["w"])
    with Repository.open(root) as repo:
        assert fsck(repo, full=True).clean
