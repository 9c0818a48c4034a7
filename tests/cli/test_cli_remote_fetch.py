"""``moonclip fetch``, ``pull`` and ``clone``."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from store.ids import CommitId, short
from store.naming.refnames import RefName
from store.repository import Repository
from tests.stores import History, commit

Out = Callable[..., str]
Document = Callable[..., Any]
Run = Callable[..., Result]


@pytest.fixture
def there(past: History, output: Out, tmp_path: Path) -> Path:
    """A remote that has all that the store has."""
    directory = tmp_path / "there"
    directory.mkdir()
    output("remote", "add", "origin", directory)
    output("push", "--all", "--tags")
    return directory


@pytest.fixture
def other(there: Path, tmp_path: Path, output: Out) -> Path:
    """A clone of it."""
    output("clone", there, tmp_path / "other")
    return tmp_path / "other"


def save(root: Path, step: int, branch: str = "main") -> CommitId:
    with Repository.open(root) as repo:
        return commit(repo, branch, step=step)


def held(root: Path, ref: str) -> CommitId | None:
    with Repository.open(root, read_only=True) as repo:
        return repo.refs.read(RefName(ref))


def contents(output: Out, *arguments: object) -> str:
    return output(*arguments, "ls", "main", "--json")


# --- clone ----------------------------------------------------------------------------------------------------------


def test_clone(output: Out, document: Document, past: History, there: Path, tmp_path: Path) -> None:
    path = tmp_path / "other"
    assert output("clone", there, path) == f"cloned into {path}, on branch main, at {short(past.main[3])}\n"
    assert [each["name"] for each in document("-C", path, "branch", "-a")] == [
        "main",
        "remotes/origin/exp/lr3",
        "remotes/origin/main",
    ]
    assert document("-C", path, "tag") == document("tag")
    assert document("-C", path, "remote")[0]["url"] == there.as_uri()
    assert output("-C", path, "fsck", "--full").startswith("clean: 6 commits, ")
    assert contents(output, "-C", path) == contents(output)


def test_clone_goes_where_a_store_lies_if_nothing_else_is_said(
    output: Out, document: Document, past: History, there: Path, tmp_path: Path
) -> None:
    past.root.rename(tmp_path / "away")
    made = document("clone", there.as_uri(), "-b", "exp/lr3")
    assert made == {"path": str(tmp_path / "checkpoints"), "branch": "exp/lr3", "commit": past.branched[1].hex()}
    assert document("log", "-n", "1")[0]["id"] == past.branched[1].hex()
    output("-C", tmp_path / "third", "clone", there)
    assert held(tmp_path / "third", "branches/main") == past.main[3]


def test_clone_refuses_a_store(failure: Out, past: History, there: Path) -> None:
    assert "there is a store" in failure("clone", there)
    assert held(past.root, "branches/main") == past.main[3]


def test_clone_some_items(output: Out, document: Document, past: History, there: Path, tmp_path: Path) -> None:
    output("clone", there, tmp_path / "other", "--item", "model")
    tip = document("-C", tmp_path / "other", "log", "-n", "1")[0]
    assert tip["absent"] == {"optimizer": "partial", "settings": "partial"}
    assert output("-C", tmp_path / "other", "fsck", "--full").startswith("clean: ")


def test_clone_only_what_is_new(document: Document, output: Out, past: History, there: Path, tmp_path: Path) -> None:
    output("clone", there, tmp_path / "other", "--depth", "1")
    absent = [bool(each["absent"]) for each in document("-C", tmp_path / "other", "log")]
    assert absent == [False, True, True, True]


def test_clone_lazily(document: Document, output: Out, past: History, there: Path, tmp_path: Path) -> None:
    output("clone", there, tmp_path / "other", "--lazy")
    assert document("-C", tmp_path / "other", "remote")[0]["lazy"]
    assert all(each["absent"] for each in document("-C", tmp_path / "other", "log"))


def test_clone_what_is_not_there(failure: Out, tmp_path: Path) -> None:
    assert str(tmp_path / "nowhere") in failure("clone", tmp_path / "nowhere", tmp_path / "other")


@pytest.mark.parametrize("arguments", [[], ["there", "--depth", "0"]])
def test_clone_usage(run: Run, arguments: list[str]) -> None:
    assert run("clone", *arguments).exit_code == 2


# --- fetch ----------------------------------------------------------------------------------------------------------


def test_fetch(output: Out, document: Document, past: History, other: Path) -> None:
    assert output("-C", other, "fetch") == "nothing new\n"
    new = save(past.root, 400)
    output("push")
    said = output("-C", other, "fetch", "origin", "main")
    assert said.startswith(f"main -> origin/main  {short(past.main[3])}..{short(new)}  ")
    assert "objects, " in said
    assert held(other, "remotes/origin/main") == new
    assert held(other, "branches/main") == past.main[3]
    assert output("-C", other, "remote", "show").splitlines()[2].endswith("here 1 commit behind")


def test_a_dry_run_fetches_nothing(output: Out, past: History, other: Path) -> None:
    new = save(past.root, 400)
    output("push")
    told = output("-C", other, "fetch", "--dry-run")
    assert told.startswith(f"main -> origin/main  {short(past.main[3])}..{short(new)}  would fetch 1 commit, at most ")
    assert held(other, "remotes/origin/main") == past.main[3]
    assert output("-C", other, "fetch").startswith(told.partition("would")[0])
    assert held(other, "remotes/origin/main") == new


def test_fetch_forgets_branches_only_when_told(output: Out, past: History, other: Path) -> None:
    output("push", "-d", "exp/lr3")
    assert output("-C", other, "fetch") == "nothing new\n"
    assert held(other, "remotes/origin/exp/lr3") == past.branched[1]
    assert output("-C", other, "fetch", "--prune") == f"origin/exp/lr3 deleted (was {short(past.branched[1])})\n"
    assert held(other, "remotes/origin/exp/lr3") is None


def test_tags_that_moved_there_stay_here(run: Run, output: Out, past: History, other: Path) -> None:
    output("tag", "-f", "best", "main")
    output("push", "--tag", "best", "--force-with-lease")
    result = run("-C", other, "fetch")
    assert "best -> best" in result.stdout
    assert "(not moved)" in result.stdout
    assert "tags do not move" in result.stderr
    assert held(other, "tags/best") == past.branched[0]


def test_the_rest_of_a_partial_clone(output: Out, document: Document, past: History, there: Path) -> None:
    output("clone", there, "other", "--item", "model")
    assert "objects, " in output("-C", "other", "fetch")
    assert document("-C", "other", "log", "-n", "1")[0]["absent"] == {}
    assert contents(output, "-C", "other") == contents(output)


def test_fetch_for_programs(document: Document, output: Out, past: History, other: Path) -> None:
    new = save(past.root, 400)
    output("push")
    done = document("-C", other, "fetch")
    assert [change for change in done["changes"] if change["why"] != "current"] == [
        {"ref": "remotes/origin/main", "old": past.main[3].hex(), "new": new.hex(), "why": "fast-forward", "reason": ""}
    ]
    assert done["received_bytes"] > 0
    assert set(done) == {
        "remote",
        "dry_run",
        "changes",
        "commits",
        "objects",
        "received_bytes",
        "most_bytes",
        "diverged",
        "damaged",
    }


def test_branches_that_the_remote_lacks(failure: Out, other: Path) -> None:
    assert "'nothing'" in failure("-C", other, "fetch", "origin", "nothing")


@pytest.mark.parametrize("arguments", [["--depth", "0"], ["--what"]])
def test_fetch_usage(run: Run, past: History, there: Path, arguments: list[str]) -> None:
    assert run("fetch", *arguments).exit_code == 2


def test_content_of_a_commit_that_was_pruned(output: Out, document: Document, past: History, other: Path) -> None:
    output("-C", other, "prune", "--keep-last", "1", "--gc")
    assert document("-C", other, "log")[1]["absent"]
    assert output("-C", other, "fetch") == "nothing new\n"
    said = output("-C", other, "fetch", "--commit", "main~1")
    assert said.endswith(f"commit {short(past.main[2])} is whole\n")
    assert [bool(each["absent"]) for each in document("-C", other, "log")] == [False, False, True, True]


# --- pull -----------------------------------------------------------------------------------------------------------


def test_pull(output: Out, document: Document, past: History, other: Path) -> None:
    new = save(past.root, 400)
    output("push")
    *_, last = output("-C", other, "pull").splitlines()
    assert last == f"main is at {short(new)}, was at {short(past.main[3])}"
    assert held(other, "branches/main") == new
    assert output("-C", other, "pull") == f"main is up to date, at {short(new)}\n"
    assert document("-C", other, "reflog")[0]["action"] == "pull"


def test_pull_a_branch_that_is_not_here(output: Out, past: History, other: Path) -> None:
    said = output("-C", other, "pull", "origin", "exp/lr3")
    assert said.endswith(f"exp/lr3 is at {short(past.branched[1])}, which is new here\n")
    assert held(other, "branches/exp/lr3") == past.branched[1]


def test_pull_never_rolls_back(output: Out, past: History, other: Path) -> None:
    mine = save(other, 350)
    assert output("-C", other, "pull") == "main is 1 commit ahead of origin/main\n"
    assert held(other, "branches/main") == mine


def test_pull_of_what_went_apart(run: Run, output: Out, past: History, other: Path) -> None:
    save(past.root, 400)
    output("push")
    mine = save(other, 350)
    result = run("-C", other, "pull")
    assert result.exit_code == 1
    assert held(other, "branches/main") == mine
    assert held(other, "remotes/origin/main") != past.main[3]
    advised = re.search(r"`moonclip (merge [^`]+)`", result.stderr)
    assert advised is not None
    output("-C", other, *advised[1].split())
    assert output("-C", other, "push").startswith("main -> origin/main")


# --- damage ---------------------------------------------------------------------------------------------------------


def test_damage_there_is_told_and_moves_nothing(run: Run, output: Out, past: History, other: Path, there: Path) -> None:
    before = {path.name for path in (there / "packs").iterdir()}
    save(past.root, 400)
    output("push")
    for path in (there / "packs").iterdir():
        if path.name not in before and path.suffix == ".pack":
            data = bytearray(path.read_bytes())
            data[200] ^= 0xFF
            path.write_bytes(data)
    result = run("-C", other, "fetch")
    assert result.exit_code == 1
    assert "error: " in result.stderr
    assert held(other, "remotes/origin/main") == past.main[3]
    assert output("-C", other, "fsck", "--full").startswith("clean: ")
