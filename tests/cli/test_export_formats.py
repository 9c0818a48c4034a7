"""``moonclip export --format``: directories that other tools read."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import Result
from safetensors.torch import load_file

from moonclip import CheckpointManager
from tests.modeldirs import awkward, digests
from tests.stores import History

Out = Callable[..., str]
Document = Callable[..., Any]
Run = Callable[..., Result]


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


def test_hf(output: Out, document: Document, past: History, tmp_path: Path) -> None:
    said = output("export", "best", "--format", "hf", "-o", "hf")
    assert said.startswith("wrote model to hf (")
    assert names(tmp_path / "hf") == ["model.safetensors"]
    assert load_file(tmp_path / "hf" / "model.safetensors").keys() == {"embed.weight", "fc.weight", "fc.bias"}
    told = document("export", "best", "--format", "hf", "-o", "hf", "-f", "--max-shard-size", "2kB")
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert names(tmp_path / "hf") == [*sorted(set(index["weight_map"].values())), "model.safetensors.index.json"]
    assert told == {
        "commit": past.branched[0].hex(),
        "path": "hf",
        "format": "hf",
        "items": ["model"],
        "files": [],
        "bytes": sum(path.stat().st_size for path in (tmp_path / "hf").iterdir()),
        "left_out": 0,
        "tied": {},
    }


def test_hf_tells_what_it_leaves_out(run: Run, past: History) -> None:
    weight = torch.ones(100)
    with CheckpointManager(past.root) as mgr:
        mgr.save("tied", {"model": {"embed": weight, "head": weight, "epoch": 3}})
    result = run("export", "tied", "--format", "hf", "-o", "hf")
    assert result.exit_code == 0
    assert result.stderr == (
        "left out 1 value: safetensors holds tensors only\nleft out head: it is embed by another name\n"
    )


def test_hf_of_a_directory_that_has_one(output: Out, failure: Out, past: History, tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text("{}")
    output("export", "best", "--format", "hf", "-o", "hf")
    assert "model.safetensors exists; replace what is there with --force" in failure(
        "export", "best", "--format", "hf", "-o", "hf"
    )
    output("export", "best", "--format", "hf", "-o", "hf", "--force")
    assert names(tmp_path / "hf") == ["config.json", "model.safetensors"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp(output: Out, past: History, tmp_path: Path) -> None:
    said = output("export", "best", "--format", "dcp", "-o", "dcp")
    assert said.startswith("wrote model, optimizer, settings to dcp")
    state = {"model": {"fc.weight": torch.zeros(64, 8)}, "optimizer": {"step": 0}}
    dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert state["model"]["fc.weight"].abs().sum() > 0  # type: ignore[attr-defined]
    assert state["optimizer"] == {"step": 200}
    output("export", "best", "--format", "dcp", "-o", "one", "--item", "model")
    flat = {"fc.weight": torch.zeros(64, 8)}
    dcp.load(flat, checkpoint_id=tmp_path / "one", no_dist=True)
    assert torch.equal(flat["fc.weight"], state["model"]["fc.weight"])  # type: ignore[index]


def test_dir(output: Out, document: Document, past: History, tmp_path: Path) -> None:
    layouts = ("--layout", "model=safetensors:weights/model.safetensors", "--layout", "settings=torch")
    output("export", "best", "--format", "dir", "-o", "out", *layouts)
    assert names(tmp_path / "out") == ["optimizer.pt", "settings.pt", "weights"]
    assert len(load_file(tmp_path / "out" / "weights" / "model.safetensors")) == 3
    assert torch.load(tmp_path / "out" / "optimizer.pt", weights_only=True)["step"] == 200
    told = document("export", "best", "--format", "dir", "-o", "some", "--item", "settings")
    assert (told["items"], names(tmp_path / "some")) == (["settings"], ["settings.pt"])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--format", "zip", "-o", "x"), "'zip' is not one of"),
        (("-o", "x"), "x: the name has to end in .pt, .pth, .safetensors, or a format has to be named"),
        (("--format", "pt", "-o", "checkpoints"), "checkpoints is a directory"),
        (("--format", "hf", "-o", "x", "--max-shard-size", "much"), "'much' is no size"),
        (("--format", "dir", "-o", "x", "--layout", "model"), "'model' is no layout like"),
        (("--format", "dir", "-o", "x", "--layout", "model=zip"), "a layout is one of torch"),
        (("--format", "dir", "-o", "x", "--layout", "model=torch:../x"), "no path of a file below the directory"),
    ],
)
def test_arguments_that_make_no_sense(run: Run, past: History, arguments: tuple[str, ...], why: str) -> None:
    result = run("export", "best", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert why in result.stderr


def test_b17_layouts_that_meet_are_refused(failure: Out, past: History, tmp_path: Path) -> None:
    layouts = ("--layout", "model=torch:a.pt", "--layout", "optimizer=torch:a.pt")
    assert "would both be written to a.pt" in failure("export", "best", "--format", "dir", "-o", "out", *layouts)
    assert "no item 'other'" in failure("export", "best", "--format", "dir", "-o", "out", "--layout", "other=json")
    assert "layouts are for the format dir only" in failure("export", "best", "-o", "x.pt", "--layout", "model=torch")
    assert names(tmp_path) == ["checkpoints"]


def test_a_format_goes_before_a_suffix(output: Out, past: History, tmp_path: Path) -> None:
    output("export", "best", "--format", "pt", "-o", "model.bin", "--item", "model")
    assert len(torch.load(tmp_path / "model.bin", weights_only=True)) == 3
    output("export", "best", "--format", "hf", "-o", "model.safetensors")
    assert names(tmp_path / "model.safetensors") == ["model.safetensors"]


# --- files that were imported ---------------------------------------------------------------------------------------


def test_files_as_they_were(output: Out, document: Document, failure: Out, past: History, tmp_path: Path) -> None:
    awkward(tmp_path / "in")
    document("import", "in", "--branch", "odd")
    expected = digests(tmp_path / "in")
    assert output("export", "odd", "-o", "out").startswith(f"wrote {len(expected)} files to out (")
    assert digests(tmp_path / "out") == expected
    assert "exists; replace what is there with --force" in failure("export", "odd", "-o", "out")
    told = document("export", "odd", "-o", "v1.5", "--file", "*.json", "--file", "empty.txt")
    assert told["format"] == "files"
    assert told["files"] == [path for path in expected if path.endswith(".json") or path == "empty.txt"]
    assert told["bytes"] == sum((tmp_path / "in" / path).stat().st_size for path in told["files"])
    assert "no file 'x'" in failure("export", "odd", "-o", "none", "--file", "x")
    assert "no files that were stored with it" in failure("export", "best", "--format", "files", "-o", "none")
    assert not (tmp_path / "none").exists()


def test_files_are_listed_and_shown(output: Out, document: Document, past: History, tmp_path: Path) -> None:
    awkward(tmp_path / "in")
    document("import", "in", "--branch", "odd")
    expected = digests(tmp_path / "in")
    lines = output("ls", "odd", "files::*").splitlines()
    assert {line.split()[1] for line in lines} == {digest[:12] for digest in expected.values()}
    assert all(line.startswith("file  ") for line in lines)
    told = {each["name"].removeprefix("files::"): each["file"] for each in document("ls", "odd", "files::*")}
    assert {path: file["sha256"] for path, file in told.items()} == expected
    assert {path: file["size_bytes"] for path, file in told.items()} == {
        path: (tmp_path / "in" / path).stat().st_size for path in expected
    }
    assert not any("file" in each for each in document("ls", "odd", "model::*"))
    shown = output("show", "odd", "files::adapter_model.safetensors").splitlines()
    assert shown[1] == f"SHA-256: {expected['adapter_model.safetensors']}"
    assert "  adapter::lora_A, 9,600 bytes from 0" in shown
    assert "<20 bytes>" not in output("show", "odd", "files::config.json")
    parts = document("show", "odd", "files::adapter_model.safetensors")["parts"]
    assert parts[1:] == [
        {"item": "adapter", "name": "lora_A", "start": 0, "stop": 9600},
        {"item": "adapter", "name": "lora_B", "start": 0, "stop": 9600},
    ]


def test_cat_of_a_file_that_consists_of_tensors(past: History, document: Document, tmp_path: Path) -> None:
    awkward(tmp_path / "in")
    document("import", "in", "--branch", "odd")
    command = [sys.executable, "-m", "moonclip", "-C", str(past.root), "cat", "odd:adapter_model.safetensors"]
    content = subprocess.run(command, capture_output=True, check=True).stdout
    assert content == (tmp_path / "in" / "adapter_model.safetensors").read_bytes()


def test_an_item_called_files_that_holds_others(output: Out, past: History) -> None:
    with CheckpointManager(past.root) as mgr:
        mgr.save("odd", {"files": {"w": torch.ones(300), "lr": 0.5, "log": b"text"}})
    lines = {line.split()[-1]: line.split()[0] for line in output("ls", "odd", "files::*").splitlines()}
    assert lines == {"files::w": "float32", "files::lr": "value", "files::log": "file"}
    assert "0.5" in output("show", "odd", "files::lr")
