"""Directories as model hubs have them: written from any layout, and loaded straight into models, whole or sharded."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from moonclip import CheckpointManager, Conflict, Corrupt, Incompatible, Unsafe, load_files
from moonclip.exchange import hub
from moonclip.exchange.loading import load_ranges
from moonclip.exchange.ranges import Ranges
from moonclip.sharding.layouts import Layout, Split
from store.disk.files import Files
from store.repository import Repository
from tests import reads
from tests.dying import Dying
from tests.ranks import rank_of, spread
from tests.resharding import reshard
from tests.stores import damage

INDEX = "model.safetensors.index.json"


class Tied(nn.Module):
    """A model whose output weights are its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, 24)
        self.fc = nn.Linear(24, 24, dtype=torch.bfloat16)
        self.head = nn.Linear(24, 500, bias=False)
        self.head.weight = self.embed.weight


@pytest.fixture
def model() -> Tied:
    torch.manual_seed(1)
    return Tied()


@pytest.fixture
def mgr(tmp_path: Path, model: Tied) -> Iterator[CheckpointManager]:
    with CheckpointManager(tmp_path / "store", async_save=False) as mgr:
        mgr.save(step=1, model=model, optimizer={"lr": 0.5})
        yield mgr


def same(state: Any, other: Any) -> bool:
    return state.keys() == other.keys() and all(torch.equal(state[name], other[name]) for name in state)


def meta(kind: type[nn.Module] = Tied) -> Any:
    with torch.device("meta"):
        return kind()


# --- writing --------------------------------------------------------------------------------------------------------


def test_b25_one_file_if_it_fits(mgr: CheckpointManager, model: Tied, tmp_path: Path) -> None:
    written = mgr.export("main", tmp_path / "hf", format="hf")
    assert [path.name for path in (tmp_path / "hf").iterdir()] == ["model.safetensors"]
    assert (written.items, written.left_out) == (("model",), ())
    assert written.size_bytes == (tmp_path / "hf" / "model.safetensors").stat().st_size
    loaded = load_file(tmp_path / "hf" / "model.safetensors")
    assert loaded.keys() == {"embed.weight", "fc.weight", "fc.bias"}
    assert torch.equal(loaded["embed.weight"], model.embed.weight)


def test_names_of_one_tensor_are_written_once_and_noted_as_the_library_notes_them(
    mgr: CheckpointManager, tmp_path: Path
) -> None:
    assert mgr.export("main", tmp_path / "hf", format="hf").tied == {"head.weight": "embed.weight"}
    with safe_open(tmp_path / "hf" / "model.safetensors", "pt") as opened:
        assert opened.metadata()["head.weight"] == "embed.weight"
        assert opened.metadata()["format"] == "pt"


def test_b25_shards_and_their_index(mgr: CheckpointManager, model: Tied, tmp_path: Path) -> None:
    mgr.export("main", tmp_path / "hf", format="hf", max_shard_size="40kB")
    files = sorted(path.name for path in (tmp_path / "hf").iterdir())
    assert files == [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)] + [INDEX]
    index = json.loads((tmp_path / "hf" / INDEX).read_text())
    state = model.state_dict()
    del state["head.weight"]
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in state.values())
    assert list(index["weight_map"]) == sorted(state)
    loaded: dict[str, torch.Tensor] = {}
    for file in files[:2]:
        loaded |= load_file(tmp_path / "hf" / file)
        assert all(index["weight_map"][name] == file for name in load_file(tmp_path / "hf" / file))
    assert same(loaded, state)


def test_files_are_filled_in_order_and_a_large_tensor_gets_its_own() -> None:
    sizes = {"a": 4, "b": 4, "big": 50, "c": 6, "d": 5}
    shards = hub.planned(sizes, 10)
    assert list(shards.values()) == [["a", "b"], ["big"], ["c"], ["d"]]
    assert next(iter(shards)) == "model-00001-of-00004.safetensors"
    assert hub.planned(sizes, 69) == {"model.safetensors": list(sizes)}


@pytest.mark.parametrize("mesh", [(3,), (2, 2)])
def test_b25_a_commit_that_ranks_made(
    mgr: CheckpointManager, model: Tied, tmp_path: Path, mesh: tuple[int, ...]
) -> None:
    splits = (Split(0), Split(1))[: len(mesh)]
    reshard(
        tmp_path / "store",
        lambda _, entry: Layout(entry.shape, mesh, splits) if len(entry.shape) == 2 else None,
    )
    mgr.export("main", tmp_path / "hf", format="hf", max_shard_size=40_000)
    loaded = meta()
    load_files(tmp_path / "hf", into=loaded)
    assert same(loaded.state_dict(), model.state_dict())


def test_nested_names_are_joined_by_dots_and_what_would_be_one_is_refused(
    mgr: CheckpointManager, tmp_path: Path
) -> None:
    mgr.save("nested", {"x": {"a/b": torch.ones(1), "c": [torch.zeros(2), torch.ones(2)]}})
    mgr.export("nested", tmp_path / "hf", format="hf", items="x")
    assert load_file(tmp_path / "hf" / "model.safetensors").keys() == {"a/b", "c.0", "c.1"}
    mgr.save("double", {"x": {"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}})
    with pytest.raises(Incompatible, match=r"would both be named a\.b"):
        mgr.export("double", tmp_path / "other", format="hf", items="x")
    assert not (tmp_path / "other").exists()


def test_what_is_no_model_is_refused(mgr: CheckpointManager, tmp_path: Path) -> None:
    with pytest.raises(Incompatible, match="optimizer has no tensors"):
        mgr.export("main", tmp_path / "hf", format="hf", items="optimizer")
    with pytest.raises(Incompatible, match=r"holds one item, and there are .*name one"):
        mgr.export("main", tmp_path / "hf", format="hf", items="*")
    with pytest.raises(Incompatible, match="for the format hf only"):
        mgr.export("main", tmp_path / "x.pt", max_shard_size=5)
    assert not (tmp_path / "hf").exists()


# --- what is there already ------------------------------------------------------------------------------------------


def test_an_earlier_export_is_replaced_when_asked_and_other_files_stay(
    mgr: CheckpointManager, model: Tied, tmp_path: Path
) -> None:
    target = tmp_path / "hf"
    target.mkdir()
    (target / "config.json").write_text("{}")
    mgr.export("main", target, format="hf", max_shard_size="40kB")
    with pytest.raises(Conflict, match="--force"):
        mgr.export("main", target, format="hf")
    assert len(list(target.iterdir())) == 4
    mgr.export("main", target, format="hf", overwrite=True)
    assert sorted(path.name for path in target.iterdir()) == ["config.json", "model.safetensors"]
    mgr.export("main", target, format="hf", max_shard_size="40kB", overwrite=True)
    assert len(list(target.iterdir())) == 4
    assert same(load_files(target, into=meta()).state_dict(), model.state_dict())


def test_a_failed_export_leaves_what_was_there(mgr: CheckpointManager, model: Tied, tmp_path: Path) -> None:
    mgr.export("main", tmp_path / "hf", format="hf")
    before = (tmp_path / "hf" / "model.safetensors").read_bytes()
    damage(tmp_path / "store", "embed.weight", "main")
    with pytest.raises(Corrupt):
        mgr.export("main", tmp_path / "hf", format="hf", max_shard_size="40kB", overwrite=True)
    assert [(path.name, path.read_bytes()) for path in (tmp_path / "hf").iterdir()] == [("model.safetensors", before)]
    with pytest.raises(Corrupt):
        mgr.export("main", tmp_path / "new", format="hf")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("before", "after"), [(10**4, 10**4), (10**9, 10**4), (10**4, 10**9), (10**9, 10**9)])
def test_whoever_looks_finds_the_old_files_or_the_new_ones_or_none(tmp_path: Path, before: int, after: int) -> None:
    old, new = ({name: torch.full((30, 50), value) for name in "abcd"} for value in (1.0, 2.0))
    with CheckpointManager(tmp_path / "store", async_save=False) as mgr:
        mgr.save("old", {"model": old})
        mgr.save("new", {"model": new})
    seen = set()
    for changes in range(100):
        target = tmp_path / str(changes)
        disk = Dying(10**9)
        with Repository.open(tmp_path / "store", files=Files(disk)) as repo:
            commits = [repo.commit(repo.resolve(name)) for name in ("old", "new")]
            hub.write(target, repo, commits[0], "model", max_shard_bytes=before)
            disk.changes = changes
            with suppress(OSError):
                hub.write(target, repo, commits[1], "model", max_shard_bytes=after, overwrite=True)
        found = {name: torch.zeros(30, 50) for name in "abcd"}
        try:
            load_files(target, into=found)
        except Incompatible:  # nothing to begin with
            seen.add("none")
        else:
            assert same(found, old) or same(found, new)
            seen.add("old" if same(found, old) else "new")
        if disk.changes >= 0:
            break
    assert seen == ({"old", "new"} if after > before or before == after == 10**9 else {"old", "none", "new"})


def test_no_more_than_a_window_is_read_at_once(mgr: CheckpointManager, tmp_path: Path) -> None:
    mgr.save("large", {"model": {"w": torch.arange(300_000.0).view(300, 1000)}})
    with reads.counted() as asked, Repository.open(tmp_path / "store") as repo:
        commit = repo.commit(repo.resolve("large"))
        hub.write(tmp_path / "hf", repo, commit, "model", window_bytes=50_000)
    assert sum(asked) == 1_200_000
    assert max(asked) == 50_000


# --- loading --------------------------------------------------------------------------------------------------------


def test_b25_into_a_model_whatever_memory_it_has(mgr: CheckpointManager, model: Tied, tmp_path: Path) -> None:
    mgr.export("main", tmp_path / "hf", format="hf", max_shard_size="40kB")
    for target in (Tied(), meta()):
        assert load_files(str(tmp_path / "hf"), into=target) is target
        assert same(target.state_dict(), model.state_dict())
        assert target.head.weight is target.embed.weight
        assert isinstance(target.fc.weight, nn.Parameter)


def test_into_a_mapping_and_from_one_file(mgr: CheckpointManager, model: Tied, tmp_path: Path) -> None:
    mgr.export("main", tmp_path / "hf", format="hf")
    target = {"embed.weight": torch.zeros(500, 24), "other": torch.full((1,), 7.0)}
    weight = target["embed.weight"]
    load_files(tmp_path / "hf" / "model.safetensors", into=target, strict=False)
    assert target["embed.weight"] is weight
    assert torch.equal(weight, model.embed.weight)
    assert target["other"].item() == 7


def test_b7_what_does_not_fit_is_named_and_nothing_is_altered(mgr: CheckpointManager, tmp_path: Path) -> None:
    mgr.export("main", tmp_path / "hf", format="hf")
    target = meta()
    target.fc = nn.Linear(24, 25, device="meta")
    with pytest.raises(Incompatible) as refused:
        load_files(tmp_path / "hf", into=target)
    said = str(refused.value)
    assert "fc.weight: shape [24, 24] in the files, [25, 24] in the target" in said
    assert "fc.bias: shape" in said
    assert all(parameter.is_meta for parameter in target.parameters())


def test_dtypes_are_cast_only_if_asked(mgr: CheckpointManager, model: Tied, tmp_path: Path) -> None:
    mgr.export("main", tmp_path / "hf", format="hf")
    target = Tied().to(torch.float32)
    with pytest.raises(Incompatible, match="dtype bfloat16 in the files, float32 in the target"):
        load_files(tmp_path / "hf", into=target)
    load_files(tmp_path / "hf", into=target, strict=False)
    assert torch.equal(target.fc.weight, model.fc.weight.float())


LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[Placement, ...]]] = {
    "rows": ((4,), (Shard(0),)),
    "columns": ((3,), (Shard(1),)),
    "copies": ((2,), (Replicate(),)),
    "both": ((2, 2), (Shard(0), Shard(1))),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_b25_g10_each_rank_reads_what_it_holds(tmp_path: Path, name: str) -> None:
    mesh, placements = LAYOUTS[name]
    torch.manual_seed(2)
    full = torch.randn(1501, 1030)
    with CheckpointManager(tmp_path / "store", async_save=False) as mgr:
        mgr.save(model={"w": full, "b": torch.ones(3)})
        mgr.export("main", tmp_path / "hf", format="hf")
    for rank in range(torch.tensor(mesh).prod()):
        with rank_of(rank, *mesh) as device_mesh:
            target: dict[str, Any] = {"w": spread(torch.zeros_like(full), device_mesh, placements), "b": torch.zeros(3)}
            ranges = Ranges(Files())
            load_ranges(tmp_path / "hf", target, ranges, strict=True)
            assert isinstance(target["w"], DTensor)
            expected = spread(full, device_mesh, placements).to_local()
            assert torch.equal(target["w"].to_local(), expected)
            assert ranges.largest_read_bytes <= 4 << 20
            if placements == (Shard(0),):  # columns of rows that lie in C order are in every chunk
                assert ranges.read_bytes <= 1.1 * expected.nbytes + (4 << 20)


# --- what others give us --------------------------------------------------------------------------------------------


def file_of(path: Path, header: object, data: bytes = b"") -> Path:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    return path


def tensor(start: int, end: int, shape: Any = (1,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (b"", b""),
        (b"[]", b""),
        (b"{", b""),
        (b'{"w":' * 60_000, b""),
        (b'{"w": 1, "w": 2}', b""),
        ({"w": 3}, b""),
        ({"w": tensor(0, 4)}, b""),
        ({"w": tensor(0, 4)}, b"12345"),
        ({"w": tensor(4, 8)}, b"12345678"),
        ({"w": tensor(0, 4), "v": tensor(0, 4)}, b"1234"),
        ({"w": tensor(0, 4), "v": tensor(8, 12)}, b"123456789012"),
        ({"w": tensor(0, 4, (2,))}, b"1234"),
        ({"w": tensor(0, 4, (-1,))}, b"1234"),
        ({"w": tensor(0, 4, (True,))}, b"1234"),
        ({"w": tensor(0, 4, (1 << 70, 1 << 70))}, b"1234"),
        ({"w": tensor(4, 0)}, b"1234"),
        ({"w": tensor(0, 0, (0, 1 << 63))}, b""),
    ],
)
def test_files_that_are_not_whole(tmp_path: Path, header: Any, data: bytes) -> None:
    with pytest.raises(Corrupt, match="no whole safetensors file"):
        load_files(file_of(tmp_path / "x.safetensors", header, data), into={"w": torch.zeros(1)})


def test_a_header_that_is_longer_than_its_file_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    with pytest.raises(Corrupt, match="a header of"):
        load_files(tmp_path / "x.safetensors", into={})
    (tmp_path / "x.safetensors").write_bytes(b"123")
    with pytest.raises(Corrupt, match="a header of"):
        load_files(tmp_path / "x.safetensors", into={})


def test_dtypes_that_nobody_knows(tmp_path: Path) -> None:
    path = file_of(tmp_path / "x.safetensors", {"w": tensor(0, 4, (8,), "F4")}, b"1234")
    with pytest.raises(Incompatible, match="w is of dtype 'F4'"):
        load_files(path, into={"w": torch.zeros(8)})


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "a/../../x", "", ".", "..", "a\\b", "a\0b"])
def test_an_index_that_leads_elsewhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / INDEX).write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(Unsafe, match="no file beside it"):
        load_files(tmp_path / "hf", into={})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"w": 3}}', "[" * 100_000])
def test_an_index_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(Corrupt, match="no index of safetensors files"):
        load_files(tmp_path, into={})


def test_an_index_of_tensors_that_are_not_there(mgr: CheckpointManager, tmp_path: Path) -> None:
    mgr.export("main", tmp_path / "hf", format="hf", max_shard_size="40kB")
    index = json.loads((tmp_path / "hf" / INDEX).read_text())
    index["weight_map"]["more"] = "model-00001-of-00002.safetensors"
    (tmp_path / "hf" / INDEX).write_text(json.dumps(index))
    with pytest.raises(Corrupt, match="has no tensor 'more'"):
        load_files(tmp_path / "hf", into=meta())
    (tmp_path / "hf" / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError):
        load_files(tmp_path / "hf", into=meta())


def test_a_directory_of_nothing_known(tmp_path: Path) -> None:
    with pytest.raises(Incompatible, match="has neither"):
        load_files(tmp_path, into={})
    file_of(tmp_path / "model-00001-of-00002.safetensors", {"w": tensor(0, 4)}, b"1234")  # a shard is no model
    with pytest.raises(Incompatible, match="has neither"):
        load_files(tmp_path, into={})
    file_of(tmp_path / "adapter.safetensors", {"w": tensor(0, 4)}, b"1234")
    assert load_files(tmp_path, into={"w": torch.zeros(1)})["w"].numpy().tobytes() == b"1234"
