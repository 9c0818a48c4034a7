"""``moonclip gc --remote`` and ``moonclip fsck --remote``."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from moonclip.cli.gc import _wait
from store.naming.refnames import branch_name
from store.repository import Repository
from tests.stores import History, commit

Out = Callable[..., str]
Document = Callable[..., Any]
Run = Callable[..., Result]


@pytest.fixture
def there(past: History, output: Out, tmp_path: Path) -> Path:
    """A remote that has the branch main, and packs of a branch that it has no longer."""
    directory = tmp_path / "there"
    directory.mkdir()
    output("remote", "add", "origin", directory)
    output("push")
    with Repository.open(past.root) as repo:
        repo.set_ref(branch_name("other"), None, past.main[0], "branch")
        commit(repo, "other", step=7777)
    output("push", "origin", "other")
    output("push", "--delete", "other")
    return directory


def packs(there: Path) -> set[str]:
    return {path.name for path in (there / "packs").glob("*.pack")}


# --- gc -------------------------------------------------------------------------------------------------------------


def test_gc_condemns_then_removes(output: Out, document: Document, past: History, there: Path) -> None:
    before = packs(there)
    assert output("gc", "--remote", "origin") == "nothing to remove\n"
    told = output("gc", "--remote", "origin", "--grace", "0s", "--dry-run")
    assert told.startswith("1 pack of ")
    assert " would be condemned; gc removes them when it runs again, " in told
    assert output("gc", "--remote", "origin", "--grace", "0s") == told.replace("would be ", "")
    assert packs(there) == before
    done = document("gc", "--remote", "origin", "--grace", "0s")
    assert (done["removed_count"], done["condemned_count"], done["dry_run"]) == (1, 0, False)
    assert len(packs(there)) == len(before) - 1
    assert output("gc", "--remote", "origin", "--grace", "0s") == "nothing to remove\n"
    assert output("fsck", "--remote", "origin", "--full").startswith("clean: 4 commits, ")


def test_gc_tells_how_long_packs_stay(output: Out, past: History, there: Path) -> None:
    for path in (there / "packs").iterdir():
        os.utime(path, (0, 0))
    said = output("gc", "--remote", "origin")
    assert " condemned; gc removes them when it runs in 24 hours or later, " in said
    assert " when it runs in 36 hours or later, " in output("gc", "--remote", "origin", "--grace", "36h")


@pytest.mark.parametrize(
    ("wait_seconds", "words"), [(0, "again"), (61, "in 2 minutes or later"), (6000, "in 2 hours or later")]
)
def test_how_long_is_told(wait_seconds: float, words: str) -> None:
    assert _wait(wait_seconds) == words


def test_gc_tells_what_it_keeps_after_all(output: Out, past: History, there: Path) -> None:
    output("gc", "--remote", "origin", "--grace", "0s")
    assert output("gc", "--remote", "origin") == "1 pack that had been condemned kept after all\n"


def test_gc_leaves_the_store_alone(output: Out, past: History, there: Path) -> None:
    local = {path.name for path in (past.root / "packs").iterdir()}
    for _ in range(2):
        output("gc", "--remote", "origin", "--grace", "0s")
    assert {path.name for path in (past.root / "packs").iterdir()} == local


@pytest.mark.parametrize("arguments", [["--grace", "1h"], ["--remote"]])
def test_gc_usage(run: Run, past: History, arguments: list[str]) -> None:
    assert run("gc", *arguments).exit_code == 2


def test_remotes_that_are_not(failure: Out, past: History, there: Path) -> None:
    assert "there are: origin" in failure("gc", "--remote", "backup")
    assert "there are: origin" in failure("fsck", "--remote", "backup")
    assert "'soon'" in failure("gc", "--remote", "origin", "--grace", "soon")


# --- fsck -----------------------------------------------------------------------------------------------------------


def test_fsck_of_what_is_whole(output: Out, document: Document, past: History, there: Path) -> None:
    assert output("fsck", "--remote", "origin").startswith("clean: 4 commits, 2 packs, ")
    told = document("fsck", "--remote", "origin", "--full")
    assert (told["clean"], told["full"], told["lost"], told["url"]) == (True, True, [], there.as_uri())


def test_f9_what_is_lost_is_named_and_pushed_again(run: Run, output: Out, past: History, there: Path) -> None:
    for path in sorted((there / "packs").iterdir()):
        path.unlink()
    result = run("fsck", "--remote", "origin")
    assert result.exit_code == 1
    assert "affects " in result.stdout or "missing" in result.stdout
    assert "`moonclip push origin` sends again" in result.stdout
    assert json.loads(run("fsck", "--remote", "origin", "--json").stdout)["lost"]
    assert "objects, " in output("push")
    assert output("fsck", "--remote", "origin", "--full").startswith("clean: 4 commits, ")


def test_f9_push_looks_itself_if_told(run: Run, output: Out, past: History, there: Path) -> None:
    for path in sorted((there / "packs").iterdir()):
        path.unlink()
    assert "objects, " not in output("push")
    assert "objects, " in output("push", "--verify")
    assert output("fsck", "--remote", "origin", "--full").startswith("clean: 4 commits, ")


@pytest.mark.parametrize("arguments", [["--repair", "--remote", "origin"], ["--remote", "origin", "--dry-run"]])
def test_fsck_usage(run: Run, past: History, arguments: list[str]) -> None:
    assert run("fsck", *arguments).exit_code == 2
