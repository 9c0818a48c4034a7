"""Commands that select history, and move what names it."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from moonclip.cli.app import commands
from store.ids import CommitId, short
from store.naming.refnames import branch_name
from store.repository import Repository
from store.upkeep.absences import Absence, Why
from tests.stores import History, commit

Out = Callable[..., str]
Document = Callable[..., Any]


def ids(document: Any) -> list[str]:
    return [each["id"] for each in document]


def hexes(commits: Sequence[CommitId], *numbers: int) -> list[str]:
    return [commits[number].hex() for number in numbers]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--where", "loss<1.5"], [3, 2]),
        (["--where", "loss<1.5", "--where", "step<300"], [2]),
        (["--where", "loss<1.5", "-n", "1"], [3]),
        (["--where", "loss<0"], []),
        (["--branch", "main"], [3, 2, 1, 0]),
        (["--since", "1h"], [3, 2, 1, 0]),
        (["--until", "1h"], []),
        (["--since", "1h", "--until", "2000-01-01"], []),
    ],
)
def test_log_of_some_commits(document: Document, past: History, options: list[str], expected: list[int]) -> None:
    assert ids(document("log", *options)) == hexes(past.main, *expected)


def test_log_of_a_branch_begins_at_its_tip_and_leaves_out_where_it_came_from(document: Document, past: History) -> None:
    assert ids(document("log", "--branch", "exp/lr3")) == hexes(past.branched, 1, 0)
    assert ids(document("log", "exp/lr3")) == [*hexes(past.branched, 1, 0), *hexes(past.main, 1, 0)]


def test_a_graph_of_some_commits_joins_them(output: Out, past: History) -> None:
    drawn = output("log", "--graph", "--oneline", "--all", "--where", "step!=100").splitlines()
    assert [re.sub(r"[0-9a-f]{8} .*", "", line).rstrip() for line in drawn] == ["*", "*", "| *", "| *", "|/", "*"]


def test_log_shows_what_was_asked_for(run: Callable[..., Result], past: History) -> None:
    lines = run("log", "--show", "loss, lr", "--size").stdout.splitlines()
    assert re.fullmatch(
        rf"{short(past.main[3])} \(HEAD -> main\) step 300  loss=0.5  just now  \+[\d.]+ (B|KiB)", lines[0]
    )
    assert len(lines) == 4


def test_log_tells_what_a_commit_added(document: Document, output: Out, past: History) -> None:
    added = {each["id"]: each["added_bytes"] for each in document("log", "--size")}
    with Repository.open(past.root) as repo:
        again = commit(repo, step=300, message="the same once more")
        stored = {place for pack in repo.packs.pack_ids() for place in repo.packs.table(pack).entries}
    assert sum(added.values()) <= sum(entry.stored_bytes for entry in stored)
    (listed,) = document("log", "-n", "1", "--size")
    assert listed["id"] == again.hex()
    assert 0 < listed["added_bytes"] < min(added.values())  # a commit object and nothing else
    assert re.search(r"^Added:   \d+ B$", output("log", "-n", "1", "--size"), re.MULTILINE)


@pytest.mark.parametrize("options", [["--where", "loss"], ["--since", "soon"], ["--json", "--show", "loss"]])
def test_what_log_cannot_understand(run: Callable[..., Result], past: History, options: list[str]) -> None:
    assert run("log", *options).exit_code != 0
    assert run("log", "--oneline", "--show", "loss").exit_code == 2


def test_reset_moves_a_branch_and_back(output: Out, document: Document, past: History) -> None:
    said = output("reset", "step:100")
    assert said == f"branch main is at {short(past.main[1])}, was at {short(past.main[3])}\n"
    assert ids(document("log")) == hexes(past.main, 1, 0)
    output("reset", "main@{1}")
    assert ids(document("log")) == hexes(past.main, 3, 2, 1, 0)
    assert [line["action"] for line in document("reflog", "main")[:2]] == ["reset", "reset"]


def test_reset_of_another_branch_reads_the_revision_there(output: Out, document: Document, past: History) -> None:
    output("reset", "--branch", "exp/lr3", "step:200")
    assert ids(document("log", "--branch", "exp/lr3")) == hexes(past.branched, 0)
    assert ids(document("log", "-n", "1")) == hexes(past.main, 3)


def test_reset_of_what_is_no_branch(failure: Out, past: History) -> None:
    assert "no branch 'tpyo'" in failure("reset", "--branch", "tpyo", "main")


def test_a_branch_is_renamed(output: Out, document: Document, past: History) -> None:
    output("branch", "-m", "exp/lr3", "exp/best")
    assert {each["name"] for each in document("branch")} == {"main", "exp/best"}
    assert [line["action"] for line in document("reflog", "exp/best")] == ["rename"]
    assert document("reflog", "exp/lr3")[0]["action"] == "rename"


def test_the_current_branch_is_renamed(output: Out, document: Document, past: History) -> None:
    output("branch", "-m", "trunk")
    assert [each["name"] for each in document("branch") if each["current"]] == ["trunk"]
    assert ids(document("log", "-n", "1")) == hexes(past.main, 3)


def test_the_log_of_a_renamed_branch_has_what_was_made_under_its_old_names(
    output: Out, document: Document, past: History
) -> None:
    output("branch", "-m", "exp/lr3", "exp/best")
    output("branch", "-m", "exp/best", "lr3")
    assert ids(document("log", "--branch", "lr3")) == hexes(past.branched, 1, 0)
    with Repository.open(past.root) as repo:
        newer = commit(repo, "lr3", step=400)
        of_that_name = commit(repo, "exp/lr3", step=0)  # a script still saves under the old name: another branch
    assert ids(document("log", "--branch", "lr3")) == [newer.hex(), *hexes(past.branched, 1, 0)]
    assert ids(document("log", "--branch", "exp/lr3")) == [of_that_name.hex()]
    output("branch", "-m", "lr3", "exp/best")  # and back to a name that it has had
    assert ids(document("log", "--branch", "exp/best")) == [newer.hex(), *hexes(past.branched, 1, 0)]


def test_a_branch_off_a_renamed_one_has_none_of_its_commits(output: Out, document: Document, past: History) -> None:
    output("branch", "fork", "main")
    output("branch", "-m", "main", "trunk")
    assert ids(document("log", "--branch", "trunk")) == hexes(past.main, 3, 2, 1, 0)
    assert ids(document("log", "--branch", "fork")) == []
    assert ids(document("log", "--branch", "exp/lr3")) == hexes(past.branched, 1, 0)


def test_a_clone_shows_what_was_made_on_a_branch_before_it_was_renamed(
    output: Out, document: Document, past: History
) -> None:
    output("branch", "-m", "exp/lr3", "lr3")
    (past.root.parent / "copies").mkdir()
    output("remote", "add", "copy", "copies")
    output("push", "copy", "lr3")
    output("clone", "copies", "copy", "--branch", "lr3")
    assert ids(document("-C", "copy", "log", "--branch", "lr3")) == hexes(past.branched, 1, 0)


def test_a_branch_is_not_renamed_over_another(failure: Out, document: Document, past: History) -> None:
    failure("branch", "-m", "exp/lr3", "main")
    assert {each["name"] for each in document("branch")} == {"main", "exp/lr3"}


def test_rename_usage(run: Callable[..., Result], past: History) -> None:
    assert run("branch", "-m").exit_code == 2
    assert run("branch", "-m", "-d", "main").exit_code == 2


def script(tmp_path: Path, body: str) -> list[str]:
    (tmp_path / "try.py").write_text(f"import os, sys\nstep = int(os.environ['MOONCLIP_STEP'])\n{body}\n")
    return [sys.executable, str(tmp_path / "try.py")]


def long_line(root: Path, count: int) -> list[CommitId]:
    with Repository.open(root) as repo:
        repo.set_ref(branch_name("long"), None, repo.resolve("main"), "branch")
        return [commit(repo, "long", items=[], step=step, message=f"step {step}") for step in range(count)]


def test_bisect_finds_the_first_bad_commit(run: Callable[..., Result], past: History, tmp_path: Path) -> None:
    line = long_line(past.root, 20)
    tried = script(tmp_path, "sys.exit(1 if step >= 13 else 0)")
    result = run("bisect", "run", "--good", "main", "--bad", "long", *tried)
    assert (result.exit_code, result.stdout) == (0, f"{short(line[13])} step 13  step 13 is the first bad commit\n")
    assert result.stderr.count("trying") <= 5


def test_bisect_gives_ids_and_leaves_out_what_cannot_be_tried(
    run: Callable[..., Result], document: Document, past: History, tmp_path: Path
) -> None:
    line = long_line(past.root, 6)
    tried = script(
        tmp_path, "assert sys.argv[1] == os.environ['MOONCLIP_COMMIT']\nsys.exit(125 if step in (2, 3) else step > 2)"
    )
    result = run("bisect", "run", "--good", "main", "--bad", "long", "--json", *tried, "{}")
    assert result.exit_code == 0
    assert all(each.hex() in result.stdout for each in line[2:5])
    assert '"found": false' in result.stdout


def test_bisect_does_not_try_what_was_pruned(run: Callable[..., Result], past: History, tmp_path: Path) -> None:
    line = long_line(past.root, 9)
    with Repository.open(past.root) as repo:
        repo.absences.add(Absence.of(each, None, Why.PRUNED, 1) for each in line[1:6])
    tried = script(tmp_path, "sys.exit(1 if 1 <= step < 6 or step >= 7 else 0)")
    result = run("bisect", "run", "--good", "main", "--bad", "long", *tried)
    assert (result.exit_code, result.stdout) == (0, f"{short(line[7])} step 7  step 7 is the first bad commit\n")


def test_bisect_keeps_what_the_command_prints_out_of_json(past: History, capfd: pytest.CaptureFixture[str]) -> None:
    long_line(past.root, 6)
    command = ["-C", str(past.root), "bisect", "run", "--good", "main", "--bad", "long", "--json", "echo", "tried"]
    commands(command, standalone_mode=False)
    out, err = capfd.readouterr()
    assert json.loads(out)["found"] is True
    assert "tried\n" in err


def test_bisect_stops_at_what_says_neither(run: Callable[..., Result], past: History, tmp_path: Path) -> None:
    long_line(past.root, 6)
    tried = script(tmp_path, "os.kill(os.getpid(), 9)")
    result = run("bisect", "run", "--good", "main", "--bad", "long", *tried)
    assert result.exit_code == 1
    assert "neither good nor bad" in result.stderr


@pytest.mark.parametrize(("good", "bad", "said"), [("main", "main", "the same"), ("best", "main", "does not descend")])
def test_bisect_between_what_is_no_line(failure: Out, past: History, good: str, bad: str, said: str) -> None:
    assert said in failure("bisect", "run", "--good", good, "--bad", bad, "true")
