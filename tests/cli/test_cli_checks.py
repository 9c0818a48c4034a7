"""``moonclip fsck``, ``reindex`` and ``stats``."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from store.format.pack import HEADER_BYTES
from store.fsck import fsck
from store.gc import collect
from store.ids import short
from store.repository import Repository
from store.upkeep.retention import Keep
from tests.arrays import drifted, noise, save
from tests.pruning import prune
from tests.stores import History, damage

Out = Callable[..., str]
Document = Callable[..., Any]
Run = Callable[..., Result]


# --- fsck -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["--full"]])
def test_clean(output: Out, document: Document, past: History, arguments: list[str]) -> None:
    assert output("fsck", *arguments).startswith("clean: 6 commits, 6 packs, ")
    found = document("fsck", *arguments)
    assert found["clean"] is True
    assert (found["full"], found["commits"], found["packs"], found["findings"]) == (bool(arguments), 6, 6, [])


def test_damage_is_named_with_the_commits_and_tensors_that_it_hits(run: Run, past: History) -> None:
    damage(past.root, "embed.weight", "main")  # the same chunk in all commits
    damage(past.root, "fc.weight", "best")
    result = run("fsck")
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout.count("object: pack ") == 2
    for commit in (*past.main, *past.branched):
        assert f"  affects {short(commit)} model::embed.weight\n" in result.stdout
    assert result.stdout.count("model::fc.weight") == 2  # both lines have the same state at step 200
    assert result.stdout.splitlines()[-1].startswith("2 problems: ")


def test_damage_for_programs(run: Run, past: History) -> None:
    damage(past.root, "fc.weight", "best")
    result = run("fsck", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["clean"]) == (1, False)
    (finding,) = found["findings"]
    assert finding["kind"] == "object"
    assert len(finding["object"]) == 64
    assert set(finding["affects"]) == {f"{short(each)} model::fc.weight" for each in (past.main[2], past.branched[0])}


def test_progress_is_told_to_the_end(past: History) -> None:
    with Repository.open(past.root, read_only=True) as repo:
        for full in (False, True):
            told: list[tuple[int, int]] = []
            fsck(repo, full=full, progress=lambda done, total, told=told: told.append((done, total)))  # type: ignore[misc]
            total_bytes = told[-1][1]
            assert {total for _, total in told} == {total_bytes}
            assert told[-1][0] == total_bytes
            assert [done for done, _ in told] == sorted(done for done, _ in told)


# --- reindex --------------------------------------------------------------------------------------------------------


def test_c8_a_lost_index_is_rebuilt(document: Document, output: Out, past: History) -> None:
    before = document("log", "--all")
    shutil.rmtree(past.root / "index")
    rebuilt = document("reindex")
    assert (rebuilt["packs"], rebuilt["commits"], rebuilt["problems"]) == (6, 6, [])
    assert document("log", "--all") == before
    assert output("fsck").startswith("clean")


def test_c8_a_garbled_index_is_rebuilt(output: Out, past: History) -> None:
    for data in (past.root / "index").glob("*/data.mdb"):
        data.write_bytes(b"garbage" * 1000)
    assert output("reindex").startswith("indexed 6 packs, ")
    assert output("fsck").startswith("clean")


def test_reindex_says_what_it_left_out(run: Run, past: History) -> None:
    pack = min((past.root / "packs").glob("*.pack"))
    pack.write_bytes(pack.read_bytes()[: HEADER_BYTES + 100])
    result = run("reindex", "--json")
    assert result.exit_code == 1
    assert len(json.loads(result.stdout)["problems"]) == 1
    assert pack.stem in result.stderr
    assert "moonclip fsck" in result.stderr


def test_reindex_finds_nothing_wrong_with_what_gc_leaves_behind(run: Run, tmp_path: Path) -> None:
    drifts, stays = noise("drifts", 3000), noise("stays", 9000)
    with Repository.init(tmp_path / "store") as repo:
        first = save(repo, {"drifts": drifts}, step=0)
        save(repo, {"drifts": drifted(drifts, 1), "stays": stays}, step=1, last=first.last)
        save(repo, {"stays": stays}, step=2)
        prune(repo, Keep(last=1))
        assert collect(repo).compacted_count == 1
    result = run("-C", tmp_path / "store", "reindex", "--json")
    assert (result.exit_code, json.loads(result.stdout)["orphans"]) == (0, 1)
    assert "1 delta whose base is in no pack" in run("-C", tmp_path / "store", "reindex").stderr
    assert run("-C", tmp_path / "store", "fsck").exit_code == 0


def test_reindex_of_no_store(failure: Out, tmp_path: Path) -> None:
    assert "no store at" in failure("-C", tmp_path, "reindex")
    assert list(tmp_path.iterdir()) == []


# --- stats ----------------------------------------------------------------------------------------------------------


def test_every_byte_is_counted_once(document: Document, past: History) -> None:
    sums = document("stats")
    accounted = ("shared_bytes", "delta_saved_bytes", "compression_saved_bytes", "chunk_stored_bytes", "inline_bytes")
    assert sum(sums[name] for name in accounted) == sums["tensor_bytes"]
    assert sums["shared_bytes"] == 5 * 2048 + 2 * 2 * 2048  # the embedding, and the states of steps 200 and 300
    assert sums["stored_bytes"] == sums["chunk_stored_bytes"] + sums["tree_stored_bytes"]
    assert (sums["commit_count"], sums["pack_count"]) == (6, 6)


def test_stats_for_people(output: Out, past: History) -> None:
    lines = output("stats").splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["raw", "dedup", "delta", "compression", "stored"]
    assert "100.0 %" in lines[0]
    assert [line.split()[0] for line in lines[6:9]] == ["packs", "in", "tables"]
    assert lines[-1].startswith("6 commits, ")


def test_every_byte_of_packs_is_counted_once(document: Document, output: Out, past: History) -> None:
    array = noise("chain", 20_000)
    with Repository.open(past.root) as repo:
        for step in range(4):
            save(repo, {"w": array}, branch="chain", step=step)
            array = drifted(array, step, 0.6)
    output("prune", "--keep-last", "1")
    sums = document("stats")
    parts = ("stored_bytes", "base_bytes", "gc_bytes", "repack_bytes", "rest_bytes", "table_bytes")
    assert sum(sums[name] for name in parts) == sums["pack_bytes"]
    assert sums["base_bytes"] > 80_000
    assert sums["gc_bytes"] == document("gc", "--dry-run")["freed_bytes"] > 0
    assert any(line.startswith("bases ") and "because deltas need it" in line for line in output("stats").splitlines())


def test_stats_of_an_empty_store(output: Out) -> None:
    output("init")
    assert "0 commits" in output("stats")
