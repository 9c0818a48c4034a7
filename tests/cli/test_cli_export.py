"""``moonclip export``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from safetensors import safe_open
from safetensors.torch import load_file

from moonclip import CheckpointManager
from moonclip.exchange import safetensors
from moonclip.exchange.streaming import windows
from store.format.values import Tagged
from store.repository import Repository
from tests.stores import History, commit, damage, item, noise, tensor

Out = Callable[..., str]
Document = Callable[..., Any]
Run = Callable[..., Result]


def weight(step: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(noise(step, 2048)), dtype=torch.float32).view(64, 8)


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and left.numpy().tobytes() == right.numpy().tobytes()


def test_pt_of_a_commit(output: Out, past: History, tmp_path: Path) -> None:
    assert output("export", "best", "-o", "out.pt").startswith("wrote model, optimizer, settings to out.pt")
    loaded = torch.load(tmp_path / "out.pt", weights_only=True)
    assert list(loaded) == ["model", "optimizer", "settings"]
    assert list(loaded["model"]) == ["embed.weight", "fc.weight", "fc.bias"]
    assert same(loaded["model"]["fc.weight"], weight(200))
    assert loaded["optimizer"]["param_groups"] == [{"lr": 0.5, "betas": (0.9, 0.999)}]
    assert loaded["settings"] == {"dtype": torch.bfloat16, "seed": b"\x00\x01"}


def test_pt_of_one_item_is_that_item(document: Document, past: History, tmp_path: Path) -> None:
    (tmp_path / "out.pt").write_text("what was there before")
    said = document("export", "main~3", "--item", "model", "-f", "-o", "out.pt")
    assert said["commit"] == past.main[0].hex()
    assert (said["items"], said["bytes"]) == (["model"], (tmp_path / "out.pt").stat().st_size)
    loaded = torch.load(tmp_path / "out.pt", weights_only=True)
    assert same(loaded["fc.weight"], weight(0))


def test_pt_of_some_items(output: Out, past: History, tmp_path: Path) -> None:
    output("export", "main", "--item", "model", "--item", "set*", "-o", "out.pth")
    assert list(torch.load(tmp_path / "out.pth", weights_only=True)) == ["model", "settings"]


def test_safetensors_of_one_item(output: Out, past: History, tmp_path: Path) -> None:
    output("export", "best", "--item", "model", "-o", "out.safetensors")
    loaded = load_file(tmp_path / "out.safetensors")
    assert set(loaded) == {"embed.weight", "fc.weight", "fc.bias"}
    assert same(loaded["fc.weight"], weight(200))
    assert loaded["fc.bias"].dtype == torch.bfloat16
    with safe_open(tmp_path / "out.safetensors", "pt") as opened:
        assert opened.metadata() == {"format": "pt", "moonclip.commit": past.branched[0].hex()}


def test_safetensors_of_a_commit_says_what_it_cannot_hold(
    run: Callable[..., Result], past: History, tmp_path: Path
) -> None:
    result = run("export", "best", "-o", "out.safetensors")
    assert (result.exit_code, result.stderr) == (0, "left out 3 values: safetensors holds tensors only\n")
    assert set(load_file(tmp_path / "out.safetensors")) == {
        "model::embed.weight",
        "model::fc.weight",
        "model::fc.bias",
        "optimizer::exp_avg",
    }


def test_safetensors_in_windows(output: Out, past: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors, "windows", lambda repo, entry, _: windows(repo, entry, 1000))
    data = noise("windows", 10_007)
    with Repository.open(past.root) as repo:
        commit(repo, items=[item("model", {"w": tensor(data), "none": tensor(b"", "float32", (0, 4))})])
    output("export", "HEAD", "--item", "model", "-o", "out.safetensors")
    loaded = load_file(tmp_path / "out.safetensors")
    assert loaded["w"].numpy().tobytes() == data
    assert loaded["none"].shape == (0, 4)


def test_every_dtype_that_safetensors_has_and_a_refusal_of_the_others(
    output: Out, failure: Out, past: History, tmp_path: Path
) -> None:
    state = {
        str(dtype): (torch.arange(48) % 2).to(torch.uint8).view(dtype).clone()
        for dtype in (torch.bool, torch.int16, torch.uint64, torch.float8_e5m2, torch.float16, torch.complex64)
    }
    with CheckpointManager(past.root) as mgr:
        mgr.save("dtypes", {"x": state})
        mgr.save("other", {"x": {"w": torch.zeros(40, dtype=torch.complex128)}})
    output("export", "dtypes", "--item", "x", "-o", "out.safetensors")
    loaded = load_file(tmp_path / "out.safetensors")
    assert {name: loaded[name].dtype for name in state} == {name: value.dtype for name, value in state.items()}
    assert all(torch.equal(loaded[name].view(torch.uint8), value.view(torch.uint8)) for name, value in state.items())
    assert "no dtype for w (complex128)" in failure("export", "other", "--item", "x", "-o", "refused.safetensors")
    assert not (tmp_path / "refused.safetensors").exists()


def test_composite_tensors_are_no_safetensors(failure: Out, output: Out, past: History, tmp_path: Path) -> None:
    sparse = torch.eye(20).to_sparse()
    with CheckpointManager(past.root) as mgr:
        mgr.save("sparse", {"x": {"w": sparse}})
    assert "x::w is a " in failure("export", "sparse", "-o", "out.safetensors")
    output("export", "sparse", "--item", "x", "-o", "out.pt")
    assert torch.equal(torch.load(tmp_path / "out.pt", weights_only=True)["w"].to_dense(), torch.eye(20))


def test_a17_a_pickle_is_not_run_and_leaves_no_file(failure: Out, past: History, tmp_path: Path) -> None:
    with Repository.open(past.root) as repo:
        commit(repo, items=[item("x", {}, {"v": Tagged("pickle", ("os.system", b"cos\nsystem\n(S'touch ran'\ntR."))})])
    assert "unpickling runs code" in failure("export", "HEAD", "-o", "out.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


def test_a_damaged_chunk_leaves_the_old_file(failure: Out, past: History, tmp_path: Path) -> None:
    (tmp_path / "out.safetensors").write_text("what was there before")
    damage(past.root, "fc.weight", "best")
    failure("export", "best", "--item", "model", "-o", "out.safetensors", "--force")
    assert (tmp_path / "out.safetensors").read_text() == "what was there before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "out.safetensors"]


def test_a_file_that_exists_is_replaced_only_when_asked(run: Run, output: Out, past: History, tmp_path: Path) -> None:
    (tmp_path / "out.pt").write_text("what was there before")
    refused = run("export", "best", "-o", "out.pt")
    assert (refused.exit_code, "out.pt exists; --force replaces it" in refused.stderr) == (2, True)
    assert (tmp_path / "out.pt").read_text() == "what was there before"
    output("export", "best", "-o", "out.pt", "--force")
    assert torch.load(tmp_path / "out.pt", weights_only=True)


def test_what_is_not_there(failure: Out, past: History, tmp_path: Path) -> None:
    assert "no item 'nothing'" in failure("export", "main", "--item", "nothing", "-o", "out.pt")
    for suffix in ("safetensors", "pt"):
        said = failure("export", "main", "-o", tmp_path / "nowhere" / f"out.{suffix}")
        assert "nowhere" in said
        assert "No such file or directory" in said
