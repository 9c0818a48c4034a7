"""``moonclip log``."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from moonclip.cli.app import commands
from store.ids import CommitId, short
from store.repository import Repository
from tests.stores import History, commit

Out = Callable[..., str]
Document = Callable[..., Any]


def hexes(*commits: CommitId) -> list[str]:
    return [each.hex() for each in commits]


def test_json_holds_all_there_is_to_know(document: Document, past: History) -> None:
    newest = document("log", "-n", "1")[0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", newest.pop("time"))
    assert isinstance(newest.pop("time_ns"), int)
    assert newest == {
        "id": past.main[3].hex(),
        "parents": [past.main[2].hex()],
        "step": 300,
        "branch": "main",
        "message": "",
        "metadata": {"loss": "0.5"},
        "items": ["model", "optimizer", "settings"],
        "absent": {},
        "refs": {"branches": ["main"], "tags": [], "remotes": []},
    }


@pytest.mark.parametrize(
    ("revisions", "expected"),
    [
        ([], [3, 2, 1, 0]),
        (["main~2"], [1, 0]),
        (["step:200"], [2, 1, 0]),
        (["-n", "2"], [3, 2]),
        (["-n", "0"], []),
    ],
)
def test_history_of_main(document: Document, past: History, revisions: list[str], expected: list[int]) -> None:
    assert [each["id"] for each in document("log", *revisions)] == hexes(*(past.main[n] for n in expected))


def test_several_revisions_and_all(document: Document, past: History) -> None:
    in_order = hexes(*reversed(past.main[2:]), *reversed(past.branched), *reversed(past.main[:2]))
    assert [each["id"] for each in document("log", "main", "exp/lr3")] == in_order
    assert [each["id"] for each in document("log", "--all")] == in_order
    assert [each["id"] for each in document("log", "best")] == hexes(past.branched[0], past.main[1], past.main[0])


def test_oneline(output: Out, past: History) -> None:
    assert output("log", "--oneline", "exp/lr3").splitlines() == [
        f"{short(past.branched[1])} (exp/lr3) step 300  lr 3, step 300",
        f"{short(past.branched[0])} (tag: best) step 200  lr 3, step 200",
        f"{short(past.main[1])} step 100  loss=1.5",
        f"{short(past.main[0])} step 0  loss=2.0",
    ]


def test_graph(output: Out, past: History) -> None:
    lines = output("log", "--graph", "--oneline", "--all").splitlines()
    assert [re.sub(r"[0-9a-f]{8} .*", "", line).rstrip() for line in lines] == ["*", "*", "| *", "| *", "|/", "*", "*"]
    assert f"* {short(past.main[3])} (HEAD -> main) step 300  loss=0.5" in lines


def test_paragraphs(output: Out, past: History) -> None:
    lines = output("log", "-n", "1", "exp/lr3").splitlines()
    assert lines[:4] == [
        f"commit {past.branched[1].hex()} (exp/lr3)",
        f"Parent:  {short(past.branched[0])}",
        "Step:    300",
        "Branch:  exp/lr3",
    ]
    assert re.fullmatch(r"Date:    \d{4}-.* \(.* ago\)|Date:    .* \(just now\)", lines[4])
    assert lines[5:] == ["", "    lr 3, step 300", "", "    more", ""]


def test_graph_beside_paragraphs_has_an_edge_on_every_line(output: Out, past: History) -> None:
    lines = output("log", "--graph", "--all").splitlines()
    assert all(re.match(r"[|*]", line) for line in lines[: lines.index(f"* commit {past.main[0].hex()}")])


def test_a_branch_without_commits(failure: Out, output: Out) -> None:
    output("init")
    assert "branch 'main' has no commit yet" in failure("log")


def test_a_current_branch_without_commits_beside_one_that_has_some(failure: Out, output: Out, past: History) -> None:
    with Repository.open(past.root) as repo:
        repo.refs.set_head("empty")
    said = failure("log")
    assert "branch 'empty' has no commit yet; there are: exp/lr3, main" in said
    assert "`moonclip log exp/lr3`" in said
    assert "`moonclip switch exp/lr3`" in said


@pytest.mark.parametrize(
    ("arguments", "shown", "said"),
    [
        (["--where", "stepp>5"], 0, "no commit looked at has 'stepp'; did you mean 'step'?"),
        (["--where", "stepp>5", "--graph", "--all"], 0, "'stepp'; did you mean 'step'?"),
        (["--where", "xyzzy>5"], 0, "'xyzzy'; `moonclip log` shows what they have"),
        (["--show", "los"], 4, "'los'; did you mean 'loss'?"),
        (["--show", "loss,los", "--where", "step>=200"], 2, "'los'"),
    ],
)
def test_a_key_that_no_commit_has_is_told(
    run: Callable[..., Result], past: History, arguments: list[str], shown: int, said: str
) -> None:
    result = run("log", *arguments)
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, shown)
    assert result.stderr.count("warning: ") == 1
    assert said in result.stderr


def test_a_key_that_no_commit_has_is_told_beside_json(run: Callable[..., Result], past: History) -> None:
    result = run("log", "--json", "--where", "los<5")
    assert (result.exit_code, result.stdout) == (0, "[]\n")
    assert "did you mean 'loss'?" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--where", "loss<0"),
        ("--where", "step>900", "--where", "branch=main"),
        ("--where", "nothing<5", "--since", "2999-01-01"),
        ("--show", "loss,step"),
        ("--show", "los", "-n", "0"),
    ],
)
def test_a_key_that_some_commit_has_or_none_was_asked_for_is_no_slip(
    output: Out, past: History, arguments: tuple[str, ...]
) -> None:
    output("log", *arguments)


def test_an_ambiguous_prefix_lists_its_candidates(failure: Out, past: History) -> None:
    assert "no branch, tag or commit" in failure("log", "0123456789")
    assert "'mian'" in failure("log", "mian")
    assert "did you mean 'main'?" in failure("log", "mian")


def test_json_goes_with_no_drawing(run: Callable[..., Result], past: History) -> None:
    assert run("log", "--json", "--graph").exit_code == 2
    assert run("log", "--json", "--oneline").exit_code == 2


def test_a_damaged_ref_is_told_and_hides_nothing_else(run: Callable[..., Result], past: History) -> None:
    (past.root / "refs" / "tags" / "best").write_text("nonsense\n")
    result = run("log", "--oneline", "--all")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 6
    assert "warning: left out: tag 'best'" in result.stderr


def test_what_was_saved_cannot_command_the_terminal(output: Out, document: Document, past: History) -> None:
    said = "\x1b]0;owned\x07 and \x9b2J\r\nnext"
    with Repository.open(past.root) as repo:
        commit(repo, step=400, message=said, metadata={"\x1b[31m": "\x1b[2J \ud800"})
    for arguments in (["log"], ["log", "--oneline"], ["show"], ["branch"]):
        shown = output(*arguments)
        assert not set(shown) & {"\x1b", "\x07", "\x9b", "\r"}
        assert "\\x1b]0;owned" in shown
    newest = document("log", "-n", "1")[0]
    assert newest["message"] == said


def test_colours_only_where_they_are_wanted(past: History, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["-C", str(past.root), "log", "--oneline"]
    assert "\x1b[33m" in CliRunner().invoke(commands, arguments, color=True).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in CliRunner().invoke(commands, arguments, color=True).stdout


def test_long_numbers_are_told_in_six_digits_where_there_is_a_line(output: Out, past: History) -> None:
    with Repository.open(past.root) as repo:
        commit(repo, "main", metadata={"loss": 0.04934757202863693, "lr": 3e-05, "half": 0.5})
    assert "loss=0.0493476  lr=3e-05  half=0.5" in output("log", "--show", "loss,lr,half", "-n", "1")
    assert "loss=0.0493476 lr=3e-05 half=0.5" in output("log", "--oneline", "-n", "1")
    assert "loss: 0.04934757202863693" in output("log", "-n", "1")
