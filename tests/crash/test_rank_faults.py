"""Every call that a rank makes to the disk fails, or is its last; and so does every call of who publishes."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from store.disk.files import Files
from store.gc import collect
from store.naming.refnames import branch_name
from store.repository import Repository
from store.saving.ranks import save_rank
from tests.arrays import drifted, require_whole
from tools.crash.faults import FaultyDisk
from tools.crash.operations import NEWEST, prepare
from tools.crash.ranks import request, save_ranks, save_together, shards
from tools.crash.trials import FAULTS, attempt

Fault = Mapping[str, Any]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_b6_a_rank_whose_disk_fails_anywhere_can_store_its_part_again(tmp_path: Path, fault: Fault) -> None:
    """Within the same snapshot; whatever the failed attempt left is no part of it, and goes."""
    history = prepare(tmp_path / "store")
    with Repository.open(tmp_path / "store", thread_count=1) as repo:
        root, state, number, went_wrong = repo.layout.root, NEWEST, 0, True
        while went_wrong:
            disk = FaultyDisk(fail_at_operation=number, **fault)
            with repo.create_snapshot(request(repo), 2) as snapshot:
                save_rank(root, snapshot.id, 0, shards(state, 0, 2), threads=repo.threads)
                items = shards(state, 1, 2)
                went_wrong = not attempt(
                    lambda: save_rank(root, snapshot.id, 1, items, files=Files(disk), threads=repo.threads)  # noqa: B023
                )
                assert disk.operation_count > number or not went_wrong
                save_rank(root, snapshot.id, 1, items, threads=repo.threads)
                history[snapshot.finalize()] = state
            state = {**state, "w": drifted(state["w"], number)}
            number += 1
    assert number > 10
    with Repository.open(root, thread_count=1) as repo:
        require_whole(repo, history)
        collect(repo)
        assert set(repo.packs.pack_ids()) == set(repo.index.packs())
        assert list(repo.layout.writers.iterdir()) == list(repo.layout.parts.iterdir()) == []


@pytest.mark.parametrize("fault", [fault for name, fault in FAULTS.items() if name != "killed"], ids=["EIO", "ENOSPC"])
def test_b6_one_that_could_not_be_published_can_be_once_the_disk_works_again(tmp_path: Path, fault: Fault) -> None:
    history, number, failed = prepare(tmp_path / "before"), 0, True
    while failed:
        root = tmp_path / "store"
        shutil.copytree(tmp_path / "before", root)
        disk = FaultyDisk(**fault)
        with Repository.open(root, files=Files(disk), thread_count=1) as repo:
            with repo.create_snapshot(request(repo), 2) as snapshot:
                save_ranks(root, snapshot, NEWEST, threads=repo.threads)
                disk.fail_at(disk.operation_count + number)
                before = repo.refs.read(branch_name("main"))
                failed = not attempt(snapshot.finalize)
                disk.fail_at(1 << 60)
                made = repo.refs.read(branch_name("main"))
                if failed and made == before:
                    made = snapshot.finalize()
            assert made is not None
            require_whole(repo, {**history, made: NEWEST})
            later, _ = save_together(repo, NEWEST, 2)
            require_whole(repo, {later: NEWEST})
        shutil.rmtree(root)
        number += 1
    assert number > 5
