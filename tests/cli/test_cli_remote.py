"""``moonclip remote``, ``ls-remote`` and ``branch -r``: which remotes there are, and what they have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from click.testing import Result

from moonclip.cli.app import commands
from store.ids import CommitId, short
from store.naming.refnames import remote_name
from store.repository import Repository
from store.upkeep.absences import Absence, Why
from tests.stores import History

Out = Callable[..., str]
Document = Callable[..., Any]
Run = Callable[..., Result]


def place_tracking(past: History, branch: str, commit_id: CommitId) -> None:
    """As if a fetch had seen a branch there."""
    with Repository.open(past.root) as repo:
        repo.set_ref(remote_name("origin", branch), None, commit_id, "fetch")


# --- which there are ------------------------------------------------------------------------------------------------


def test_no_remotes(output: Out, document: Document, failure: Out, past: History) -> None:
    assert output("remote") == ""
    assert document("remote") == []
    for command in ("push", "fetch", "pull", "ls-remote"):
        assert "`moonclip remote add origin URL`" in failure(command)


def test_remotes_are_added_listed_and_removed(
    output: Out, document: Document, past: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert output("remote", "add", "origin", "s3://runs/gpt/") == "remote origin is s3://runs/gpt\n"
    endpoint = ["--endpoint-url", "https://s3.example.com/", "--region", "eu-1", "--path-style"]
    output("remote", "add", "lab", "s3://lab", *endpoint)
    output("remote", "add", "nas", "../nas")
    there = (tmp_path / ".." / "nas").as_uri()
    assert output("remote") == "origin\nlab\nnas\n"
    assert [line.split(maxsplit=2) for line in output("remote", "-v").splitlines()] == [
        ["origin", "s3://runs/gpt"],
        ["lab", "s3://lab", "at https://s3.example.com, region eu-1, path style"],
        ["nas", there],
    ]
    assert document("remote")[1] == {
        "name": "lab",
        "url": "s3://lab",
        "endpoint_url": "https://s3.example.com",
        "region": "eu-1",
        "path_style": True,
        "lazy": False,
    }
    assert output("remote", "remove", "lab") == "removed remote lab\n"
    assert [each["name"] for each in document("remote")] == ["origin", "nas"]


def test_a_remote_is_known_once(output: Out, failure: Out, past: History) -> None:
    output("remote", "add", "origin", "s3://runs")
    assert "s3://runs" in failure("remote", "add", "origin", "s3://others")
    assert "there are: origin" in failure("remote", "remove", "backup")


@pytest.mark.parametrize(
    "arguments",
    [
        ["origin", "s3://id:secret-word@runs/gpt"],
        ["origin", "s3://runs", "--endpoint-url", "https://id:secret-word@s3.example.com"],
    ],
)
def test_f7_credentials_are_taken_in_no_url(run: Run, past: History, arguments: list[str]) -> None:
    result = run("remote", "add", *arguments)
    assert result.exit_code == 1
    assert "environment" in result.stderr
    assert "secret-word" not in result.output
    assert b"secret-word" not in (past.root / "config").read_bytes()
    assert "secret-word" not in run("ls-remote", *arguments[1:]).output


@pytest.mark.parametrize("arguments", [["a/b", "s3://runs"], ["origin", "http://runs"], ["origin", "s3://"]])
def test_remotes_that_cannot_be(failure: Out, document: Document, past: History, arguments: list[str]) -> None:
    failure("remote", "add", *arguments)
    assert document("remote") == []


def test_a_removed_remote_leaves_no_branches(output: Out, run: Run, past: History, tmp_path: Path) -> None:
    output("remote", "add", "origin", tmp_path / "there")
    place_tracking(past, "main", past.main[1])
    with Repository.open(past.root) as repo:
        repo.absences.add([Absence.of(past.branched[1], None, Why.SHALLOW, 0, "origin")])
    result = run("remote", "remove", "origin")
    assert (result.exit_code, result.stdout) == (0, "removed remote origin\n")
    assert result.stderr == "warning: 1 commit lacks content here that only 'origin' was known to have\n"
    assert output("branch", "-r") == ""


def test_which_remote_is_meant(output: Out, failure: Out, past: History, tmp_path: Path) -> None:
    for name in ("nas", "lab", "there"):
        (tmp_path / name).mkdir()
    output("remote", "add", "nas", tmp_path / "nas")
    assert output("push").startswith("main -> nas/main")
    assert "no remote 'main'; there are: nas" in failure("push", "main")
    output("remote", "add", "lab", tmp_path / "lab")
    assert "none of the remotes is called 'origin'" in failure("push")
    output("remote", "add", "origin", tmp_path / "there")
    assert output("push").startswith("main -> origin/main")


def test_remotes_complete(output: Out, past: History) -> None:
    for name in ("origin", "other", "lab"):
        output("remote", "add", name, f"s3://{name}-bucket")
    for arguments in (["push"], ["fetch"], ["pull"], ["ls-remote"], ["remote", "show"], ["gc", "--remote"]):
        complete = ShellComplete(commands, {}, "moonclip", "_MOONCLIP_COMPLETE")
        assert [each.value for each in complete.get_completions(arguments, "o")] == ["origin", "other"]


# --- branches of theirs ---------------------------------------------------------------------------------------------


def test_remote_branches(output: Out, document: Document, past: History) -> None:
    place_tracking(past, "main", past.main[1])
    theirs = f"{short(past.main[1])}  step 100  loss=1.5"
    assert output("branch", "-r") == f"  origin/main  {theirs}\n"
    assert document("branch", "-r") == [{"name": "origin/main", "commit": past.main[1].hex(), "current": False}]
    lines = output("branch", "-a").splitlines()
    assert [line[:21].rstrip() for line in lines] == ["  exp/lr3", "* main", "  remotes/origin/main"]
    assert lines[2].endswith(theirs)
    assert len(document("branch", "--all")) == 3
    assert len(document("branch")) == 2


def test_remote_branches_are_revisions(output: Out, document: Document, past: History) -> None:
    place_tracking(past, "main", past.main[1])
    assert document("log", "origin/main", "-n", "1")[0]["id"] == past.main[1].hex()
    assert "(origin/main)" in output("log", "--graph", "--oneline")
    assert output("diff", "main", "origin/main", "--stat").startswith(
        f"diff {short(past.main[3])} (main) -> {short(past.main[1])} (origin/main)"
    )
    assert {item["status"] for item in document("diff", "main~2", "origin/main")["items"]} == {"identical"}


@pytest.mark.parametrize("option", ["-r", "-a"])
def test_listing_options_go_with_no_name(run: Run, past: History, option: str) -> None:
    assert run("branch", option, "new").exit_code == 2
