"""The code in the README runs, in the order in which it stands."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

from store.repository import Repository
from tests.s3servers import bucket, server

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    optimizer.zero_grad()
    loss: torch.Tensor = model(torch.ones(2, 4)).square().mean()
    loss.backward()
    optimizer.step()
    return loss


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket on a server of ours, which boto3 finds by the environment."""
    account = server("moto")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", account.endpoint_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", account.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", account.secret_key)
    monkeypatch.setenv("AWS_DEFAULT_REGION", account.region)
    return bucket(account)


@pytest.fixture
def store(tmp_path: Path, there: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which all Python blocks have run, one after another."""
    monkeypatch.chdir(tmp_path)
    model = torch.nn.ModuleDict({"embed": torch.nn.Linear(4, 4), "head": torch.nn.Linear(4, 4)})
    model.forward = lambda x: model["head"](model["embed"](x))  # type: ignore[method-assign]
    optimizer = torch.optim.AdamW(model.parameters())
    names = {"model": model, "optimizer": optimizer, "train_step": train_step}
    for block in blocks("python"):
        exec(compile(block.replace("s3://bucket", f"s3://{there}"), "README.md", "exec"), names)
    manager = names.get("mgr")
    manager.close()  # type: ignore[attr-defined]
    return tmp_path / "checkpoints"


def test_python_blocks_run_and_leave_the_branches_they_speak_of(store: Path) -> None:
    with Repository.open(store) as repository:
        names = set(repository.refs.list())
    assert {"branches/main", "branches/lr3", "tags/nightly"} <= names


def test_commands_exist_and_run(
    store: Path, there: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from moonclip.cli import main

    commands = [line[2:] for block in blocks("console") for line in block.splitlines() if line.startswith("$ moonclip")]
    assert commands
    for command in commands:
        monkeypatch.setattr(sys, "argv", shlex.split(command.split("#")[0].replace("s3://bucket", f"s3://{there}")))
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code in (0, None), command
    assert capsys.readouterr().out


def test_targets_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = {name for block in blocks("console") for name in re.findall(r"^\$ make (\w+)", block, re.MULTILINE)}
    assert named
    assert all(re.search(rf"^{name}:", makefile, re.MULTILINE) for name in named)


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
