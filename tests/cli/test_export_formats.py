"""``moonclip export --format``: directories that other tools read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import Result
from safetensors.torch import load_file

from moonclip import CheckpointManager
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
