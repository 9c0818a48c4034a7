"""``moonclip push``."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from store.ids import short
from store.naming.refnames import RefName
from store.repository import Repository
from tests.stores import History, commit

Out = Callable[..., str]
Document = Callable[..., Any]
Run = Callable[..., Result]


@pytest.fixture
def there(past: History, output: Out, tmp_path: Path) -> Path:
    """An empty remote of that store."""
    directory = tmp_path / "there"
    directory.mkdir()
    output("remote", "add", "origin", directory)
    return directory


def refs_of(document: Document, *arguments: object) -> dict[str, str]:
    return {each["ref"]: each["commit"] for each in document("ls-remote", *arguments)}


def save(past: History, step: int, branch: str = "main") -> str:
    with Repository.open(past.root) as repo:
        return commit(repo, branch, step=step).hex()


def move(past: History, ref: str, revision: str) -> None:
    with Repository.open(past.root) as repo:
        name = RefName(ref)
        repo.set_ref(name, repo.refs.read(name), repo.resolve(revision), "reset")


# --- what goes over -------------------------------------------------------------------------------------------------


def test_the_current_branch(output: Out, document: Document, past: History, there: Path) -> None:
    first = output("push")
    assert first.startswith(f"main -> origin/main  {short(past.main[3])} (new)  ")
    assert "objects, " in first
    assert refs_of(document) == {"branches/main": past.main[3].hex()}
    assert document("branch", "-r")[0]["commit"] == past.main[3].hex()
    assert output("push") == f"main -> origin/main  {short(past.main[3])} (up to date)\n"


def test_a_branch_that_went_on(output: Out, document: Document, past: History, there: Path) -> None:
    output("push")
    new = save(past, 400)
    said = output("push", "origin", "main")
    assert said.startswith(f"main -> origin/main  {short(past.main[3])}..{new[:8]}  ")
    assert refs_of(document) == {"branches/main": new}


def test_several(output: Out, document: Document, past: History, there: Path) -> None:
    *lines, total = output("push", "--all", "--tags").splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "exp/lr3 -> origin/exp/lr3",
        "main -> origin/main",
        "best -> best",
    ]
    assert all(line.endswith(" (new)") for line in lines)
    assert total.split()[1] == "objects,"
    assert set(refs_of(document)) == {"branches/exp/lr3", "branches/main", "tags/best"}


def test_only_a_tag(output: Out, document: Document, past: History, there: Path) -> None:
    assert output("push", "--tag", "best").startswith(f"best -> best  {short(past.branched[0])} (new)")
    assert refs_of(document) == {"tags/best": past.branched[0].hex()}


def test_a_dry_run_sends_nothing(output: Out, document: Document, past: History, there: Path) -> None:
    told = output("push", "-n").replace("would send ", "").partition(", about ")
    assert list(there.iterdir()) == []
    assert output("branch", "-r") == ""
    done = output("push").partition(", ")
    assert told[0] == done[0]
    assert told[2].endswith(" KiB\n")


def test_push_for_programs(document: Document, past: History, there: Path) -> None:
    done = document("push")
    assert done["changes"] == [
        {"ref": "branches/main", "old": None, "new": past.main[3].hex(), "why": "new", "reason": ""}
    ]
    assert (done["remote"], done["dry_run"], done["commits"]) == ("origin", False, 4)
    assert 0 < done["stored_bytes"] <= done["sent_bytes"]
    assert set(done) == {
        "remote",
        "dry_run",
        "changes",
        "commits",
        "commits_without_content",
        "objects",
        "stored_bytes",
        "sent_bytes",
        "packs",
        "skipped_packs",
    }


# --- what does not --------------------------------------------------------------------------------------------------


def test_what_would_lose_commits_is_rejected(
    run: Run, output: Out, document: Document, past: History, there: Path
) -> None:
    output("push")
    move(past, "branches/main", "main~1")
    result = run("push")
    assert result.exit_code == 1
    assert result.stdout == f"main -> origin/main  {short(past.main[3])}...{short(past.main[2])} (rejected)\n"
    assert "fetch" in result.stderr
    assert refs_of(document) == {"branches/main": past.main[3].hex()}
    assert output("push", "--force-with-lease").startswith(
        f"main -> origin/main  {short(past.main[3])}...{short(past.main[2])} (forced)"
    )
    assert refs_of(document) == {"branches/main": past.main[2].hex()}


def test_a_rejection_for_programs(run: Run, output: Out, past: History, there: Path) -> None:
    output("push")
    move(past, "branches/main", "main~1")
    result = run("push", "--json")
    assert result.exit_code == 1
    (change,) = json.loads(result.stdout)["changes"]
    assert change["why"] == "rejected"
    assert change["reason"] in result.stderr


def test_delete_a_branch_there(output: Out, document: Document, past: History, there: Path) -> None:
    output("push", "--all")
    assert output("push", "--delete", "exp/lr3") == f"origin/exp/lr3 deleted (was {short(past.branched[1])})\n"
    assert set(refs_of(document)) == {"branches/main"}
    assert [each["name"] for each in document("branch", "-a")] == ["exp/lr3", "main", "remotes/origin/main"]


def test_branches_that_are_not(failure: Out, past: History, there: Path) -> None:
    assert "'nothing'" in failure("push", "origin", "nothing")
    assert list(there.iterdir()) == []


def test_a_remote_that_is_not(failure: Out, output: Out, past: History, tmp_path: Path) -> None:
    output("remote", "add", "origin", tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in failure("push")
    assert str(tmp_path / "nowhere") in failure("ls-remote")


@pytest.mark.parametrize("arguments", [["--all", "origin", "main"], ["--what"]])
def test_push_usage(run: Run, past: History, there: Path, arguments: list[str]) -> None:
    assert run("push", *arguments).exit_code == 2


# --- looking at what is there ---------------------------------------------------------------------------------------


def test_ls_remote(output: Out, document: Document, past: History, there: Path, tmp_path: Path) -> None:
    assert output("ls-remote") == ""
    output("push", "--all", "--tags")
    listed = output("ls-remote")
    assert listed.splitlines() == [
        f"{past.branched[1].hex()}  branches/exp/lr3",
        f"{past.main[3].hex()}  branches/main",
        f"{past.branched[0].hex()}  tags/best",
    ]
    assert output("ls-remote", "origin") == listed
    output("push", "-d", "exp/lr3")
    assert output("ls-remote", there) == output("ls-remote", there.as_uri()) == output("ls-remote")
    assert refs_of(document) == refs_of(document, there)


def test_ls_remote_needs_no_store(output: Out, past: History, there: Path, tmp_path: Path, run: Run) -> None:
    output("push")
    past.root.rename(tmp_path / "away")
    assert output("ls-remote", there).endswith("  branches/main\n")
    assert "no store here" in run("ls-remote").stderr
    assert run("-C", tmp_path / "away", "ls-remote", "origin", "--path-style").exit_code == 2


def test_remote_show(output: Out, document: Document, past: History, there: Path) -> None:
    assert output("remote", "show").splitlines()[1] == "  nothing was pushed to it yet"
    output("push", "--all", "--tags")
    save(past, 400)
    move(past, "branches/exp/lr3", "main~1")
    output("tag", "-d", "best")
    lines = output("remote", "show", "origin").splitlines()
    assert lines == [
        f"origin  {there.as_uri()}",
        f"  branch 'exp/lr3'  {short(past.branched[1])}    here 2 commits ahead, 2 commits behind",
        f"  branch 'main'     {short(past.main[3])}    here 1 commit ahead",
        f"  tag 'best'        {short(past.branched[0])}    no such tag here",
    ]
    shown = document("remote", "show")
    assert (shown["name"], shown["url"]) == ("origin", there.as_uri())
    assert [(ref["ref"], ref["ahead"], ref["behind"]) for ref in shown["refs"]] == [
        ("branches/exp/lr3", 2, 2),
        ("branches/main", 1, 0),
        ("tags/best", None, None),
    ]


def test_remote_show_of_what_was_never_fetched(output: Out, document: Document, past: History, there: Path) -> None:
    output("push", "--all")
    output("-C", "other", "init")
    output("-C", "other", "remote", "add", "origin", there)
    assert output("-C", "other", "remote", "show").splitlines()[1].endswith("not fetched yet")
    assert not any(ref["is_here"] for ref in document("-C", "other", "remote", "show")["refs"])
