"""``moonclip branch``, ``switch``, ``tag`` and ``reflog``."""

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from moonclip.cli.app import commands
from store.ids import short
from store.naming.refnames import RefName
from store.repository import Repository
from tests.stores import History, commit

Out = Callable[..., str]
Document = Callable[..., Any]


def held(past: History, ref: str) -> str | None:
    with Repository.open(past.root, read_only=True) as repo:
        commit_id = repo.refs.read(RefName(ref))
        return None if commit_id is None else commit_id.hex()


# --- branch ---------------------------------------------------------------------------------------------------------


def test_branches(output: Out, document: Document, past: History) -> None:
    assert output("branch").splitlines() == [
        f"  exp/lr3  {short(past.branched[1])}  step 300  lr 3, step 300",
        f"* main     {short(past.main[3])}  step 300  loss=0.5",
    ]
    assert document("branch") == [
        {"name": "exp/lr3", "commit": past.branched[1].hex(), "current": False},
        {"name": "main", "commit": past.main[3].hex(), "current": True},
    ]


def test_make_a_branch(output: Out, past: History) -> None:
    assert output("branch", "here") == f"branch here is at {short(past.main[3])}\n"
    output("branch", "there", "exp/lr3@step:200")
    assert held(past, "branches/here") == past.main[3].hex()
    assert held(past, "branches/there") == past.branched[0].hex()


def test_names_that_cannot_be(failure: Out, past: History) -> None:
    assert "exists already" in (told := failure("branch", "main"))
    assert "`moonclip reset --branch main REVISION`" in told
    assert "'..'" in failure("branch", "a..b")
    assert "cannot be while there is a branch 'exp/lr3'" in failure("branch", "exp")
    assert held(past, "branches/main") == past.main[3].hex()


def test_delete_a_branch_and_bring_it_back(output: Out, past: History) -> None:
    said = output("branch", "-d", "exp/lr3")
    assert held(past, "branches/exp/lr3") is None
    output(*said.split("`")[1].split()[1:])
    assert held(past, "branches/exp/lr3") == past.branched[1].hex()


def test_branches_that_cannot_be_deleted(failure: Out, past: History) -> None:
    assert "is the current branch" in failure("branch", "-d", "main")
    assert "there are: exp/lr3, main" in failure("branch", "-d", "nothing")
    assert held(past, "branches/main") == past.main[3].hex()


@pytest.mark.parametrize("arguments", [["branch", "-d"], ["branch", "-d", "a", "b"], ["branch", "a", "--json"]])
def test_branch_usage(run: Callable[..., Result], past: History, arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


# --- switch ---------------------------------------------------------------------------------------------------------


def test_switch(output: Out, document: Document, failure: Out, past: History) -> None:
    assert output("switch", "exp/lr3") == f"on branch exp/lr3, at {short(past.branched[1])}\n"
    assert [each["name"] for each in document("branch") if each["current"]] == ["exp/lr3"]
    assert document("log", "-n", "1")[0]["id"] == past.branched[1].hex()
    assert "no branch 'nothing'" in failure("switch", "nothing")
    assert document("reflog")[0]["action"] == "switch"


# --- tag ------------------------------------------------------------------------------------------------------------


def test_tags(output: Out, document: Document, past: History) -> None:
    output("tag", "first", "main~3")
    assert output("tag").splitlines() == [
        f"best   {short(past.branched[0])}  step 200  lr 3, step 200",
        f"first  {short(past.main[0])}  step 0  loss=2.0",
    ]
    assert document("tag")[1] == {"name": "first", "commit": past.main[0].hex()}


def test_tags_move_only_by_force(output: Out, failure: Out, past: History) -> None:
    assert "tag 'best' exists already" in (told := failure("tag", "best"))
    assert "`moonclip tag -f best REVISION`" in told
    assert held(past, "tags/best") == past.branched[0].hex()
    output("tag", "-f", "best")
    assert held(past, "tags/best") == past.main[3].hex()
    output("tag", "-f", "new", "step:0")
    assert held(past, "tags/new") == past.main[0].hex()


def test_delete_a_tag_and_bring_it_back(output: Out, failure: Out, past: History) -> None:
    said = output("tag", "-d", "best")
    assert held(past, "tags/best") is None
    output(*said.split("`")[1].split()[1:])
    assert held(past, "tags/best") == past.branched[0].hex()
    assert "no tag 'nothing'" in failure("tag", "-d", "nothing")


@pytest.mark.parametrize("arguments", [["tag", "-d"], ["tag", "-f"], ["tag", "-d", "a", "b"], ["tag", "-d", "-f", "a"]])
def test_tag_usage(run: Callable[..., Result], past: History, arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


# --- reflog ---------------------------------------------------------------------------------------------------------


def test_reflog(output: Out, document: Document, past: History) -> None:
    lines = document("reflog", "exp/lr3")
    assert [(line["number"], line["action"]) for line in lines] == [(0, "save"), (1, "save"), (2, "branch")]
    assert lines[0]["new"] == past.branched[1].hex()
    assert lines[0]["old"] == lines[1]["new"]
    assert lines[2]["old"] is None
    newest = output("reflog", "exp/lr3").splitlines()[0].split("  ")
    assert newest[:2] == [short(past.branched[1]), "exp/lr3@{0}"]
    assert newest[-1] == "save: lr 3, step 300"
    assert len(document("reflog")) == 4


def test_numbers_of_the_reflog_are_revisions(document: Document, past: History) -> None:
    for line in document("reflog", "main"):
        assert document("log", "-n", "1", f"main@{{{line['number']}}}")[0]["id"] == line["new"]


def test_reflog_of_what_is_gone_and_of_what_never_was(
    output: Out, document: Document, failure: Out, past: History
) -> None:
    output("branch", "-d", "exp/lr3")
    assert document("reflog", "exp/lr3")[0]["new"] is None
    assert "deleted" in output("reflog", "exp/lr3").splitlines()[0]
    assert "no branch or tag 'nothing'" in failure("reflog", "nothing")


# --- completion -----------------------------------------------------------------------------------------------------


def completed(past: History, *arguments: str) -> list[str]:
    from click.shell_completion import ShellComplete

    given = ["-C", str(past.root), *arguments[:-1]]
    completions = ShellComplete(commands, {}, "moonclip", "_MOONCLIP_COMPLETE").get_completions(given, arguments[-1])
    return [completion.value for completion in completions]


def test_refs_complete(past: History) -> None:
    assert completed(past, "log", "") == ["HEAD", "exp/lr3", "main", "best"]
    assert completed(past, "log", "main", "e") == ["exp/lr3"]
    assert completed(past, "switch", "") == ["exp/lr3", "main"]
    assert completed(past, "tag", "-d", "b") == ["best"]
    assert "reindex" in completed(past, "")


def test_completion_outside_of_a_store_is_silent(past: History, run: Callable[..., Result]) -> None:
    (past.root / "format").unlink()
    assert completed(past, "log", "m") == ["main"]
    assert commands is not None


def test_a_branch_whose_commit_came_later_is_listed(output: Out, past: History) -> None:
    with Repository.open(past.root) as repo:
        latest = commit(repo, step=400)
    assert short(latest) in output("branch")
