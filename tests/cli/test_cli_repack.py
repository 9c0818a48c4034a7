"""``moonclip repack``."""

import json
from collections.abc import Callable
from typing import Any

from click.testing import Result

from moonclip.cli.text import size
from store.repository import Repository
from store.upkeep.gclock import collecting
from tests.arrays import drifted, noise, save
from tests.stores import History, damage

Out = Callable[..., str]
Document = Callable[..., Any]
Run = Callable[..., Result]


def pack_count(past: History) -> int:
    return len(list((past.root / "packs").glob("*.pack")))


def test_small_packs_are_put_together(output: Out, past: History) -> None:
    assert pack_count(past) == 6
    assert output("repack").startswith("6 packs replaced by 1\n")
    assert pack_count(past) == 1
    assert output("fsck", "--full").startswith("clean: 6 commits, 1 pack, ")
    assert output("repack") == "nothing to repack\n"


def test_a_dry_run_does_nothing(output: Out, past: History) -> None:
    told = output("repack", "--dry-run")
    assert told.startswith("6 packs would be replaced\n")
    assert "→ about" in told
    assert pack_count(past) == 6
    assert not (past.root / "gc.lock").exists()


def test_a_dry_run_takes_no_part_in_what_collectors_do(output: Out, past: History) -> None:
    with Repository.open(past.root) as repo, collecting(repo):
        assert output("repack", "--dry-run").startswith("6 packs would be replaced\n")


def test_goals(document: Document, past: History) -> None:
    for goal in ("size", "restore"):
        found = document("repack", "--for", goal)
        assert (found["goal"], found["dry_run"], found["left"], found["damaged"]) == (goal, False, {}, {})
    assert document("fsck", "--full")["clean"] is True


def test_bases_that_only_pruned_commits_had_are_named(document: Document, output: Out, past: History) -> None:
    array = noise("chain", 20_000)
    with Repository.open(past.root) as repo:
        for step in range(4):
            save(repo, {"w": array}, branch="chain", step=step)
            array = drifted(array, step, 0.6)
    output("prune", "--keep-last", "1", "--branch", "chain", "--gc")
    bases = size(document("stats")["base_bytes"])
    assert f"bases of about {bases} would be needed no more" in output("repack", "--for", "size", "-n")
    told = output("repack", "--for", "size").splitlines()
    assert told[-1] == f"bases of about {bases} are needed no more; `moonclip gc` then removes them"
    assert "bases" not in output("repack", "--for", "size")
    output("gc")
    assert document("stats")["base_bytes"] == 0
    assert document("fsck", "--full")["clean"] is True


def test_damage_is_named_and_stays(run: Run, past: History) -> None:
    damage(past.root, "fc.weight", "best")
    result = run("repack", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert len(found["damaged"]) == len(found["left"]) == 1
    assert found["replaced_count"] == 5
    again = run("repack")
    assert again.exit_code == 1
    assert "damaged: " in again.stdout


def test_one_at_a_time(failure: Out, past: History) -> None:
    with Repository.open(past.root) as repo, collecting(repo):
        assert "at work" in failure("repack")
