"""``moonclip prune``, ``pin`` and ``unpin``, and what other commands say of commits that were pruned."""

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from store.ids import short
from store.repository import Repository
from tests.stores import History

Out = Callable[..., str]
Document = Callable[..., Any]


def absent(past: History) -> bool:
    return (past.root / "absent").exists()


def test_a_dry_run_tells_sizes_and_drops_nothing(output: Out, document: Document, past: History) -> None:
    lines = output("prune", "--keep-last", 1, "--dry-run").splitlines()
    assert [line.split()[0] for line in lines[:3]] == [short(commit) for commit in past.main[:3]]
    assert lines[0].split()[1:3] == ["step", "0"]
    assert lines[-1].startswith("would drop 3 commits, ")
    said = document("prune", "--keep-last", 1, "-n")
    assert said["dry_run"] is True
    assert [one["commit"] for one in said["dropped"]] == [commit.hex() for commit in past.main[:3]]
    assert said["freed_bytes"] == sum(one["freed_bytes"] for one in said["dropped"]) > 4000
    assert not absent(past)


def test_prune_and_what_the_log_says(output: Out, document: Document, past: History) -> None:
    assert "dropped 3 commits" in output("prune", "--keep-last", 1)
    assert output("prune", "--keep-last", 1) == "nothing to drop\n"
    lines = output("log", "--oneline").splitlines()
    assert ["[pruned]" in line for line in lines] == [False, True, True, True]
    assert "Absent:  pruned\n" in output("log")
    items = ["model", "optimizer", "settings"]
    assert [list(one["absent"]) for one in document("log")] == [[], items, items, items]
    assert "Absent:  pruned\n" in output("show", "main~1")
    assert document("show", "main~1")["items"] == []
    assert "clean" in output("fsck")
    output("stats")


def test_prune_and_gc(output: Out, document: Document, past: History) -> None:
    assert "gc gave 0 B back" in output("prune", "--keep-last", 9, "--gc")
    said = document("prune", "--keep-last", 1, "--gc")
    assert said["gc_freed_bytes"] >= said["freed_bytes"] > 4000
    assert "clean" in output("fsck", "--full")
    assert output("export", "main", "--item", "model", "-o", "x.safetensors")


def test_a_dry_run_of_both_drops_nothing_and_gives_nothing_back(output: Out, document: Document, past: History) -> None:
    shown = output("prune", "--keep-last", 1, "--gc", "--dry-run").splitlines()
    assert shown[-2].startswith("would drop 3 commits")
    assert shown[-1] == "gc would give 0 B back besides, that nothing leads to already"
    assert not absent(past)
    output("prune", "--keep-last", 1)
    for _ in range(2):  # the first took nothing away
        assert document("prune", "--keep-last", 1, "--gc", "--dry-run")["gc_freed_bytes"] > 4000


def test_keeping_by_step_by_metadata_and_by_age(document: Document, past: History) -> None:
    def dropped(*options: object) -> list[int]:
        return [one["step"] for one in document("prune", "--dry-run", *options)["dropped"]]

    assert dropped("--keep-every", 200) == [100]
    assert dropped("--keep-best", "loss:max:1") == [100, 200]
    assert dropped("--keep-best", "loss:min:1", "--keep-last", 3) == [0]
    assert dropped("--keep-within", "1d") == []
    assert dropped("--keep-within", "0s") == [0, 100, 200]
    assert dropped("--keep-within", "0s", "--branch", "main") == [200]  # the others lie on exp/lr3 as well


def test_items(output: Out, document: Document, past: History, failure: Out) -> None:
    said = document("prune", "--items", "optimizer", "--older-than", 1)
    assert [(one["commit"], one["items"]) for one in said["dropped"]] == [
        (commit.hex(), ["optimizer"]) for commit in past.main[:3]
    ]
    assert "[pruned: optimizer]" in output("log", "--oneline")
    assert document("log", "main~1")[0]["absent"] == {"optimizer": "pruned"}
    assert "optimizer" not in output("ls", "main~1")
    assert "the item 'optimizer'" in failure("export", "main~1", "-o", "x.safetensors")
    assert output("export", "main~1", "--item", "model", "-o", "x.safetensors")
    assert output("prune", "--items", "optimizer", "--older-than", "1d") == "nothing to drop\n"


@pytest.mark.parametrize(
    "command",
    [("ls", "main~3"), ("export", "main~3", "-o", "x.safetensors"), ("tag", "t", "main~3"), ("pin", "main~3")],
)
def test_commands_that_need_the_content_say_that_it_is_gone(
    output: Out, failure: Out, past: History, command: tuple[str, ...]
) -> None:
    output("prune", "--keep-last", 1)
    assert f"commit {short(past.main[0])} was pruned" in failure(*command)


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--dry-run",),
        ("--keep-last", "0"),
        ("--keep-last", "1", "--items", "optimizer", "--older-than", "1"),
        ("--items", "optimizer"),
        ("--older-than", "30d"),
        ("--keep-best", "loss"),
        ("--keep-best", "loss:least:1"),
        ("--keep-best", "loss:min:none"),
    ],
)
def test_what_to_drop_must_be_clear(run: Callable[..., Result], past: History, options: tuple[str, ...]) -> None:
    result = run("prune", *options)
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert not absent(past)


def test_a_key_that_no_commit_has_is_a_slip(failure: Out, past: History) -> None:
    assert "no commit has a number 'lss'" in failure("prune", "--keep-best", "lss:min:3")
    assert not absent(past)


def test_any_span_of_time(document: Document, failure: Out, past: History) -> None:
    assert document("prune", "--keep-within", "999999999w")["dropped"] == []
    assert "lies in the future" in failure("prune", "--keep-within", "2999-01-01")
    assert "lies in the future" in failure("prune", "--items", "optimizer", "--older-than", "2999-01-01")
    assert "is no time" in failure("prune", "--items", "optimizer", "--older-than", "9" * 5000)


def test_pins(output: Out, document: Document, failure: Out, past: History, run: Callable[..., Result]) -> None:
    assert output("pin") == ""
    assert output("pin", "main~1", "-m", "for the paper") == f"pinned {short(past.main[2])}\n"
    assert document("pin")[0]["commit"] == past.main[2].hex()
    assert "for the paper" in output("pin")
    assert len(document("prune", "--keep-last", 1)["dropped"]) == 2
    assert output("unpin", "main~1") == f"unpinned {short(past.main[2])}\n"
    assert "is not pinned" in failure("unpin", "main~1")
    assert len(document("prune", "--keep-last", 1)["dropped"]) == 1
    assert run("pin", "-m", "why").exit_code == 2
    assert run("pin", "main", "--json").exit_code == 2


def test_an_unknown_branch(failure: Out, past: History) -> None:
    assert "moonclip branch" in failure("prune", "--keep-last", 1, "--branch", "lost")
    with Repository.open(past.root, read_only=True) as repo:
        assert repo.absences.all() == {}
