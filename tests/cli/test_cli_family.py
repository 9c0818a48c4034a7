"""``moonclip stats --family`` and ``moonclip dedup --dry-run``."""

import os
import re
import threading
from collections.abc import Callable, Mapping
from errno import EACCES
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from safetensors.torch import save_file

from store.repository import Repository

Out = Callable[..., str]
Document = Callable[..., Any]
Run = Callable[..., Result]


def model(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"layers.{n}.weight": 0.02 * torch.randn(128, 96, generator=generator) for n in range(4)}


def moved(state: Mapping[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: each + 1e-5 * torch.randn(each.shape, generator=generator) for name, each in state.items()}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A base, what was tuned from it, a copy of that, and one that has nothing to do with them, deeper down."""
    base = model(1)
    states = {"base": base, "tuned": moved(base, 2), "z-copy": moved(base, 2), "x/other": model(3)}
    for name, state in states.items():
        directory = tmp_path / "models" / name
        directory.mkdir(parents=True)
        save_file(state, directory / "model.safetensors")
        (directory / "config.json").write_text("{}")
    (tmp_path / "models" / ".cache").mkdir()
    (tmp_path / "models" / "README").write_text("ours")
    return tmp_path / "models"


def files_below(directory: Path) -> dict[Path, tuple[int, int]]:
    found = (path for path in directory.rglob("*") if path.name != "lock.mdb")  # where readers of the index sign in
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def test_what_a_folder_would_take_without_a_store(models: Path, document: Document, output: Out) -> None:
    told = document("dedup", "--dry-run", "models")
    base, tuned, other, copy = told["models"]
    assert [each["path"] for each in told["models"]] == [f"models/{n}" for n in ("base", "tuned", "x/other", "z-copy")]
    assert [each["base"] for each in told["models"]] == [None, "models/base", None, "models/tuned"]
    assert base["shared_bytes"] == tuned["shared_bytes"] == other["shared_bytes"] == 0
    assert tuned["added_bytes"] < 0.9 * base["added_bytes"]
    assert copy["shared_bytes"] == 4 * 128 * 96 * 4
    assert copy["added_bytes"] < 1_000
    for key in ("raw_bytes", "shared_bytes", "added_bytes"):
        assert told[key] == sum(each[key] for each in told["models"])
    lines = output("dedup", "--dry-run", "models").splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["model", "base", "tuned", "x/other", "z-copy"]
    assert lines[2].endswith(" base")
    assert lines[-1].startswith("4 models of ")
    assert not (models.parent / "checkpoints").exists()


def test_what_it_tells_is_what_imports_take(models: Path, document: Document, output: Out) -> None:
    told = document("dedup", "--dry-run", "models")
    output("init")
    for name in ("base", "tuned", "x/other", "z-copy"):
        output("import", f"models/{name}", "--branch", name.replace("/", "-"))
    family = document("stats", "--family")
    assert [each["names"] for each in family["models"]] == [["base"], ["tuned"], ["x-other"], ["z-copy"]]
    assert [each["base_names"] for each in family["models"]] == [[], ["base"], [], ["tuned"]]
    for taken, forecast in zip(family["models"], told["models"], strict=True):
        assert taken["raw_bytes"] == pytest.approx(forecast["raw_bytes"], abs=1_000)
        assert taken["added_bytes"] == pytest.approx(forecast["added_bytes"], rel=0.05, abs=2_000)
    assert family["stored_bytes"] == pytest.approx(told["added_bytes"], rel=0.05, abs=4_000)


def test_beside_a_store_which_stays_as_it_is(models: Path, document: Document, output: Out) -> None:
    output("init")
    output("import", "models/base", "--branch", "main")
    before = files_below(models.parent / "checkpoints")
    told = document("dedup", "--dry-run", "models/tuned", "models/base")
    with Repository.open(models.parent / "checkpoints", read_only=True) as repo:
        main = repo.resolve("main").hex()
    assert [each["base"] for each in told["models"]] == [main, main]
    assert told["models"][1]["shared_bytes"] == 4 * 128 * 96 * 4
    assert " main\n" in output("dedup", "--dry-run", "models/tuned")
    assert files_below(models.parent / "checkpoints") == before


def test_files_are_hashed_by_threads_beside_the_forecast(
    models: Path, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    start = threading.Thread.start

    def noting(thread: threading.Thread) -> None:
        names.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noting)
    document("dedup", "--dry-run", "models/base", "models/tuned")
    assert len([name for name in names if not re.fullmatch(r"moonclip-\d+", name)]) == 2  # beside those of the store


def test_a_file_is_a_model_too(models: Path, document: Document) -> None:
    told = document("dedup", "--dry-run", "models/base/model.safetensors", "models/tuned")
    assert [each["base"] for each in told["models"]] == [None, "models/base/model.safetensors"]


def test_what_cannot_be_imported_is_left_out(models: Path, document: Document, run: Run, failure: Out) -> None:
    (models / "base" / "model.safetensors").write_bytes(b"{")
    (models / "tuned" / "model.safetensors").unlink()
    told = document("dedup", "--dry-run", "models")
    assert [each["path"] for each in told["models"]] == ["models/base", "models/x/other", "models/z-copy"]
    assert told["models"][0]["raw_bytes"] < 1_000  # kept as the file it is
    assert list(told["left_out"]) == ["models/tuned"]
    assert "left out models/tuned: " in run("dedup", "--dry-run", "models").stderr
    assert "holds no checkpoint" in failure("dedup", "--dry-run", "models/tuned")


def test_dedup_without_a_dry_run_says_what_to_use(models: Path, run: Run) -> None:
    result = run("dedup", "models")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "use `moonclip import`" in result.stderr


def test_what_dedup_refuses(models: Path, run: Run, failure: Out, tmp_path: Path) -> None:
    assert run("dedup", "--dry-run", "nowhere").exit_code == 2
    (tmp_path / "empty").mkdir()
    assert "empty: no model in it" in failure("dedup", "--dry-run", "empty")
    assert "no store" in failure("-C", "nowhere", "dedup", "--dry-run", "models")


def test_a_model_counts_once_however_it_is_met(models: Path, document: Document) -> None:
    (models / "link").symlink_to("base")
    (models / "x" / "around").symlink_to("../..")
    told = document("dedup", "--dry-run", "models/tuned", "models/x", "models", "models/base", "models/x/other")
    assert [each["path"] for each in told["models"][:2]] == ["models/tuned", "models/x/around/models/base"]
    assert sorted(Path(each["path"]).name for each in told["models"]) == ["base", "other", "tuned", "z-copy"]
    assert told["left_out"] == {}


def test_what_is_elsewhere_is_found_by_its_link(models: Path, document: Document) -> None:
    (models.parent / "folder").mkdir()
    (models.parent / "folder" / "mine").symlink_to(models / "base")
    told = document("dedup", "--dry-run", "folder")
    assert [each["path"] for each in told["models"]] == ["folder/mine"]


def test_what_cannot_be_read_is_left_out(
    models: Path, document: Document, failure: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    (models.parent / "empty").mkdir()
    (models / "base" / "model.safetensors").unlink()
    (models / "base" / "model.safetensors").symlink_to("/proc/self/clear_refs")  # which nobody can read
    listdir = os.listdir

    def listed(path: Path) -> list[str]:
        if path.name == "tuned":
            raise PermissionError(EACCES, "Permission denied", str(path))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", listed)
    told = document("dedup", "--dry-run", "models", "empty")
    assert [each["path"] for each in told["models"]] == ["models/x/other", "models/z-copy"]
    assert list(told["left_out"]) == ["models/tuned", "empty", "models/base"]
    assert told["left_out"]["models/tuned"] == "Permission denied"
    assert told["left_out"]["models/base"].startswith("models/base/model.safetensors: ")
    assert told["left_out"]["empty"] == "no model in it, nor in a directory below it"
    refused = failure("dedup", "--dry-run", "models/tuned", "empty")
    assert "models/tuned: Permission denied; empty: no model in it" in refused


def test_a_family_of_what_is_named(models: Path, document: Document, output: Out) -> None:
    output("init")
    output("import", "models/base", "--branch", "base")
    output("import", "models/tuned", "--branch", "tuned", "--base", "base")
    named = document("stats", "--family", "tuned", "base", "tuned~1")
    assert [each["names"] for each in named["models"]] == [["base", "tuned~1"], ["tuned"]]
    tuned = named["models"][1]
    assert (tuned["base"], tuned["found_by"]) == (named["models"][0]["commit"], "name")
    assert tuned["delta_bytes"] == 4 * 128 * 96 * 4
    assert 0 < tuned["estimate"] < 0.9
    lines = output("stats", "--family").splitlines()
    assert lines[2].split()[0] == "tuned"
    assert lines[2].endswith(" base (by name)")
    assert lines[-1].startswith("2 models of ")
    (alone,) = document("stats", "--family", "tuned")["models"]
    assert alone["base_names"] == []
    assert output("stats", "--family", "tuned").splitlines()[1].endswith(f" {tuned['base'][:8]} (by name)")


def test_what_a_model_lacks_is_told(models: Path, document: Document, output: Out) -> None:
    output("init")
    output("import", "models/base")
    output("import", "models/tuned")
    output("prune", "--items", "model", "--older-than", "1")
    assert [each["lacks"] for each in document("stats", "--family", "main~1", "main")["models"]] == [["model"], []]
    assert output("stats", "--family", "main~1").splitlines()[-1] == "main~1 lacks model: pruned, or not fetched"
    assert "lacks" not in output("stats", "--family")


def test_revisions_are_for_families(run: Run, models: Path, output: Out) -> None:
    output("init")
    assert output("stats", "--family").splitlines()[-1].startswith("0 models of 0 B")
    result = run("stats", "main")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--family" in result.stderr
