"""Which store a command is about, and making one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from store.layout import Layout
from store.repository import Repository
from tests.stores import History

Out = Callable[..., str]


def store_with_branch(path: Path, branch: str) -> Path:
    Repository.init(path, branch=branch).close()
    return path


def branch_found(failure: Out, *arguments: object) -> str:
    """Empty stores tell which one was found by the name of their first branch."""
    return failure(*arguments, "log").split("'")[3]


def test_default_is_below_the_working_directory(output: Out, past: History) -> None:
    assert past.main[-1].hex()[:8] in output("log", "--oneline")


def test_the_store_that_the_working_directory_is_in_comes_first(
    failure: Out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = store_with_branch(tmp_path / "around", "outer")
    inside = around / "packs" / "deeper"
    inside.mkdir()
    store_with_branch(inside / "checkpoints", "inner")
    monkeypatch.chdir(inside)
    assert branch_found(failure) == "outer"


def test_variable_beats_place_and_option_beats_variable(
    failure: Out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_with_branch(tmp_path / "checkpoints", "default")
    named = store_with_branch(tmp_path / "named", "named")
    given = store_with_branch(tmp_path / "given", "given")
    assert branch_found(failure) == "default"
    monkeypatch.setenv("MOONCLIP_STORE", str(named))
    assert branch_found(failure) == "named"
    assert branch_found(failure, "-C", given) == "given"


def test_no_store_says_how_to_name_one_or_make_one(failure: Out) -> None:
    said = failure("log")
    assert "MOONCLIP_STORE" in said
    assert "moonclip init" in said


def test_a_path_without_a_store_is_no_invitation_to_look_elsewhere(failure: Out, past: History, tmp_path: Path) -> None:
    assert f"no store at {tmp_path}/elsewhere" in failure("-C", tmp_path / "elsewhere", "log")


def test_a_path_without_a_store_names_one_directly_below(failure: Out, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store_with_branch(tmp_path / "a-run", "main")
    assert f"no store at {tmp_path}; there is one at {tmp_path / 'a-run'}: name that" in failure("-C", tmp_path, "log")
    assert failure("log").endswith("; there is one at ./a-run\n")
    store_with_branch(tmp_path / "checkpoints", "main")
    assert "/checkpoints: name that" in failure("-C", ".", "log")


def test_init_makes_a_store(document: Callable[..., Any], output: Out, tmp_path: Path) -> None:
    assert document("init", "-b", "trunk") == {"path": str(tmp_path / "checkpoints"), "branch": "trunk"}
    with Repository.open(tmp_path / "checkpoints") as repo:
        assert repo.refs.head() == "trunk"
    assert output("log", "--all") == ""
    assert document("log", "--all") == []


def test_init_where_the_option_says(output: Out, tmp_path: Path) -> None:
    output("-C", tmp_path / "a" / "b", "init")
    assert (tmp_path / "a" / "b" / "format").is_file()


def test_init_refuses_a_second_store(failure: Out, past: History) -> None:
    assert "there is a store" in failure("init")


def test_a_store_of_a_newer_version_that_may_be_read_is_read(output: Out, failure: Out, past: History) -> None:
    layout = Layout(past.root)
    features = json.loads(layout.format.read_bytes())
    layout.format.write_text(json.dumps(features | {"write": ["moonclip-1", "moonclip-9"]}))
    assert output("log", "--oneline")
    assert "'moonclip-9'" in failure("tag", "new")


def test_unknown_commands_and_options_are_usage_errors(run: Callable[..., Result], past: History) -> None:
    for arguments in (["nonsense"], ["log", "--nonsense"], ["log", "-n", "-1"], ["export", "main", "-o", "a.zip"]):
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("lgo", "did you mean 'log'?"),
        ("swich", "did you mean 'switch'?"),
        ("status", "`moonclip log`"),
        ("checkout", "`moonclip switch`"),
        ("commit", "`CheckpointManager.save`"),
        ("restore", "`CheckpointManager.load`"),
        ("xyzzy", "`moonclip --help`"),
    ],
)
def test_an_unknown_command_says_what_may_be_meant(run: Callable[..., Result], command: str, hint: str) -> None:
    result = run(command, "main")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"No such command '{command}'; " in result.stderr
    assert hint in result.stderr


def test_an_unknown_option_in_place_of_a_command_is_told_by_click(run: Callable[..., Result]) -> None:
    result = run("--", "--nonsense")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "No such option" in result.stderr


def test_help_lists_every_command(output: Out) -> None:
    help_text = output("--help")
    for command in (
        "init",
        "log",
        "show",
        "ls",
        "branch",
        "switch",
        "tag",
        "reflog",
        "export",
        "fsck",
        "reindex",
        "stats",
    ):
        assert f"\n  {command} " in help_text
        assert "Usage: " in output(command, "--help")
