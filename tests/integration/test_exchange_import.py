"""Files of torch.save and safetensors, as commits."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from moonclip import CheckpointManager, Conflict, Corrupt, Incompatible, Layout, Unsafe
from moonclip.exchange.importing import Wanted, import_files
from moonclip.exchange.ranges import Ranges
from moonclip.exchange.sources import Source, items_of, telling, tensor_bytes
from moonclip.exchange.tensorinputs import input_of
from moonclip.state.tensors import TensorSource
from store.disk.files import Files
from store.repository import Repository
from store.saving.inputs import MadeInput

Import = Callable[..., Any]


@pytest.fixture
def imported(tmp_path: Path) -> Import:
    """Import sources, and load what came of it."""

    def run(*sources: Source | Path, ranges: Ranges | None = None) -> Any:
        listed = [each if isinstance(each, Source) else Source(each) for each in sources]
        with CheckpointManager(tmp_path / "store", async_save=False) as mgr:
            with Repository.open(tmp_path / "store") as repo:
                import_files(repo, items_of(listed, ranges or Ranges(Files())), Wanted(listed, "main"))
            return mgr.load("main")

    return run


def saved(path: Path, state: Any, **more: Any) -> Path:
    torch.save(state, path, **more)
    return path


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(left, right)


# --- torch.save -----------------------------------------------------------------------------------------------------


def test_a_state_dict_is_a_model(imported: Import, tmp_path: Path) -> None:
    model = nn.Linear(30, 20)
    loaded = imported(saved(tmp_path / "model.pt", model.state_dict()))
    assert list(loaded) == ["model"]
    assert same(loaded["model"]["weight"], model.weight.detach())
    assert type(loaded["model"]) is type(model.state_dict())
    with CheckpointManager(tmp_path / "store") as mgr:
        fresh = nn.Linear(30, 20)
        mgr.resume(model=fresh)
        assert same(fresh.weight.detach(), model.weight.detach())


def test_a_training_state_is_its_items(imported: Import, tmp_path: Path) -> None:
    model = nn.Linear(30, 20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    model(torch.ones(30)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "rng": torch.get_rng_state()}
    loaded = imported(saved(tmp_path / "step_3.pt", state))
    assert list(loaded) == ["epoch", "model", "optimizer", "rng"]
    assert loaded["epoch"] == 3
    assert loaded["optimizer"]["param_groups"] == optimizer.state_dict()["param_groups"]
    assert same(loaded["optimizer"]["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])


def test_an_optimizers_state_and_anything_else_is_one_item(imported: Import, tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    loaded = imported(
        saved(tmp_path / "o.pt", optimizer.state_dict()), Source(saved(tmp_path / "x.pt", [1, 2]), "list")
    )
    assert loaded == {"optimizer": optimizer.state_dict(), "list": [1, 2]}


def test_extra_state_makes_no_items_of_a_model(imported: Import, tmp_path: Path) -> None:
    state = {"fc.weight": torch.ones(3), "fc._extra_state": {"scale": 2}}
    assert list(imported(saved(tmp_path / "m.pt", state))) == ["model"]


def test_a_checkpoint_of_values_only(imported: Import, tmp_path: Path) -> None:
    assert imported(saved(tmp_path / "v.pt", {"epoch": 3, "loss": 0.5})) == {"epoch": 3, "loss": 0.5}


def strided() -> dict[str, torch.Tensor]:
    """Tensors that do not lie in C order, or share memory, larger than a chunk among them."""
    base = torch.randn(1500, 1100)
    return {
        "transposed": base.t(),
        "sliced": base[::3, 100:200],
        "expanded": torch.arange(50.0)[:, None].expand(50, 60),
        "shared": base,
        "scalar": base[3, 4],
        "conj": torch.randn(70, 30, dtype=torch.complex64).conj(),
        "flipped": torch.randn(40, 2, 30).permute(2, 0, 1),
        "empty": torch.empty(0, 5),
        "bool": torch.tensor([True, False] * 200),
        "sparse": torch.eye(30).to_sparse(),
        "parameter": nn.Parameter(torch.randn(100)),
    }


def plain(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.to_dense() if tensor.is_sparse else tensor).detach().resolve_conj()


@pytest.mark.parametrize("is_zip", [True, False])
def test_however_tensors_lie(imported: Import, tmp_path: Path, is_zip: bool) -> None:
    state = strided()
    loaded = imported(saved(tmp_path / "m.pt", state, _use_new_zipfile_serialization=is_zip))["model"]
    assert list(loaded) == list(state)
    assert [name for name, tensor in state.items() if not same(plain(loaded[name]), plain(tensor))] == []


def test_a8_dtypes_that_only_zips_have(imported: Import, tmp_path: Path) -> None:
    state = {"u": torch.zeros(100, dtype=torch.uint16), "f": torch.arange(300.0).to(torch.float8_e4m3fn)}
    loaded = imported(saved(tmp_path / "m.pt", state))["model"]
    assert loaded["u"].dtype == torch.uint16
    assert same(loaded["f"].view(torch.uint8), state["f"].view(torch.uint8))


def test_a2_tied_tensors_stay_tied_and_views_take_their_own_bytes(imported: Import, tmp_path: Path) -> None:
    big = torch.randn(100_000)
    path = saved(tmp_path / "m.pt", {"a": big[:100], "b": big[:100], "c": big[50:60]})
    sources = [Source(path)]
    assert tensor_bytes(items_of(sources, Ranges(Files()))) == 840
    loaded = imported(path)["model"]
    assert loaded["a"].data_ptr() == loaded["b"].data_ptr()
    assert same(loaded["c"], big[50:60])


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


@pytest.mark.parametrize("is_zip", [True, False])
def test_a17_a_file_that_would_run_something_is_refused_and_nothing_runs(
    imported: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_zip: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    path = saved(tmp_path / "m.pt", {"a": torch.ones(3), "b": Evil()}, _use_new_zipfile_serialization=is_zip)
    with pytest.raises(Unsafe, match=r"posix\.mkdir.*nothing was run"):
        imported(path)
    with pytest.raises(Unsafe, match=r"torch\.nn\.modules\.linear\.Linear"):
        imported(saved(path, nn.Linear(1, 1)))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("data", [b"", b"nothing", b"PK\x03\x04", b"\x80\x02", b"PK" + bytes(1000)])
def test_files_of_nothing_known(imported: Import, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.pt").write_bytes(data)
    with pytest.raises((Corrupt, Unsafe)):
        imported(tmp_path / "m.pt")


def test_a_file_that_is_cut_off(imported: Import, tmp_path: Path) -> None:
    path = saved(tmp_path / "m.pt", {"a": torch.randn(1000)})
    whole = path.read_bytes()
    for at in range(0, len(whole), 501):
        path.write_bytes(whole[:at])
        with pytest.raises((Corrupt, Unsafe)):
            items_of([Source(path)], Ranges(Files()))


def test_what_cannot_be_kept_is_named(imported: Import, tmp_path: Path) -> None:
    with pytest.raises(Incompatible, match="model: 'a'"):
        imported(saved(tmp_path / "m.pt", {"a": torch.ones(2, device="meta")}))


def test_f10_a_zip_that_unpacks_to_more_is_refused(imported: Import, tmp_path: Path) -> None:
    path = saved(tmp_path / "m.pt", {"a": torch.zeros(1 << 20)})
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(tmp_path / "z.pt", "w", zipfile.ZIP_DEFLATED) as packed:
        for info in whole.infolist():
            packed.writestr(info.filename, whole.read(info))
    with pytest.raises(Corrupt, match="its content is compressed; unpack it"):
        imported(tmp_path / "z.pt")


def test_f10_a_small_file_of_lists_in_lists_does_not_unfold(imported: Import, tmp_path: Path) -> None:
    state: list[Any] = [1]
    for _ in range(12):
        state = [state] * 10
    with pytest.raises(Corrupt, match="123 values that unfold to 2,1"):
        imported(saved(tmp_path / "m.pt", {"a": torch.ones(1), "x": state}))


def test_f10_tensors_of_next_to_no_bytes_do_not_unfold(imported: Import, tmp_path: Path) -> None:
    mask = torch.ones(1, 300).expand(300, 300)
    assert same(imported(saved(tmp_path / "m.pt", {"w": torch.ones(1), "mask": mask}))["model"]["mask"], mask)
    for huge in ([torch.ones(1).expand(1 << 40)], [torch.ones(1).expand(1 << 26) for _ in range(5)]):
        with pytest.raises(Corrupt, match="more of them again"):
            imported(saved(tmp_path / "m.pt", {"w": torch.ones(1), "x": huge}))


def test_what_is_asked_of_a_tensor_is_all_that_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []

    def copy_into(source: TensorSource, out: memoryview, original: Any = TensorSource.copy_into) -> None:
        copied.append(len(out))
        original(source, out)

    monkeypatch.setattr(TensorSource, "copy_into", copy_into)
    tensor = torch.arange(2 * 3 * 50 * 40, dtype=torch.int16).view(40, 50, 3, 2).permute(3, 2, 1, 0)
    expected = tensor.contiguous().numpy().tobytes()
    entry = input_of("model", tensor).entries[""]
    assert isinstance(entry, MadeInput)
    for start, stop in ((0, len(expected)), (2, 4), (78, 8082), (11_998, 12_002), (3, 3)):
        copied.clear()
        assert entry.make(start, stop) == expected[start:stop]
        assert sum(copied) == stop - start
    wide = input_of("model", torch.ones(1, dtype=torch.int8).expand(1, 1 << 45)).entries[""]
    assert isinstance(wide, MadeInput)
    assert wide.make(1 << 44, (1 << 44) + 5) == b"\1" * 5


def test_arrays_in_files_of_torch(imported: Import, tmp_path: Path) -> None:
    array = np.arange(6.0).reshape(2, 3)
    with torch.serialization.safe_globals([np._core.multiarray._reconstruct, np.ndarray, np.dtype, type(array.dtype)]):
        loaded = imported(saved(tmp_path / "m.pt", {"a": array, "b": torch.ones(2)}))
    assert np.array_equal(loaded["model"]["a"], array)


# --- safetensors ----------------------------------------------------------------------------------------------------


def test_a_file_and_a_directory_of_files(imported: Import, tmp_path: Path) -> None:
    state = {"w": torch.randn(1200, 1000), "b": torch.randn(7).to(torch.bfloat16), "0": torch.empty(0, 3)}
    save_file(state, tmp_path / "m.safetensors")
    ranges = Ranges(Files())
    loaded = imported(tmp_path / "m.safetensors", ranges=ranges)
    assert loaded.keys() == {"model"}
    assert loaded["model"].keys() == state.keys()
    assert all(same(loaded["model"][name], tensor) for name, tensor in state.items())
    assert ranges.largest_read_bytes <= 4 << 20
    assert ranges.read_bytes == sum(tensor.nbytes for tensor in state.values())
    with CheckpointManager(tmp_path / "store") as mgr:
        mgr.export("main", tmp_path / "hf", format="hf", max_shard_size="1MB")
    again = imported(Source(tmp_path / "hf", "base"))
    assert again.keys() == {"base"}
    assert all(same(again["base"][name], tensor) for name, tensor in state.items())


def test_items_come_back_from_our_own_file(imported: Import, tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "first", async_save=False) as mgr:
        mgr.save(model={"w": torch.ones(3)}, ema={"w": torch.zeros(3)})
        mgr.export("main", tmp_path / "all.safetensors")
    loaded = imported(tmp_path / "all.safetensors")
    assert (loaded["model"]["w"].tolist(), loaded["ema"]["w"].tolist()) == ([1, 1, 1], [0, 0, 0])


@pytest.mark.parametrize("kind", ["safetensors", "hf", "dcp", "pt", "dir"])
def test_b31_names_come_back_whatever_is_in_them(imported: Import, tmp_path: Path, kind: Any) -> None:
    names = ["a/b", "a::b", "~x", "", "..", ".", "ü\n", "1", "x" * 300, "a.b", "model"]
    state = {name: torch.tensor([float(number)]) for number, name in enumerate(names)}
    layouts = {"model": Layout("safetensors", "out.safetensors")} if kind == "dir" else {}
    path = tmp_path / {"safetensors": "out.safetensors", "pt": "out.pt"}.get(kind, "out")
    with CheckpointManager(tmp_path / "first", async_save=False) as mgr:
        mgr.save(model=state)
        mgr.export("main", path, format=kind, items="model", layouts=layouts)
    loaded = imported(Source(path, "model"))["model"]
    assert {name: tensor.tolist() for name, tensor in loaded.items()} == {n: t.tolist() for n, t in state.items()}


def test_a_file_that_breaks_while_it_is_read_leaves_no_commit(tmp_path: Path) -> None:
    save_file({"w": torch.randn(1000)}, tmp_path / "m.safetensors")
    sources = [Source(tmp_path / "m.safetensors")]
    with Repository.init(tmp_path / "store") as repo:
        items = items_of(sources, Ranges(Files()))
        os.truncate(tmp_path / "m.safetensors", 2000)
        with pytest.raises(Corrupt, match="ends at byte 2000"):
            import_files(repo, items, Wanted(sources, "main"))
        assert repo.refs.list() == {}


# --- together -------------------------------------------------------------------------------------------------------


def test_several_sources_are_one_commit_after_what_was_there(imported: Import, tmp_path: Path) -> None:
    save_file({"w": torch.ones(3)}, tmp_path / "m.safetensors")
    extra = saved(tmp_path / "x.pt", {"epoch": 3})
    imported(tmp_path / "m.safetensors")
    loaded = imported(tmp_path / "m.safetensors", extra)
    assert loaded["epoch"] == 3
    with CheckpointManager(tmp_path / "store") as mgr:
        newest, oldest = mgr.log()
        assert newest.message == "Import of m.safetensors, x.pt"
        assert oldest.message == "Import of m.safetensors"


def test_an_item_twice_and_none_are_refused(imported: Import, tmp_path: Path) -> None:
    save_file({"w": torch.ones(3)}, tmp_path / "m.safetensors")
    with pytest.raises(Incompatible, match=r"two items 'model'"):
        imported(tmp_path / "m.safetensors", saved(tmp_path / "m.pt", {"w": torch.ones(3)}))
    save_file({}, tmp_path / "none.safetensors")
    with pytest.raises(Incompatible, match="nothing to import"):
        imported(tmp_path / "none.safetensors")
    (tmp_path / "directory").mkdir()
    with pytest.raises(Incompatible, match="no checkpoint that is known"):
        imported(tmp_path / "directory")


def test_a_branch_that_moved_meanwhile(tmp_path: Path) -> None:
    save_file({"w": torch.ones(300)}, tmp_path / "m.safetensors")
    sources = [Source(tmp_path / "m.safetensors")]
    with CheckpointManager(tmp_path / "store", async_save=False) as mgr, Repository.open(tmp_path / "store") as repo:
        items = items_of(sources, Ranges(Files()))

        def interfere(_: int) -> None:
            if not repo.refs.list():
                mgr.save(step=1, other=1)

        with pytest.raises(Conflict):
            import_files(repo, telling(items, interfere), Wanted(sources, "main"))


def test_how_far_it_is_is_told(tmp_path: Path) -> None:
    save_file({"w": torch.randn(2000, 1000), "b": torch.ones(2)}, tmp_path / "m.safetensors")
    sources, told = [Source(tmp_path / "m.safetensors")], []
    with Repository.init(tmp_path / "store") as repo:
        items = items_of(sources, Ranges(Files()))
        import_files(repo, telling(items, told.append), Wanted(sources, "main", step=4, message="said"))
        row = repo.commit(repo.resolve("main"))
    assert sum(told) == tensor_bytes(items) == 8_000_008
    assert max(told) <= 4 << 20
    assert (row.step, row.message) == (4, "said")
    assert all(isinstance(given, MadeInput) for given in items[0].entries.values() if hasattr(given, "shape"))
