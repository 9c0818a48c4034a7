"""A store against its model, under random histories: people, other processes, accidents, damage."""

import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from store.errors import Corrupt
from store.opening.indexes import rebuild_index
from tests.arrays import ITEM, chunk_of, damage, entries_of, pack_file, read
from tests.stateful.store_beginnings import littered_store, new_store, request, used_store
from tests.stateful.store_model import Model
from tests.stateful.store_people import PICK, picked
from tests.stateful.store_upkeep import Collecting

SIZES = {"dev": (150, 10), "ci": (999, 10), "deep": (50_001, 25)}
"""Examples in all, and steps of each, by profile."""


class Store(Collecting):
    """And things go wrong."""

    @rule()
    def reindex(self) -> None:
        rebuild_index(self.repo.layout, self.repo.files, self.repo.packs)

    @rule(index=st.sampled_from(["kept", "deleted", "garbled", "cut"]))
    def reopen(self, index: str) -> None:
        """Both processes end, and the index may not outlive them."""
        self.close()
        for path in (self.root / "index").rglob("data.mdb"):
            if index == "garbled":
                path.write_bytes(b"\xa5" * path.stat().st_size)
            elif index == "cut":
                path.write_bytes(path.read_bytes()[:6000])
        if index == "deleted":
            shutil.rmtree(self.root / "index")
        self.open()

    @rule(which=PICK)
    def mend(self, which: int) -> None:
        """A chunk goes bad, somebody notices, and the next save of it mends every commit that holds it."""
        if not self.own_branches:
            return
        self.reopen("kept")  # who had a pack open when it was replaced by one just like it reads what is not damaged
        branch = picked(self.own_branches, which)
        tip = self.model.branches[branch]
        items = self.model.commits[tip].items
        if ITEM not in items:
            return
        name = next((name for name, entry in entries_of(self.repo, tip).items() if entry.chunks), None)
        if name is None:
            return
        chunk = chunk_of(self.repo, tip, name)
        path = pack_file(self.repo, self.repo.index.places(chunk)[0].pack)
        whole = path.read_bytes()
        damage(self.repo, chunk)
        with suppress(Corrupt):  # there may be another copy, even one that the index does not know
            assert read(self.repo, tip) == items[ITEM]
        self.save(request(items, branch, tip), items, 0)
        for repo in self.repos:
            self.require_readable(tip, repo)
            self.require_readable(self.model.branches[branch], repo)
        self.close()
        path.write_bytes(whole)  # else a full check would tell of it for good
        self.open()
        rebuild_index(self.repo.layout, self.repo.files, self.repo.packs)


@pytest.mark.parametrize("make_store", [new_store, used_store, littered_store])
def test_store(make_store: Callable[[], tuple[Path, Model]], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "store")  # of the thousand indexes that are rebuilt it would tell
    machine = type("Store", (Store,), {"make_store": staticmethod(make_store)})
    count, step_count = SIZES.get(settings.get_current_profile_name(), SIZES["dev"])
    run_state_machine_as_test(machine, settings=settings(max_examples=count // 3, stateful_step_count=step_count))
