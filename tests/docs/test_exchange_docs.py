"""The commands and the code in docs/exchange.md run, in the order in which they stand."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from moonclip import CheckpointManager
from moonclip.cli.app import commands
from tests.modeldirs import digests

TEXT = (Path(__file__).parents[2] / "docs" / "exchange.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def build_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.Linear(20, 3))


def test_all_of_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MOONCLIP_STORE", raising=False)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(30)).sum().backward()
    optimizer.step()
    with CheckpointManager("checkpoints", async_save=False) as mgr:
        mgr.save(step=5, model=model, optimizer=optimizer, config={"lr": 0.5})
    ran = [run(line[2:]) for block in blocks("console")[:1] for line in block.splitlines()]
    names = {"build_model": build_model}
    *first, last = blocks("python")
    for block in first:
        exec(compile(block, "docs/exchange.md", "exec"), names)
    loaded = names["model"]
    assert all(map(torch.equal, loaded.state_dict().values(), model.state_dict().values()))  # type: ignore[attr-defined]
    ran += [run(line[2:]) for block in blocks("console")[1:] for line in block.splitlines()]
    assert len(ran) == 13
    assert digests(tmp_path / "again") == digests(tmp_path / "exports" / "hf")
    exec(compile(last, "docs/exchange.md", "exec"), names)
    names["mgr"].close()  # type: ignore[attr-defined]
    assert digests(tmp_path / "thrice") == digests(tmp_path / "weights")


def run(command: str) -> str:
    result = CliRunner().invoke(commands, shlex.split(command)[1:])
    assert result.exit_code == 0, f"{command}: {result.output}"
    return result.output


def test_formats_and_layouts_are_those_there_are() -> None:
    from typing import get_args

    from moonclip.exchange.exporting import FORMATS
    from moonclip.specs import Kind

    assert set(re.findall(r"`--format (\w+)`", TEXT)) == set(FORMATS)
    assert set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)) == set(get_args(Kind))


def test_as_many_classes_as_are_said() -> None:
    from moonclip.exchange import dcppickle

    classes = [each for each in dcppickle._ALLOWED if each[0].startswith("torch.distributed")]
    assert len(classes) == 9
    assert "the nine classes" in TEXT
