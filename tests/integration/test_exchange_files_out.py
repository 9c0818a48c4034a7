"""Files of a commit written again: which, over what, and what stops it."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from errno import EXDEV
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from moonclip import CheckpointManager, Conflict, Corrupt, Incompatible, NotFound, Pruned
from moonclip.exchange import filesout
from store.disk.files import Files
from store.repository import Repository
from tests.dying import Dying
from tests.modeldirs import awkward, digests, write_safetensors
from tests.mounting import make_read_only, small_file_system

Manager = CheckpointManager


@pytest.fixture
def mgr(tmp_path: Path) -> Iterator[Manager]:
    with CheckpointManager(tmp_path / "store", async_save=False) as made:
        yield made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def test_some_files_over_others_or_none(mgr: Manager, tmp_path: Path) -> None:
    directory = awkward(tmp_path / "in")
    mgr.import_model(directory, base=None)
    out = tmp_path / "out"
    written = mgr.export("main", out, files=["*.json", "model.gguf"])
    assert set(written.files) == {path for path in digests(directory) if path.endswith(".json")} | {"model.gguf"}
    with pytest.raises(Conflict, match="exists"):
        mgr.export("main", out, format="files")
    (out / "mine").touch()
    mgr.export("main", out, format="files", overwrite=True)
    assert digests(out) == digests(directory) | {"mine": digests(out)["mine"]}
    with pytest.raises(NotFound, match="no file 'nothing'"):
        mgr.export("main", tmp_path / "none", files="nothing")
    with pytest.raises(Incompatible, match="name files, not items"):
        mgr.export("main", tmp_path / "none", items="model", format="files")
    with pytest.raises(Incompatible, match="for the format files only"):
        mgr.export("main", tmp_path / "none", files="x", format="hf")
    mgr.save(step=1, model=3)
    with pytest.raises(Incompatible, match="no files that were stored with it"):
        mgr.export(None, tmp_path / "none", format="files")
    assert not (tmp_path / "none").exists()


def test_a_link_that_leads_out_is_not_followed(mgr: Manager, tmp_path: Path) -> None:
    mgr.import_model(awkward(tmp_path / "in"), base=None)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "2_Dense").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Incompatible, match="leads out of"):
        mgr.export("main", tmp_path / "out", format="files")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("path", ["../x", "/x", "a//b", "a/./b", "", "a\0b"])
def test_f10_a_store_of_anybody_writes_nothing_elsewhere(mgr: Manager, tmp_path: Path, path: str) -> None:
    from store.saving.inputs import ContainerInput, ItemInput, ValueInput
    from store.saving.saver import SaveRequest

    entries = {"": ContainerInput(0, "dict"), path or "a/": ValueInput(0, b"x")}
    commit = mgr._repo.save(SaveRequest([ItemInput("files", entries)], "main")).commit
    with pytest.raises(Incompatible, match="no path of a file"):
        filesout.write(tmp_path / "out", mgr._repo, mgr._repo.commit(commit))
    assert not (tmp_path / "out").exists()


def test_a_tensor_that_was_replaced_makes_no_other_file(mgr: Manager, model: Path, tmp_path: Path) -> None:
    save_file({"w": torch.ones(30_000)}, model / "model.safetensors")
    (model / "config.json").write_text("{}")
    mgr.import_model(model, base=None)
    loaded = mgr.load("main")
    loaded["model"]["w"][5] = 2
    mgr.save(step=1, **loaded)
    with pytest.raises(Corrupt, match=r"model\.safetensors does not have the SHA-256"):
        mgr.export("main", tmp_path / "out", format="files")
    assert not (tmp_path / "out").exists()
    mgr.save(step=2, files=loaded["files"], model={"w": torch.ones(3)})
    with pytest.raises(Corrupt, match="of model::w, which are not there"):
        mgr.export("main", tmp_path / "out", format="files")
    mgr.save(step=3, files=loaded["files"])
    with pytest.raises(NotFound, match="no item 'model'"):
        mgr.export("main", tmp_path / "out", format="files")


def test_what_was_pruned_is_told(mgr: Manager, model: Path, tmp_path: Path) -> None:
    save_file({"w": torch.ones(30_000)}, model / "model.safetensors")
    mgr.import_model(model, base=None)
    mgr.save(step=1, model=1)
    mgr.prune(items=["model"], older_than=1)
    with pytest.raises(Pruned):
        mgr.export("main~1", tmp_path / "out", format="files")
    assert not (tmp_path / "out").exists()


def test_safetensors_of_any_damage_are_kept_as_they_are(mgr: Manager, model: Path) -> None:
    data = [("a", "F32", (20_000,), os.urandom(80_000)), ("b", "F32", (5,), os.urandom(20))]
    place = {"dtype": "F32", "shape": [20_000], "data_offsets": [0, 80_000]}
    write_safetensors(model / "overlap.safetensors", data, header={"a": place, "b": {**place}})
    write_safetensors(
        model / "hole.safetensors", data, header={"b": {**place, "shape": [5], "data_offsets": [80_000, 80_020]}}
    )
    write_safetensors(model / "type.safetensors", data, header={"a": {**place, "dtype": 3}})
    (model / "short.safetensors").write_bytes(b"\x09")
    made = mgr.import_model(model, base=None)
    assert made.kept.keys() == {f"{name}.safetensors" for name in ("overlap", "hole", "type", "short")}
    mgr.export("main", model.parent / "out")
    assert digests(model.parent / "out") == digests(model)


def test_whoever_looks_finds_the_old_model_or_the_new_one_or_none(mgr: Manager, model: Path, tmp_path: Path) -> None:
    for version in (b"1", b"2"):
        for name in ("config.json", "a.txt", "z.txt"):
            (model / name).write_bytes(version)
        save_file({"w": torch.full((3000,), float(version))}, model / "model.safetensors")
        mgr.import_model(model, branch=f"v{version.decode()}", base=None)
    outcomes: set[str] = set()
    for changes in range(6):
        out = tmp_path / f"out-{changes}"
        mgr.export("v1", out)
        with Repository.open(tmp_path / "store", files=Files(Dying(changes))) as repo, suppress(OSError):
            filesout.write(out, repo, repo.commit(repo.resolve("v2")), overwrite=True)
        found = {(out / name).read_bytes() for name in ("config.json", "a.txt", "z.txt") if (out / name).exists()}
        outcomes.add("none" if not (out / "config.json").exists() else b"".join(sorted(found)).decode())
        assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []
    assert outcomes == {"1", "none", "2"}


def test_a_model_that_cannot_be_replaced_stays_whole(mgr: Manager, tmp_path: Path) -> None:
    source = awkward(tmp_path / "in")
    (source / "below").mkdir()
    (source / "below" / "x.json").write_text("{}")
    mgr.import_model(source, base=None)
    out = tmp_path / "out"
    mgr.export("main", out)
    shutil.rmtree(out / "below")
    (out / "config.json").write_text("old")
    before = digests(out)
    with small_file_system(out / "below", 1 << 20) as mounted, pytest.raises(OSError, match=str(mounted)) as refused:
        mgr.export("main", out, overwrite=True)
    assert refused.value.errno == EXDEV
    assert digests(out) == before
    (out / "below").rmdir()
    with small_file_system(out / "below", 1 << 20) as mounted:
        make_read_only(mounted, everywhere=True)
        with pytest.raises(PermissionError, match=str(mounted)):
            mgr.export("main", out, overwrite=True)
    assert digests(out) == before
    assert [path.name for path in out.iterdir() if path.name.startswith(".moonclip")] == []


def test_what_would_be_read_instead_is_in_the_way(mgr: Manager, model: Path, tmp_path: Path) -> None:
    tensors = {name: torch.zeros(3000) for name in "ab"}
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    for key, name in names.items():
        save_file({key: tensors[key]}, model / name)
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    mgr.import_model(model, base=None)
    (tmp_path / "out").mkdir()
    save_file(tensors, tmp_path / "out" / "model.safetensors")
    with pytest.raises(Conflict, match="would be read instead"):
        mgr.export("main", tmp_path / "out", overwrite=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.safetensors"]
    (tmp_path / "out" / "model.safetensors").unlink()
    mgr.export("main", tmp_path / "out", overwrite=True)
    assert digests(tmp_path / "out") == digests(model)
