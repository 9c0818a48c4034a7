"""Whatever a manager of one process can be asked for, one of several ranks can, too."""

from pathlib import Path

import pytest
import torch

from moonclip import CheckpointManager, Pruned
from store.format.entries import TensorEntry
from store.fsck import fsck
from store.repository import Repository
from tests.distributed import options_rank
from tests.launching import require_done

pytestmark = pytest.mark.slow


SCRIPT = "options_rank.py"


def test_casts_are_those_of_one_process(tmp_path: Path) -> None:
    require_done(SCRIPT, tmp_path, 2, "casts", "infinite")
    with Repository.open(tmp_path / "casts") as repo:
        assert fsck(repo, full=True).findings == []
        for name, asked in options_rank.CASTS.items():
            model = options_rank.wide()
            optimizer = options_rank.trained(model)
            with CheckpointManager(tmp_path / "alone", branch=name, save_dtype=asked) as mgr:
                mgr.save(step=0, model=model, optimizer=optimizer, plain={"n": torch.tensor([70001])})
            with Repository.open(tmp_path / "alone") as other:
                expected = dict(other.tree(other.commit(other.resolve(name)), "model"))
                moments = dict(other.tree(other.commit(other.resolve(name)), "optimizer"))
            for kind in ("fsdp", "copies"):
                commit = repo.commit(repo.resolve(f"{name}-{kind}"))
                for item, entries in (("model", expected), ("optimizer", moments)):
                    found = repo.tree(commit, item)
                    for entry, wanted in entries.items():
                        if isinstance(wanted, TensorEntry):
                            got = found[entry]
                            assert isinstance(got, TensorEntry)
                            assert (got.stored, got.scale) == (wanted.stored, wanted.scale), (name, kind, entry)
                            assert got.inline == wanted.inline
                            assert kind == "fsdp" or got.chunks == wanted.chunks


def test_stages_of_a_pipeline_are_taken_up_by_any_number_of_them(tmp_path: Path) -> None:
    for world_size in (2, 4):
        require_done(SCRIPT, tmp_path, world_size, "stages")
    with CheckpointManager(tmp_path / "stages") as mgr:
        for branch, steps in (("by2~1", 2), ("by4~1", 2), ("by2", 3)):
            model, optimizer = options_rank.stage(0, 1)
            mgr.load(branch, into={"model": model, "optimizer": optimizer})
            options_rank.require_stage(model, optimizer, steps)
    with Repository.open(tmp_path / "stages") as repo:
        assert fsck(repo, full=True).findings == []


def test_what_is_copied_behind_or_skipped_is_the_state_at_the_save(tmp_path: Path) -> None:
    require_done(SCRIPT, tmp_path, 2, "overlapped", "frozen")
    for name in ("overlapped", "frozen-none", "frozen-bf16", "frozen-fp8_e4m3"):
        with Repository.open(tmp_path / name) as repo:
            assert fsck(repo, full=True).findings == []


def test_g4_copies_that_differ_are_refused_where_that_is_asked_for(tmp_path: Path) -> None:
    require_done(SCRIPT, tmp_path, 4, "copied")


def test_b8_a_save_that_returned_is_there_for_each_rank(tmp_path: Path) -> None:
    require_done(SCRIPT, tmp_path, 2, "visible")


def test_b20_a_failure_is_told_while_others_still_store(tmp_path: Path) -> None:
    require_done(SCRIPT, tmp_path, 3, "untold")


def test_b20_where_rank_0_cannot_say_what_follows_all_are_told_and_closed_managers_hold_nothing(tmp_path: Path) -> None:
    require_done(SCRIPT, tmp_path, 2, "misjudged", "closed")


def test_rank_0_drops_what_is_not_kept_and_pushes(tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    require_done(SCRIPT, tmp_path, 2, "kept", "pushed")
    with CheckpointManager(tmp_path / "kept") as mgr:
        assert [mgr.load(f"main~{back}")["model"]["w"][0] for back in range(2)] == [5, 4]
        with pytest.raises(Pruned):
            mgr.load("main~2")
    with CheckpointManager(tmp_path / "elsewhere", remote=tmp_path / "remote") as mgr:
        assert mgr.resume() == 4
        assert set(mgr.load("main~1")) == {"model", "optimizer", "own0", "own1"}
