"""A worker collects garbage seldom: what saves leave in cycles would pile up in it, a hundred thousand objects high."""

import gc
import weakref
from pathlib import Path

from store.disk.files import Files
from store.repository import Repository
from tests.arrays import drifted, noise, save


def test_a_save_leaves_nothing_to_the_garbage_collector(tmp_path: Path) -> None:
    states = [{name: drifted(noise(name, 2000), step) for name in "abc"} for step in range(4)]
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        last = save(repo, states[0]).last
        gc.collect()
        gc.disable()
        try:
            for state in states[1:]:
                last = save(repo, state, last=last).last
            assert gc.collect() == 0
        finally:
            gc.enable()


def test_a_file_that_is_written_is_let_go_of_at_once(tmp_path: Path) -> None:
    gc.collect()
    gc.disable()
    try:
        for name, is_finished in (("whole", True), ("abandoned", False)):
            blocks = Files().open_blocks(tmp_path / name)
            blocks.write([bytes(9_000_000)])  # more than a block, so that a thread writes
            freed = weakref.ref(blocks)
            (blocks.finish if is_finished else blocks.abandon)()
            del blocks
            assert freed() is None
    finally:
        gc.enable()
