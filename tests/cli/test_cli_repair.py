"""``moonclip fsck --repair``, and what ``fsck`` says beside what is wrong."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from store.ids import short
from tests.stores import History, damage

Out = Callable[..., str]
Document = Callable[..., Any]
Run = Callable[..., Result]


@pytest.fixture
def copy(past: History, tmp_path: Path) -> Path:
    """Another copy of the store, from before the damage."""
    shutil.copytree(past.root, tmp_path / "copy")
    return tmp_path / "copy"


def test_nothing_to_repair(output: Out, past: History) -> None:
    assert past.main
    assert output("fsck", "--repair").startswith("clean: 6 commits")


def test_all_is_repaired_from_another_copy(run: Run, output: Out, past: History, copy: Path) -> None:
    damage(past.root, "fc.weight", "best")
    result = run("fsck", "--repair", "--from", copy)
    assert (result.exit_code, result.stderr) == (3, "")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("object: pack ")
    assert any(line.startswith("repaired: 1 lost objects") for line in lines)
    assert any("moved into quarantine" in line for line in lines)
    assert lines[-1].startswith("clean: 6 commits")
    assert "1 damaged files in quarantine" in output("fsck")


def test_all_is_repaired_from_a_remote(run: Run, output: Out, past: History, tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    output("remote", "add", "origin", tmp_path / "away")
    output("push", "--all", "--tags")
    damage(past.root, "fc.weight", "best")
    assert run("fsck", "--repair").exit_code == 4
    result = run("fsck", "--repair", "--from", "origin")
    assert (result.exit_code, result.stderr) == (3, "")
    assert any(line.startswith("repaired: 1 lost objects") for line in result.stdout.splitlines())
    assert "\nclean: 6 commits" in output("fsck", "--full")


def test_what_remains_is_told_with_the_way_on(run: Run, past: History) -> None:
    damage(past.root, "fc.weight", "main")
    result = run("fsck", "--repair")
    assert (result.exit_code, result.stderr) == (4, "")
    assert "what remains:\nmissing: chunk " in result.stdout
    assert f"branch main: the newest commit that is whole is {short(past.main[2])}; `resume`" in result.stdout
    again = run("fsck", "--repair")
    assert again.exit_code == 4
    assert "repaired:" not in again.stdout
    assert run("fsck").exit_code == 1


def test_no_commit_of_a_branch_is_whole(run: Run, past: History) -> None:
    damage(past.root, "embed.weight", "main")  # which all commits share
    result = run("fsck")
    assert result.exit_code == 1
    assert "branch main: no commit of it is whole" in result.stdout
    assert "branch exp/lr3: no commit of it is whole" in result.stdout


def test_a_dry_run_changes_nothing(run: Run, past: History, copy: Path) -> None:
    damage(past.root, "fc.weight", "main")
    packs = {path: path.read_bytes() for path in (past.root / "packs").iterdir()}
    result = run("fsck", "--repair", "-n", "--from", copy)
    assert result.exit_code == 1
    assert "would be: 1 lost objects" in result.stdout
    assert {path: path.read_bytes() for path in (past.root / "packs").iterdir()} == packs
    assert not (past.root / "quarantine").exists()


def test_for_programs(run: Run, document: Document, past: History, copy: Path) -> None:
    damage(past.root, "fc.weight", "main")
    found = json.loads(run("fsck", "--json").stdout)
    assert found["last_good"] == {"main": past.main[2].hex(), "exp/lr3": past.branched[0].hex()}
    assert set(found["affected"]) == {past.main[3].hex(), past.branched[1].hex()}  # which are of one state
    assert "steps" not in found
    result = run("fsck", "--repair", "--from", copy, "--json")
    done = json.loads(result.stdout)
    assert result.exit_code == 3
    assert (done["clean"], done["before"]["clean"], done["before"]["findings"]) == (True, False, found["findings"])
    assert len(done["steps"]) == 4
    assert [note["kind"] for note in document("fsck")["notes"]] == ["quarantine"]


@pytest.mark.parametrize("arguments", [["--dry-run"], ["--from", "."], ["--repair", "--from", "nowhere"]])
def test_wrong_calls(run: Run, past: History, arguments: list[str]) -> None:
    assert past.main
    assert run("fsck", *arguments).exit_code == 2


def test_a_copy_that_is_no_store(run: Run, past: History, tmp_path: Path) -> None:
    assert past.main
    result = run("fsck", "--repair", "--from", tmp_path)
    assert result.exit_code == 1
    assert "no store at" in result.stderr


def test_the_exit_codes_are_in_the_help(output: Out) -> None:
    text = " ".join(output("fsck", "--help").split())
    assert "Exits with 0 if nothing is wrong, 1 if something is, 2 if it was called wrongly" in text
    assert "with 3 if all was repaired, 4 if damage remains" in text
