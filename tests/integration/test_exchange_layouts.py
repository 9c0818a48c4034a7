"""A commit as plain files, one for each item, in the format that its layout says."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from moonclip import CheckpointManager, Conflict, Corrupt, Incompatible, ItemSpec, Layout, NotFound, Unsafe
from moonclip.exchange.layouts import export_directory
from moonclip.sharding.layouts import Layout as Shards
from moonclip.sharding.layouts import Split
from store.format.values import Tagged
from store.repository import Repository
from tests.resharding import reshard
from tests.stores import commit, damage, item
from tests.workers import no_large_file

MODEL = {"w": torch.arange(600.0).view(20, 30), "b": torch.ones(3, dtype=torch.bfloat16)}
CONFIG = {"name": "größe", "sizes": [1, 2.5, None, True], "nested": {"a": []}}
OPTIMIZER = {"state": {0: {"exp_avg": torch.randn(40)}}, "param_groups": [{"betas": (0.9, 0.99)}]}


@pytest.fixture
def mgr(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(tmp_path / "store", async_save=False) as mgr:
        mgr.save(
            step=1,
            model=MODEL,
            optimizer=OPTIMIZER,
            config=CONFIG,
            blob=b"\x00\x01\xff",
            text="as it was\n",
            dice=torch.arange(300, dtype=torch.uint8),
        )
        yield mgr


def export(mgr: CheckpointManager, path: Path, layouts: dict[str, Layout], **more: Any) -> Any:
    return mgr.export("main", path, format="dir", items=list(layouts), layouts=layouts, **more)


def names(path: Path) -> list[str]:
    return sorted(str(each.relative_to(path)) for each in path.rglob("*") if each.is_file())


def test_b17_each_layout_round_trips_at_its_path(mgr: CheckpointManager, tmp_path: Path) -> None:
    layouts = {
        "model": Layout("safetensors", "weights/model.safetensors"),
        "optimizer": Layout("torch", "weights/optimizer.pt"),
        "config": Layout("json"),
        "blob": Layout("raw"),
        "text": Layout("raw", "notes.txt"),
        "dice": Layout("raw", "dice.bin"),
    }
    written = export(mgr, tmp_path / "out", layouts)
    assert set(written.items) == set(layouts)
    out = tmp_path / "out"
    assert names(out) == [
        "blob.bin",
        "config.json",
        "dice.bin",
        "notes.txt",
        "weights/model.safetensors",
        "weights/optimizer.pt",
    ]
    assert written.size_bytes == sum((out / name).stat().st_size for name in names(out))
    loaded = load_file(out / "weights" / "model.safetensors")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in MODEL.items())
    optimizer = torch.load(out / "weights" / "optimizer.pt", weights_only=True)
    assert optimizer["param_groups"] == OPTIMIZER["param_groups"]
    assert torch.equal(optimizer["state"][0]["exp_avg"], OPTIMIZER["state"][0]["exp_avg"])  # type: ignore[call-overload]
    assert json.loads((out / "config.json").read_text()) == CONFIG
    assert (out / "blob.bin").read_bytes() == b"\x00\x01\xff"
    assert (out / "notes.txt").read_text() == "as it was\n"
    assert (out / "dice.bin").read_bytes() == bytes(torch.arange(300, dtype=torch.uint8).tolist())


@pytest.mark.parametrize("path", ["../out.pt", "/tmp/out.pt", "a/../../out.pt", "", ".", "..", "a\0b", "a\\b"])
def test_b17_a_path_that_leaves_the_directory_is_refused(path: str) -> None:
    with pytest.raises(Incompatible, match="no path of a file below"):
        Layout("torch", path)


@pytest.mark.parametrize(("one", "other"), [("a.pt", "a.pt"), ("a.pt", "./a.pt"), ("a.pt", "A.PT"), ("a", "a/b")])
def test_b17_a_path_that_is_used_twice_is_refused_before_anything_is_written(
    mgr: CheckpointManager, tmp_path: Path, one: str, other: str
) -> None:
    layouts = {"model": Layout("torch", one), "optimizer": Layout("torch", other)}
    with pytest.raises(Incompatible, match="would"):
        export(mgr, tmp_path / "out", layouts)
    assert not (tmp_path / "out").exists()


def test_b17_a_link_does_not_lead_out_of_the_directory(mgr: CheckpointManager, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Incompatible, match="leads out of"):
        export(mgr, tmp_path / "out", {"model": Layout("torch", "sub/model.pt")})
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "kind", "why"),
    [
        ("model", "json", "has tensors"),
        ("blob", "json", "JSON has no form"),
        ("model", "raw", "has tensors"),
        ("config", "raw", "is a dict"),
        ("optimizer", "safetensors", "is no tensor"),
    ],
)
def test_b17_what_a_format_cannot_hold_is_refused_and_nothing_is_written(
    mgr: CheckpointManager, tmp_path: Path, name: str, kind: Any, why: str
) -> None:
    with pytest.raises(Incompatible, match=why):
        export(mgr, tmp_path / "out", {"text": Layout("raw"), name: Layout(kind)})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [1, float("nan")]}, "x/a/1 is nan"),
        ({"a": {"b": b"x"}}, "x/a/b is b'x'"),
        ({1: 2}, "x has 1 for a key"),
        ({"a": {3}}, r"x/a is \{3\}"),
    ],
)
def test_b17_json_loses_nothing(mgr: CheckpointManager, tmp_path: Path, value: Any, where: str) -> None:
    mgr.save("value", {"x": value})
    with pytest.raises(Incompatible, match=where):
        mgr.export("value", tmp_path / "out", format="dir", layouts={"x": Layout("json")})


def test_items_that_nothing_was_said_of_are_written_by_torch(mgr: CheckpointManager, tmp_path: Path) -> None:
    mgr.export("main", tmp_path / "out", format="dir", items=["model", "config"], layouts={"config": Layout("json")})
    assert names(tmp_path / "out") == ["config.json", "model.pt"]
    assert torch.equal(torch.load(tmp_path / "out" / "model.pt", weights_only=True)["w"], MODEL["w"])


def test_b17_layouts_may_be_the_managers(mgr: CheckpointManager, tmp_path: Path) -> None:
    specs = {"model": ItemSpec(layout=Layout("safetensors")), "unsaved": ItemSpec(layout=Layout("json"))}
    with CheckpointManager(tmp_path / "store", items=specs) as other:
        other.export(
            "main", tmp_path / "out", format="dir", items=["model", "config"], layouts={"config": Layout("json")}
        )
        assert names(tmp_path / "out") == ["config.json", "model.safetensors"]
        other.export("main", tmp_path / "model.pt", items="model")


def test_files_that_exist_are_replaced_only_when_asked_and_others_stay(mgr: CheckpointManager, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "text.bin").write_text("what was there before")
    (out / "mine.txt").write_text("mine")
    with pytest.raises(Conflict, match=r"text\.bin exists"):
        export(mgr, out, {"text": Layout("raw"), "blob": Layout("raw")})
    assert names(out) == ["mine.txt", "text.bin"]
    export(mgr, out, {"text": Layout("raw")}, overwrite=True)
    assert (names(out), (out / "text.bin").read_text()) == (["mine.txt", "text.bin"], "as it was\n")


def test_b17_what_is_in_the_way_is_told_before_anything_is_written(mgr: CheckpointManager, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "model.pt").mkdir(parents=True)
    (out / "file").write_bytes(b"mine")
    os.mkfifo(out / "text.pt")
    before = names(out)
    for path in ("model.pt", "file/model.pt", "text.pt"):
        with pytest.raises(Conflict, match="is in the way: it is no"):
            export(mgr, out, {"config": Layout("json"), "model": Layout("torch", path)}, overwrite=True)
    with pytest.raises(OSError, match="File name too long"):
        export(mgr, out, {"config": Layout("json"), "model": Layout("torch", "m" * 300)})
    with pytest.raises(Conflict, match="file is in the way: it is no directory"):
        export(mgr, out / "file", {"config": Layout("json")})
    assert names(out) == before


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_a_file_never_takes_the_place_of_a_pipe_or_directory(mgr: CheckpointManager, tmp_path: Path, kind: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "taken").mkdir()
    for name in ("pipe", "taken"):
        with pytest.raises(Conflict, match=f"{name} is in the way"):
            mgr.export("main", tmp_path / name, format=kind, items="model", overwrite=True)
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_a_name_may_be_as_long_as_the_disk_takes(mgr: CheckpointManager, tmp_path: Path, kind: Any) -> None:
    written = mgr.export("main", tmp_path / f"{'m' * (254 - len(kind))}.{kind}", format=kind, items="model")
    assert written.path.stat().st_size == written.size_bytes


@pytest.mark.parametrize("kind", ["pt", "dcp", "dir"])
def test_c1_a_full_disk_is_what_is_told_and_what_was_there_stays(
    mgr: CheckpointManager, tmp_path: Path, kind: Any
) -> None:
    mgr.save(step=2, model={"w": torch.zeros(1 << 20)})
    mgr.export("step:1", tmp_path / "out", format=kind)
    before = {path: path.read_bytes() for path in tmp_path.rglob("out*/*")}
    with no_large_file(os.getpid()), pytest.raises(OSError, match="File too large"):
        mgr.export("step:2", tmp_path / "out", format=kind, overwrite=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("out*/*")} == before


@pytest.mark.parametrize("kind", ["pt", "dcp", "dir"])
def test_a8_a_dtype_that_torch_cannot_write_is_told(mgr: CheckpointManager, tmp_path: Path, kind: Any) -> None:
    mgr.save(step=2, model={"w": torch.zeros(4, dtype=torch.uint8).view(torch.uint4)})
    with pytest.raises(Incompatible, match=r"cannot be written by torch\.save: .*uint4"):
        mgr.export("main", tmp_path / "out", format=kind)
    assert not (tmp_path / "out").exists()


def test_b31_tensors_of_two_items_that_would_get_one_name_are_refused(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "other", async_save=False) as mgr:
        mgr.save("tag", {"a::b": {"c": torch.zeros(1)}, "a": {"b::c": torch.ones(1)}})
        with pytest.raises(Incompatible, match="two tensors would be named a::b::c"):
            mgr.export("main", tmp_path / "m.safetensors")
    assert not (tmp_path / "m.safetensors").exists()


def test_what_is_not_there(mgr: CheckpointManager, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no item 'nothing'"):
        mgr.export("main", tmp_path / "out", format="dir", layouts={"nothing": Layout("torch")})
    with pytest.raises(Incompatible, match="for the format dir only"):
        mgr.export("main", tmp_path / "out.pt", layouts={"model": Layout("torch")})
    with pytest.raises(Incompatible, match="a format is one of"):
        mgr.export("main", tmp_path / "out.pt", format="zip")  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_a17_a_pickle_is_not_run_and_nothing_is_written(mgr: CheckpointManager, tmp_path: Path) -> None:
    with Repository.open(tmp_path / "store") as repo:
        made = commit(repo, items=[item("x", {}, {"v": Tagged("pickle", ("os.system", b"cos\nsystem\n(S'ran'\ntR."))})])
        with pytest.raises(Unsafe):
            export_directory(repo, repo.commit(made), {"x": Layout("torch")}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_chunk_leaves_what_was_there(mgr: CheckpointManager, tmp_path: Path) -> None:
    export(mgr, tmp_path / "out", {"model": Layout("safetensors"), "dice": Layout("raw")})
    before = {name: (tmp_path / "out" / name).read_bytes() for name in names(tmp_path / "out")}
    damage(tmp_path / "store", "w", "main")
    with pytest.raises(Corrupt):
        export(mgr, tmp_path / "out", {"dice": Layout("raw"), "model": Layout("safetensors")}, overwrite=True)
    assert {name: (tmp_path / "out" / name).read_bytes() for name in names(tmp_path / "out")} == before
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_from_a_commit_that_ranks_made_in_windows(mgr: CheckpointManager, tmp_path: Path) -> None:
    columns = (Split(1),)
    reshard(tmp_path / "store", lambda _, entry: Shards(entry.shape, (4,), columns) if len(entry.shape) == 2 else None)
    with Repository.open(tmp_path / "store") as repo:
        made = repo.commit(repo.resolve("main"))
        layouts = {"model": Layout("safetensors"), "dice": Layout("raw")}
        export_directory(repo, made, layouts, tmp_path / "out", window_bytes=70)
    loaded = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in MODEL.items())
    assert len((tmp_path / "out" / "dice.bin").read_bytes()) == 300
