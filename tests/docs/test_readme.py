"""The code in the README runs, in the order in which it stands, and shows what it says."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from store.repository import Repository
from tests.docpages import ROOT, blocks, play
from tests.families import pretrained, tuned
from tests.modeldirs import digests

README = ROOT / "README.md"


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    optimizer.zero_grad()
    inputs = torch.randn(8, 4)
    loss: torch.Tensor = (model(inputs) - inputs).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def test_its_blocks_run_and_leave_the_branches_they_speak_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = torch.nn.ModuleDict({"embed": torch.nn.Linear(4, 4), "head": torch.nn.Linear(4, 4)})
    model.forward = lambda x: model["head"](model["embed"](x))  # type: ignore[method-assign]
    base = pretrained("encoder", 1)
    for name, state in (("llama", base), ("llama-chat", tuned("encoder", base, 2))):
        (tmp_path / name).mkdir()
        save_file(state, tmp_path / name / "model.safetensors")
    names = {"model": model, "optimizer": torch.optim.AdamW(model.parameters()), "train_step": train_step}
    play(README, names)
    names["mgr"].close()  # type: ignore[operator]
    with Repository.open(tmp_path / "checkpoints") as repository:
        assert {"branches/main", "branches/lr3", "tags/nightly"} <= set(repository.refs.list())
        chat, llama = repository.resolve("chat"), repository.resolve("llama")
        assert repository.commit(chat).parents == (llama,)
    assert digests(tmp_path / "again") == digests(tmp_path / "llama-chat")


def test_its_branch_goes_on_when_it_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(4, 4)
    names = {"model": model, "optimizer": torch.optim.AdamW(model.parameters()), "train_step": train_step}
    begun, branched, *_ = [block.text for block in blocks(README) if block.language == "python"]
    for text in (begun, branched, branched):
        exec(text, names)
        names["mgr"].close()  # type: ignore[attr-defined]
    with Repository.open(tmp_path / "checkpoints") as repository:
        assert repository.resolve("nightly") == repository.resolve("lr3")
        assert len(list(repository.log([repository.resolve("lr3")]))) == 10


def test_targets_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = {name for block in blocks(README) for name in re.findall(r"^make (\w+)", block.text, re.MULTILINE)}
    assert named
    assert all(re.search(rf"^{name}:", makefile, re.MULTILINE) for name in named)


def test_it_is_about_as_long_as_a_screen() -> None:
    assert len(README.read_text().splitlines()) <= 120
