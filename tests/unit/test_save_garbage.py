"""A worker collects garbage seldom: what saves leave in cycles would pile up in it, a hundred thousand objects high."""

import gc
import weakref
from pathlib import Path

from store.disk.files import Files
from store.repository import Repository
from tests.arrays import drifted, noise, save


def test_a_save_leaves_nothing_to_the_garbage_collector(tmp_path: Path) -> None:
    states = [{name: drifted(noise(name, 2000), step) for name in "abc"} for step in range(6)]
    last = None
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        for state in states[:3]:
            last = save(repo, state, last=last).last
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for state in states[3:]:
                last = save(repo, state, last=last).last
            gc.collect()
            assert [kind for each in gc.garbage if (kind := type(each)).__module__.startswith("store.")] == []
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
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
