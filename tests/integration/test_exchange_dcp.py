"""Directories of torch.distributed.checkpoint: its own reader loads what we write, and we store what it wrote."""

import importlib
import io
import os
import pickle
import resource
import zipfile
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.tensor import Shard

from moonclip import CheckpointManager, Conflict, Corrupt, Incompatible, MoonclipError, Unsafe
from moonclip.exchange import dcppickle, dcpwriting, describing
from moonclip.exchange.importing import Wanted, import_files
from moonclip.exchange.ranges import Ranges
from moonclip.exchange.sources import Source, items_of
from moonclip.sharding.layouts import Layout, Split
from store.disk.files import Files
from store.repository import Repository
from store.saving.inputs import MadeInput
from tests import reads
from tests.ranks import rank_of, spread
from tests.resharding import reshard

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
Import = Callable[..., Any]
Point = namedtuple("Point", "x y")


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(40, 300), nn.Linear(300, 7))


def trained(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.25)
    model(torch.ones(2, 40)).square().mean().backward()
    optimizer.step()
    return optimizer


@pytest.fixture
def model() -> nn.Module:
    return network()


@pytest.fixture
def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return trained(model)


@pytest.fixture
def mgr(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(tmp_path / "store", async_save=False) as mgr:
        yield mgr


@pytest.fixture
def imported(tmp_path: Path) -> Import:
    """Import a path, and load what came of it."""

    def run(path: Path, item: str | None = None, ranges: Ranges | None = None) -> Any:
        with Repository.init(tmp_path / "imported") as repo:
            sources = [Source(path, item)]
            import_files(repo, items_of(sources, ranges or Ranges(Files())), Wanted(sources, "main"))
        with CheckpointManager(tmp_path / "imported") as mgr:
            return mgr.load("main")

    return run


def everything() -> dict[str, Any]:
    shared = torch.arange(100.0)
    return {
        "list": [shared, {"deep": torch.ones(3, dtype=torch.int64)}, 5],
        "tied": shared,
        "tuple": (1, torch.full((70,), 2.0)),
        "sparse": torch.eye(20).to_sparse(),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(3.5),
        "unsigned": torch.zeros(40, dtype=torch.uint16),
        "float8": torch.arange(40.0).to(torch.float8_e4m3fn),
        "complex": torch.arange(40.0).to(torch.complex64).mul(1j).conj(),
        "text": "as it was",
        "none": None,
        "betas": (0.9, 0.999),
    }


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.to_dense() if tensor.is_sparse else tensor.resolve_conj()
    return plain.contiguous().reshape(-1).view(torch.uint8)


def equal(left: Any, right: Any) -> bool:
    """Whether two states are the same, tensors bit for bit."""
    if isinstance(left, torch.Tensor):
        return (left.dtype, left.shape) == (right.dtype, right.shape) and torch.equal(bytes_of(left), bytes_of(right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right)


# --- writing --------------------------------------------------------------------------------------------------------


def test_torch_loads_what_we_write(
    mgr: CheckpointManager, model: nn.Module, optimizer: torch.optim.Optimizer, tmp_path: Path
) -> None:
    mgr.save(step=4, model=model, optimizer=optimizer, more={"epoch": 2, "rates": [0.5, 0.25]})
    mgr.export("main", tmp_path / "dcp", format="dcp")
    fresh = nn.Sequential(nn.Linear(40, 300), nn.Linear(300, 7))
    state = {"model": fresh.state_dict(), "optimizer": optimizer.state_dict(), "more": {"epoch": 0, "rates": [0.0]}}
    wanted = {**optimizer.state_dict()["state"][0]}
    for each in state["optimizer"]["state"].values():
        each["exp_avg"] = torch.zeros_like(each["exp_avg"])
    dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert equal(dict(fresh.state_dict()), dict(model.state_dict()))
    assert torch.equal(state["optimizer"]["state"][0]["exp_avg"], wanted["exp_avg"])
    assert state["more"] == {"epoch": 2, "rates": [0.5, 0.25]}


def test_torch_converts_what_we_write(mgr: CheckpointManager, tmp_path: Path) -> None:
    mgr.save("all", {"state": everything(), "step": 7})
    mgr.export("all", tmp_path / "dcp", format="dcp")
    dcp_to_torch_save(tmp_path / "dcp", tmp_path / "all.pt")
    assert equal(torch.load(tmp_path / "all.pt", weights_only=True), {"state": everything(), "step": 7})


def test_a_tensor_with_two_names_is_written_once(mgr: CheckpointManager, tmp_path: Path) -> None:
    weight = torch.randn(100_000)
    mgr.save("tied", {"model": {"a": weight, "b": weight}})
    written = mgr.export("tied", tmp_path / "dcp", format="dcp")
    assert written.size_bytes < 1.1 * weight.nbytes


def test_one_item_by_its_name_is_the_state_itself(mgr: CheckpointManager, model: nn.Module, tmp_path: Path) -> None:
    mgr.save(model=model, other=3)
    mgr.export("main", tmp_path / "dcp", format="dcp", items="model")
    state = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert equal(state, dict(model.state_dict()))


@pytest.mark.parametrize("mesh", [(3,), (2, 2)])
def test_what_ranks_saved_is_written_in_blocks_and_loads_into_shards(
    mgr: CheckpointManager, tmp_path: Path, mesh: tuple[int, ...]
) -> None:
    full = torch.randn(101, 70)
    mgr.save(model={"w": full, "b": torch.ones(2)})
    splits = (Split(0), Split(1))[: len(mesh)]
    reshard(tmp_path / "store", lambda _, entry: Layout(entry.shape, mesh, splits) if len(entry.shape) == 2 else None)
    with Repository.open(tmp_path / "store") as repo:
        commit = repo.commit(repo.resolve("main"))
        dcpwriting.write(tmp_path / "dcp", repo, commit, ["model"], block_bytes=2000)
    metadata = dcp.FileSystemReader(tmp_path / "dcp").read_metadata()
    chunks = metadata.state_dict_metadata["model.w"].chunks
    assert len(chunks) == 15  # of seven rows
    for rank in range(2):
        with rank_of(rank, 2) as device_mesh:
            state: Any = {"model": {"w": spread(torch.zeros_like(full), device_mesh, (Shard(1),)), "b": torch.zeros(2)}}
            dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
            assert torch.equal(state["model"]["w"].to_local(), full.chunk(2, 1)[rank])


def test_no_more_than_a_block_is_read_at_once(mgr: CheckpointManager, tmp_path: Path) -> None:
    """Rows are longer than a block."""
    mgr.save(model={"w": torch.arange(60_000.0).view(3, 4, 5000), "v": torch.arange(30_000.0)})
    with reads.counted() as asked, Repository.open(tmp_path / "store") as repo:
        commit = repo.commit(repo.resolve("main"))
        dcpwriting.write(tmp_path / "dcp", repo, commit, ["model"], block_bytes=9000)
    assert max(asked) <= 9000
    state = {"model": {"w": torch.zeros(3, 4, 5000), "v": torch.zeros(30_000)}}
    dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert torch.equal(state["model"]["w"], torch.arange(60_000.0).view(3, 4, 5000))
    assert torch.equal(state["model"]["v"], torch.arange(30_000.0))


def test_an_earlier_export_is_replaced_only_when_asked(mgr: CheckpointManager, tmp_path: Path) -> None:
    mgr.save(model={"w": torch.ones(100)})
    mgr.export("main", tmp_path / "dcp", format="dcp")
    (tmp_path / "dcp" / "notes.txt").write_text("mine")
    (tmp_path / "dcp" / "__1_0.distcp").write_text("what a second rank wrote before")
    with pytest.raises(Conflict):
        mgr.export("main", tmp_path / "dcp", format="dcp")
    mgr.export("main", tmp_path / "dcp", format="dcp", overwrite=True)
    assert sorted(path.name for path in (tmp_path / "dcp").iterdir()) == [".metadata", "__0_0.distcp", "notes.txt"]


def test_what_torch_cannot_tell_apart_or_hold_is_refused(mgr: CheckpointManager, tmp_path: Path) -> None:
    mgr.save("double", {"x": {"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}})
    with pytest.raises(Incompatible, match="tell all names apart"):
        mgr.export("double", tmp_path / "dcp", format="dcp")
    mgr.save("slice", {"x": {"s": slice(torch.ones(1), None)}})
    with pytest.raises(Incompatible, match="a slice with tensors"):
        mgr.export("slice", tmp_path / "dcp", format="dcp")
    assert not (tmp_path / "dcp").exists()


# --- reading --------------------------------------------------------------------------------------------------------


def saved_by_torch(path: Path, state: dict[str, Any]) -> Path:
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path, thread_count=2), no_dist=True)
    return path


def test_we_store_what_torch_wrote(imported: Import, tmp_path: Path) -> None:
    state = {"model": dict(network().state_dict()), "all": everything(), "step": 3, "x": {"t": torch.randn(9, 5).t()}}
    del state["all"]["sparse"]  # type: ignore[attr-defined]  # of which torch cannot write any
    assert equal(imported(saved_by_torch(tmp_path / "dcp", state)), state)


def test_we_store_what_we_wrote(mgr: CheckpointManager, imported: Import, tmp_path: Path) -> None:
    mgr.save("all", {"state": everything(), "step": 7})
    mgr.export("all", tmp_path / "dcp", format="dcp")
    assert equal(imported(tmp_path / "dcp"), {"state": everything(), "step": 7})


def test_an_optimizer_resumes_from_it(
    imported: Import, model: nn.Module, optimizer: torch.optim.Optimizer, tmp_path: Path
) -> None:
    """torch makes text of the numbers of parameters; they are numbers again."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    loaded = imported(saved_by_torch(tmp_path / "dcp", state))
    assert list(loaded["optimizer"]["state"]) == [0, 1, 2, 3]
    fresh = network()
    other = torch.optim.AdamW(fresh.parameters())
    with CheckpointManager(tmp_path / "imported") as mgr:
        mgr.resume(model=fresh, optimizer=other)
    assert other.param_groups[0]["lr"] == 0.25
    assert torch.equal(other.state[fresh[0].weight]["exp_avg"], optimizer.state[model[0].weight]["exp_avg"])


def test_a_state_without_nesting_is_a_model(imported: Import, model: nn.Module, tmp_path: Path) -> None:
    path = saved_by_torch(tmp_path / "dcp", dict(model.state_dict()))
    assert equal(imported(path), {"model": dict(model.state_dict())})


def test_an_item_may_be_named(imported: Import, tmp_path: Path) -> None:
    path = saved_by_torch(tmp_path / "dcp", {"ema": {"w": torch.ones(3)}})
    assert equal(imported(path, "shadow"), {"shadow": {"ema": {"w": torch.ones(3)}}})


def test_it_is_read_in_small_runs_each_once(imported: Import, tmp_path: Path) -> None:
    full = torch.randn(1100, 3000)
    path = saved_by_torch(tmp_path / "dcp", {"model": {"w": full, "b": torch.randn(5)}})
    ranges = Ranges(Files())
    assert torch.equal(imported(path, ranges=ranges)["model"]["w"], full)
    assert ranges.largest_read_bytes <= 4 << 20
    assert ranges.read_bytes == full.nbytes + 20


def test_what_does_not_lie_in_c_order_is_read_once(imported: Import, tmp_path: Path) -> None:
    full = torch.randn(1500, 1600).t()
    path = saved_by_torch(tmp_path / "dcp", {"model": {"w": full}})
    ranges = Ranges(Files())
    assert torch.equal(imported(path, ranges=ranges)["model"]["w"], full)
    assert ranges.read_bytes == full.nbytes


# --- what others give us --------------------------------------------------------------------------------------------


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def refusal(path: Path) -> MoonclipError:
    with pytest.raises((Unsafe, Corrupt, Incompatible)) as refused:
        items_of([Source(path)], Ranges(Files()))
    return refused.value


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return saved_by_torch(tmp_path / "dcp", {"model": {"w": torch.ones(40), "n": 3}})


def rewrite(directory: Path, change: Callable[[Any], Any]) -> None:
    metadata = dcp.FileSystemReader(directory).read_metadata()
    changed = change(metadata)
    (directory / ".metadata").write_bytes(pickle.dumps(metadata if changed is None else changed))


@pytest.mark.parametrize(
    "change",
    [
        lambda metadata: Evil(),
        lambda metadata: setattr(metadata, "planner_data", Evil()),
        lambda metadata: setattr(metadata, "storage_meta", Evil()),
        lambda metadata: metadata.state_dict_metadata.update({"x": Evil()}),
        lambda metadata: {"a": nn.Linear(1, 1)},
        lambda metadata: torch.ones(1),
    ],
)
def test_a17_metadata_that_would_run_something_is_refused_and_nothing_runs(
    directory: Path, tmp_path: Path, change: Callable[[Any], Any]
) -> None:
    rewrite(directory, change)
    error = refusal(directory)
    assert isinstance(error, Unsafe)
    assert "nothing was run" in str(error)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "name",
    ["builtins\neval", "os\nsystem", "torch\nload", "torch.serialization\nload", "pathlib\nos", "torch\nSize.mro"],
)
def test_a17_no_other_name_is_found(directory: Path, name: str) -> None:
    (directory / ".metadata").write_bytes(f"c{name}\n(Vx\ntR.".encode())
    assert isinstance(refusal(directory), Unsafe)


@pytest.mark.parametrize("name", sorted(".".join(name) for name in dcppickle._ALLOWED))
def test_f10_a_pickle_cannot_alter_what_it_names(directory: Path, name: str) -> None:
    """By BUILD a pickle sets attributes of whatever it has: of ``pathlib.PurePath.parts``, say, that a check reads."""
    module, _, attribute = name.rpartition(".")
    named = getattr(importlib.import_module(module), attribute, None) if module != "pathlib._local" else None
    ours = dcppickle._ALLOWED[module, attribute]
    for changed in ("parts", "is_absolute", "__eq__", "fqn", "__setattr__"):
        before = [getattr(each, changed, None) for each in (named, ours)]
        build = f"c{module}\n{attribute}\n(N(V{changed}\nValtered\ndtb."
        (directory / ".metadata").write_bytes(build.encode())
        assert isinstance(refusal(directory), Corrupt)
        assert [getattr(each, changed, None) for each in (named, ours)] == before


@pytest.mark.parametrize("asked", [b"r\xff\xff\xff\x7f", b"p4294967295\n", b"\x96" + (1 << 40).to_bytes(8, "little")])
def test_f10_a_pickle_of_a_few_bytes_takes_no_memory(directory: Path, asked: bytes) -> None:
    (directory / ".metadata").write_bytes(b"\x80\x05K\x01" + asked + b".")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert isinstance(refusal(directory), Corrupt)
    with pytest.raises(ValueError, match=r"pickle|bytes"):
        describing.described(b"\x80\x05K\x01" + asked + b".")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "KiB"


def test_f10_a_tensors_pickle_cannot_alter_what_it_names() -> None:
    for (module, name), built in describing._BUILT.items():
        before = vars(built) if hasattr(built, "__dict__") and not isinstance(built, type) else None
        assert before is None, f"{module}.{name} has attributes that a pickle could set"


def test_a17_a_value_that_would_run_something_is_refused_and_nothing_runs(directory: Path, tmp_path: Path) -> None:
    def change(metadata: Any) -> None:
        info = metadata.storage_data[MetadataIndex("model.n")]
        data = io.BytesIO()
        torch.save(Evil(), data)
        path = directory / info.relative_path
        info.offset, info.length = path.stat().st_size, len(data.getvalue())
        path.write_bytes(path.read_bytes() + data.getvalue())

    rewrite(directory, change)
    error = refusal(directory)
    assert isinstance(error, Unsafe)
    assert "model.n holds more than tensors" in str(error)
    assert not (tmp_path / "ran").exists()


def test_a17_a_tensor_that_would_run_something_is_refused_and_nothing_runs(directory: Path, tmp_path: Path) -> None:
    def change(metadata: Any) -> None:
        info = metadata.storage_data[MetadataIndex("model.w", [0])]
        data = io.BytesIO()
        torch.save(Evil(), data)
        path = directory / info.relative_path
        info.offset, info.length = path.stat().st_size, len(data.getvalue())
        path.write_bytes(path.read_bytes() + data.getvalue())

    rewrite(directory, change)
    items = items_of([Source(directory)], Ranges(Files()))  # torch has to read it, when its turn comes
    with pytest.raises(Unsafe), Repository.init(tmp_path / "store") as repo:
        import_files(repo, items, Wanted([Source(directory)], "main"))
    assert not (tmp_path / "ran").exists()


def put_in(directory: Path, data: bytes, size: int = 40) -> None:
    """Have an archive in the place of the model's tensor, and say that it holds so many elements."""

    def change(metadata: Any) -> None:
        info = metadata.storage_data[MetadataIndex("model.w", [0])]
        path = directory / info.relative_path
        info.offset, info.length = path.stat().st_size, len(data)
        path.write_bytes(path.read_bytes() + data)
        told = metadata.state_dict_metadata["model.w"]
        told.size = told.chunks[0].sizes = torch.Size([size])

    rewrite(directory, change)


def test_f10_sizes_that_hold_each_other_many_times_take_no_memory(directory: Path) -> None:
    nested = b"K\x01" + 24 * b"2\x86"  # each a pair of the one before
    start = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n("
    storage = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x28tQ"
    rest = b"K\x01\x85\x89ccollections\nOrderedDict\n)RtR."
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("x/data.pkl", start + storage + b"K\0" + nested + rest)
        archive.writestr("x/data/0", bytes(160))
    put_in(directory, data.getvalue())
    error = refusal(directory)
    assert isinstance(error, Corrupt)
    assert len(str(error)) < 1000


def test_f10_a_tensor_that_tells_its_elements_many_times_takes_no_memory(directory: Path, tmp_path: Path) -> None:
    data = io.BytesIO()
    torch.save(torch.ones(1).expand(1 << 29), data)
    put_in(directory, data.getvalue(), 1 << 29)
    items = items_of([Source(directory)], Ranges(Files()))
    with pytest.raises(Corrupt, match="more of them again"), Repository.init(tmp_path / "store") as repo:
        import_files(repo, items, Wanted([Source(directory)], "main"))


def info_of(metadata: Any, name: str = "model.n") -> Any:
    return next(info for index, info in metadata.storage_data.items() if index.fqn == name)


@pytest.mark.parametrize("path", ["../out.distcp", "/etc/passwd", "a/../../b", "", ".", "..", "a\0b"])
def test_files_elsewhere(directory: Path, path: str) -> None:
    rewrite(directory, lambda metadata: setattr(info_of(metadata), "relative_path", path))
    assert isinstance(refusal(directory), Unsafe)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a list": lambda metadata: [1],
    "no elements, and sizes that no reader takes": lambda metadata: setattr(
        metadata.state_dict_metadata["model.w"], "size", (0, 1 << 63)
    ),
    "no places": lambda metadata: setattr(metadata, "storage_data", None),
    "places of another kind": lambda metadata: setattr(metadata, "storage_data", 5),
    "entries of another kind": lambda metadata: setattr(metadata, "state_dict_metadata", [3]),
    "no entry": lambda metadata: metadata.state_dict_metadata.update({"model.n": None}),
    "paths of another kind": lambda metadata: setattr(metadata, "planner_data", {"model.n": 5}),
    "a path of lists": lambda metadata: setattr(metadata, "planner_data", {"model.n": (0, 1)}),
    "a negative place": lambda metadata: metadata.planner_data.update({"model.n": ("model", -1)}),
    "a place far away": lambda metadata: metadata.planner_data.update({"model.n": ("list", 10**12)}),
    "a deep path": lambda metadata: metadata.planner_data.update({"model.n": ("a",) * 100_000}),
    "no name": lambda metadata: metadata.state_dict_metadata.update({5: metadata.state_dict_metadata["model.n"]}),
    "an empty path": lambda metadata: metadata.planner_data.update({"model.n": ()}),
    "two at one place": lambda metadata: metadata.planner_data.update({"model.n": ("model", "w")}),
    "one below another": lambda metadata: metadata.planner_data.update({"model.n": ("model", "w", "n")}),
    "names and numbers": lambda metadata: metadata.planner_data.update({"model.n": ("model", 1)}),
    "a negative offset": lambda metadata: setattr(info_of(metadata), "offset", -1),
    "behind the end": lambda metadata: setattr(info_of(metadata), "length", 10**15),
    "no number": lambda metadata: setattr(info_of(metadata), "length", "5"),
    "no boxes": lambda metadata: metadata.state_dict_metadata["model.w"].chunks.clear(),
    "another size": lambda metadata: setattr(metadata.state_dict_metadata["model.w"], "size", torch.Size([41])),
    "a huge size": lambda metadata: setattr(metadata.state_dict_metadata["model.w"], "size", torch.Size([1 << 62] * 3)),
    "a tensor of a value": lambda metadata: vars(info_of(metadata, "model.w")).update(vars(info_of(metadata))),
    "another dtype": lambda metadata: setattr(
        metadata.state_dict_metadata["model.w"].properties, "dtype", torch.float16
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_metadata_that_cannot_be_is_refused(directory: Path, name: str) -> None:
    rewrite(directory, CHANGES[name])
    assert isinstance(refusal(directory), Corrupt)


def test_metadata_that_is_cut_off_or_flipped_raises_nothing_else(directory: Path) -> None:
    whole = (directory / ".metadata").read_bytes()
    for at in range(0, len(whole), 7):
        (directory / ".metadata").write_bytes(whole[:at])
        refusal(directory)
        flipped = bytearray(whole)
        flipped[at] ^= 0x55
        (directory / ".metadata").write_bytes(flipped)
        with suppress(MoonclipError, OSError):  # of another file's name, say
            items_of([Source(directory)], Ranges(Files()))


def test_tensors_that_are_flipped_raise_nothing_else(directory: Path) -> None:
    """A flipped byte of a zip's directory or pickle; content has no checksum that would be looked at."""
    path = next(path for path in directory.iterdir() if path.suffix == ".distcp" and path.stat().st_size)
    whole = path.read_bytes()
    for at in range(0, len(whole), 11):
        flipped = bytearray(whole)
        flipped[at] ^= 0x55
        path.write_bytes(flipped)
        with suppress(MoonclipError):
            for item in items_of([Source(directory)], Ranges(Files())):
                made = [given for given in item.entries.values() if isinstance(given, MadeInput)]
                assert [len(given.make(0, 160)) for given in made] == [160]


def test_files_that_were_transformed_are_refused(directory: Path) -> None:
    rewrite(directory, lambda metadata: setattr(info_of(metadata), "transform_descriptors", ["zstd"]))
    assert "written through an extension" in str(refusal(directory))


def test_a_file_that_is_gone(directory: Path) -> None:
    for path in directory.glob("*.distcp"):
        path.unlink()
    with pytest.raises(FileNotFoundError):
        items_of([Source(directory)], Ranges(Files()))


def test_an_ordered_dict_may_be_there(imported: Import, tmp_path: Path) -> None:
    path = saved_by_torch(tmp_path / "dcp", {"x": OrderedDict(a=torch.ones(2), b=OrderedDict(c=1))})
    assert equal(imported(path), {"x": {"a": torch.ones(2), "b": {"c": 1}}})
