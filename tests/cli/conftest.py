"""A store with a history, and a way to run commands on it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from moonclip.cli.app import commands
from tests.stores import History, history


@pytest.fixture
def past(tmp_path: Path) -> History:
    return history(tmp_path / "checkpoints")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command in a directory whose ``./checkpoints`` may be a store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MOONCLIP_STORE", raising=False)
    return lambda *arguments: CliRunner().invoke(commands, [str(each) for each in arguments])


@pytest.fixture
def output(run: Callable[..., Result]) -> Callable[..., str]:
    """What a command that does its work prints; it prints no warning either."""

    def out(*arguments: object) -> str:
        result = run(*arguments)
        assert (result.exit_code, result.stderr) == (0, ""), result.output
        return result.stdout

    return out


@pytest.fixture
def document(output: Callable[..., str]) -> Callable[..., Any]:
    """The JSON that a command prints."""
    return lambda *arguments: json.loads(output(*arguments, "--json"))


@pytest.fixture
def failure(run: Callable[..., Result]) -> Callable[..., str]:
    """What a command that fails says; it prints nothing on stdout."""

    def said(*arguments: object) -> str:
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith("error: ")
        return result.stderr

    return said
