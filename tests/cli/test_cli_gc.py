"""``moonclip gc``."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from moonclip.cli.text import size
from store.ids import short
from store.repository import Repository
from store.upkeep.gclock import collecting
from tests.collecting import content_of, expire_reflogs
from tests.stores import History

Out = Callable[..., str]
Document = Callable[..., Any]
Run = Callable[..., Result]


def forget(past: History, output: Out) -> None:
    """Delete the branch and the tag that lead to two of the commits, long ago."""
    output("tag", "-d", "best")
    output("branch", "-d", "exp/lr3")
    with Repository.open(past.root) as repo:
        expire_reflogs(repo)


def test_nothing_to_remove(output: Out, past: History) -> None:
    assert output("gc") == output("gc", "--dry-run") == "nothing to remove\n"


def test_d8_a_dry_run_tells_what_gc_then_does(output: Out, past: History) -> None:
    forget(past, output)
    output("prune", "--keep-last", "1")
    before = content_of(past.root)
    told = output("gc", "-n").splitlines()
    assert content_of(past.root) == before
    done = output("gc").splitlines()
    assert told[0].startswith("would remove 12 objects of ")
    assert told[-1] == "2 commits that nothing leads to would lose what they held"
    words = {"would remove": "removed", "would free": "freed", "would lose": "lost"}
    for would, did in words.items():
        told = [line.replace(would, did) for line in told]
    assert told == done
    assert output("gc") == "nothing to remove\n"
    assert output("fsck", "--full").startswith("clean: 4 commits, ")


def test_gc_for_programs(document: Document, output: Out, past: History) -> None:
    forget(past, output)
    told, done = document("gc", "--dry-run"), document("gc")
    assert (told.pop("dry_run"), done.pop("dry_run")) == (True, False)
    assert told == done
    assert (done["commit_count"], done["left"]) == (2, {})
    assert set(done) == {
        "commit_count",
        "object_count",
        "object_bytes",
        "removed_count",
        "compacted_count",
        "made_count",
        "freed_bytes",
        "repack_bytes",
        "left",
    }


def test_what_gc_leaves_to_repack_repack_takes_out(document: Document, output: Out, past: History) -> None:
    """One pack, most of which is needed."""
    output("repack")
    output("tag", "-d", "best")
    output("prune", "--keep-last", "2")
    told, done = output("gc", "-n").splitlines(), output("gc").splitlines()
    spare_bytes = document("stats")["repack_bytes"]
    promise = f"{size(spare_bytes)} more out of packs most of which is needed"
    assert told[2] == f"`moonclip repack` would then take {promise}"
    assert done[1:3] == ["freed 0 B (0 packs removed)", f"`moonclip repack` takes {promise}"]
    repacked = document("repack")
    assert repacked["before_bytes"] - repacked["after_bytes"] == spare_bytes > 0
    sums = document("stats")
    assert (sums["gc_bytes"], sums["repack_bytes"], sums["rest_bytes"]) == (0, 0, 0)
    assert output("gc") == "nothing to remove\n"


def test_a_commit_that_was_collected_is_named_as_such(failure: Out, output: Out, past: History) -> None:
    forget(past, output)
    output("gc")
    gone = past.branched[-1].hex()
    said = failure("branch", "again", gone)
    assert "collected by gc" in said
    assert short(past.branched[-1]) in said
    assert "fsck" not in said


def test_pruned_commits_make_room(document: Document, output: Out, past: History) -> None:
    dropped = json.loads(output("prune", "--keep-last", "1", "--json"))
    done = document("gc")
    assert done["object_bytes"] == dropped["freed_bytes"] > 0
    assert done["freed_bytes"] > 0


def test_one_at_a_time(failure: Out, past: History) -> None:
    with Repository.open(past.root) as repo, collecting(repo):
        assert "gc, repack or a check is at work" in failure("gc")


def test_damage_that_hides_what_is_needed_stops_it(failure: Out, past: History) -> None:
    (past.root / "refs/branches/main").write_text("rubbish\n")
    before = content_of(past.root)
    assert "does not hold a commit's id" in failure("gc")
    assert content_of(past.root).keys() >= before.keys()


@pytest.mark.parametrize("arguments", [["--what"], ["more"]])
def test_what_it_does_not_know(run: Run, past: History, arguments: list[str]) -> None:
    assert run("gc", *arguments).exit_code == 2
