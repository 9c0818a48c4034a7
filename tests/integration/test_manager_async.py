"""Saving in the background: what is stored, what is waited for, and how a failure is told."""

import errno
import os
import resource
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch

from moonclip import CheckpointManager, MoonclipError, NotFound, SaveFailed
from tests.descriptors import left_open
from tests.workers import await_save, ends, no_large_file, only_worker, refs_held, workers


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def noise(seed: int, size: int = 500_000) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def steps(mgr: CheckpointManager) -> list[int | None]:
    return [snapshot.step for snapshot in mgr.list_snapshots()]


def test_b1_what_save_saw_is_stored_whatever_happens_next(root: Path) -> None:
    tensors = {
        "plain": noise(1),
        "shared": noise(2).share_memory_(),
        "transposed": noise(3, 10_000).view(100, 100).t(),
        "slice": noise(4)[100:2000:3],
        "tiny": torch.tensor(3.0),
        "many": [torch.full((7,), float(n)) for n in range(300)],
    }
    flat = [*(tensors[name] for name in ("plain", "shared", "transposed", "slice", "tiny")), *tensors["many"]]
    values = {"lr": [0.1, {"deep": 1}]}
    metadata = {"losses": [1.0]}
    before = [tensor.clone() for tensor in flat]
    with CheckpointManager(root) as mgr:
        for step in range(3):  # both arenas are used, and one of them again
            mgr.save(step=step, tensors=tensors, values=values, metadata=metadata)
            for tensor in flat:
                tensor.fill_(-1)
            values["lr"][1]["deep"] = -1
            metadata["losses"].append(-1.0)
            loaded = mgr.load()
            found = loaded["tensors"]
            named = [found[name] for name in ("plain", "shared", "transposed", "slice", "tiny")]
            assert all(torch.equal(*pair) for pair in zip([*named, *found["many"]], before, strict=True))
            assert loaded["values"] == {"lr": [0.1, {"deep": 1}]}
            assert mgr.list_snapshots()[-1].metadata["losses"] == [1.0]
            for tensor, old in zip(flat, before, strict=True):
                tensor.copy_(old + step)
            before = [tensor.clone() for tensor in flat]
            values["lr"][1]["deep"] = 1
            del metadata["losses"][1:]


def test_b5_loading_waits_for_the_save_under_way(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        for step in range(5):
            future = mgr.save(step=step, x=noise(step), n=step)
            loaded = mgr.load()
            assert future.done()
            assert loaded["n"] == step
            assert torch.equal(loaded["x"], noise(step))
            future = mgr.save(step=step + 100, n=step + 100)
            assert mgr.resume(n=None) == step + 101
            assert future.done()


def test_b6_a_failure_is_told_once_with_its_step_and_costs_no_other_save(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        mgr.save(step=1, x=noise(1)).result()
        with no_large_file(only_worker()):
            failed = mgr.save(step=2, x=noise(2))
            with pytest.raises(SaveFailed, match=r"save of step 2 failed: .*OSError") as on_future:
                failed.result()
        assert on_future.value.details["step"] == 2
        assert isinstance(on_future.value.__cause__, OSError)
        assert on_future.value.__cause__.errno in (errno.EFBIG, errno.ENOSPC)

        with pytest.raises(SaveFailed) as told:
            mgr.save(step=3, x=noise(3))
        assert told.value is on_future.value
        mgr.flush()
        mgr.save(step=4, x=noise(4))
        mgr.flush()
        assert steps(mgr) == [1, 3, 4]
        for step in (1, 3, 4):
            assert torch.equal(mgr.load(f"step:{step}")["x"], noise(step))
        assert mgr.fsck(full=True).clean


@pytest.mark.parametrize("way", ["flush", "close", "exit"])
def test_b6_flush_and_close_tell_of_a_failure_too(root: Path, way: str) -> None:
    mgr = CheckpointManager(root)
    with no_large_file(only_worker()):
        mgr.save(step=7, x=noise(1))
        with pytest.raises(SaveFailed, match="step 7"):
            {"flush": mgr.flush, "close": mgr.close, "exit": lambda: mgr.__exit__(None, None, None)}[way]()
    mgr.close()  # told once


def test_b6_nothing_of_a_failed_save_is_a_base_of_the_next(root: Path) -> None:
    base = noise(1)
    with CheckpointManager(root) as mgr:
        with no_large_file(only_worker()):
            failed = mgr.save(step=1, x=base)
            assert isinstance(failed.exception(), SaveFailed)
        with pytest.raises(SaveFailed):
            mgr.save(step=2, x=base)  # the very bytes that are nowhere: must not be taken for stored
        assert torch.equal(mgr.load("step:2")["x"], base)


def test_a_synchronous_save_raises_the_original_error(root: Path) -> None:
    with CheckpointManager(root, async_save=False) as mgr:
        assert workers() == []
        assert mgr.save(step=0, x=noise(0)).done()
        assert mgr.save(step=0, x=noise(0)).done()  # both arenas are made, which are files as well
        with no_large_file(os.getpid()), pytest.raises(OSError) as refused:
            mgr.save(step=1, x=noise(1))
        assert not isinstance(refused.value, MoonclipError)
        mgr.save(step=2, x=noise(2))
        mgr.flush()
        assert steps(mgr) == [0, 0, 2]


def test_b8_a_run_that_rolled_back_saves_lower_steps(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        mgr.save(step=80, x=noise(80)).result()
        with no_large_file(only_worker()):
            assert mgr.save(step=100, x=noise(100)).exception() is not None
        with pytest.raises(SaveFailed):
            mgr.flush()
        assert mgr.resume(x=None) == 81
        mgr.save(step=90, x=noise(90))
        mgr.save(step=85, x=noise(85))
        mgr.save(step=90, x=noise(91))
        assert steps(mgr) == [80, 90, 85, 90]
        assert torch.equal(mgr.load("step:90")["x"], noise(91))


def test_two_saves_in_a_row_both_complete_in_two_arenas(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        futures = [mgr.save(step=step, x=noise(step), grown=torch.zeros(step * 1000)) for step in range(6)]
        assert mgr.last_blocked_ns > 0
        mgr.flush()
        assert all(future.done() for future in futures)
        assert steps(mgr) == list(range(6))
        for step in range(6):
            assert torch.equal(mgr.load(f"step:{step}")["x"], noise(step))


def test_b11_memory_does_not_grow_with_the_number_of_saves(root: Path) -> None:
    def resident_bytes(pid: int) -> int:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()

    x = torch.zeros(2_000_000)
    with CheckpointManager(root) as mgr:
        processes = (os.getpid(), only_worker())
        for step in range(200):
            mgr.save(step=step, x=x, y=torch.full((1000,), float(step))).result()
            if step == 40:
                plateau = [resident_bytes(pid) for pid in processes]
        grown = [resident_bytes(pid) - before for pid, before in zip(processes, plateau, strict=True)]
        assert max(grown) < x.nbytes  # 160 saves, not one more copy of the state
        assert only_worker() == processes[1]


def test_saves_from_several_threads_take_turns(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        threads = [threading.Thread(target=lambda n=n: mgr.save(step=n, x=noise(n))) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(steps(mgr)) == list(range(6))
        for step in range(6):
            assert torch.equal(mgr.load(f"step:{step}")["x"], noise(step))


def test_a_callback_may_tag_but_not_save(root: Path) -> None:
    refused: list[MoonclipError] = []

    def on_done(future: Future[str]) -> None:
        mgr.flush()
        mgr.tag("from-callback", commit)
        with pytest.raises(MoonclipError, match="callback") as error:
            mgr.save(step=1, x=1)
        refused.append(error.value)

    with CheckpointManager(root) as mgr:
        commit = mgr.save(step=0, x=0).result()
        with refs_held(root):  # else it may be done before it has a callback
            mgr.save(step=2, x=0).add_done_callback(on_done)
        mgr.flush()
        assert len(refused) == 1
        assert mgr.tags() == {"from-callback": commit}


def test_b3_a_forked_child_neither_saves_nor_drains(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        mgr.save(step=0, x=noise(0)).result()
        expected = noise(0).numpy().tobytes()
        with refs_held(root):
            future = mgr.save(step=1, x=noise(1))
            await_save(root)
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    try:
                        mgr.save(step=2, x=noise(2))
                    except MoonclipError as error:
                        status = 0 if "fork" in str(error) else 2
                    found = mgr.load("step:0")["x"]  # compared without torch: its OpenMP threads do not survive a fork
                    if found.numpy().tobytes() != expected:
                        status = 3
                    mgr.flush()
                    mgr.close()
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # all that beside a save under way
        future.result()
        assert steps(mgr) == [0, 1]
        assert mgr.fsck(full=True).clean


def test_a_manager_that_was_dropped_still_writes_what_it_was_given(root: Path) -> None:
    future = CheckpointManager(root).save(step=3, x=noise(3))
    future.result()
    with CheckpointManager(root) as mgr:
        assert torch.equal(mgr.load("step:3")["x"], noise(3))


@pytest.mark.parametrize("way", ["closed", "dropped"])
def test_thread_and_worker_end_with_their_manager(root: Path, way: str) -> None:
    before = set(threading.enumerate())
    mgr = CheckpointManager(root)
    (thread,) = (t for t in set(threading.enumerate()) - before if t.name == "moonclip-client")
    worker = only_worker()
    if way == "closed":
        mgr.close()
        assert workers() == []
    del mgr
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert ends(worker)


def test_a_manager_that_takes_the_place_of_one_that_is_still_saving_goes_on_from_there(root: Path) -> None:
    """A cell of a notebook that is run again, a function that is called again: nobody closes."""
    mgr = CheckpointManager(root)
    for step in range(4):
        mgr.save(step=step, x=noise(step))
        mgr = CheckpointManager(root)
    assert steps(mgr) == [0, 1, 2, 3]
    assert list(mgr.branches()) == ["main"]
    mgr.close()


def test_b27_no_descriptor_is_left_behind(root: Path) -> None:
    with CheckpointManager(root) as mgr:  # whatever is opened once for a process
        mgr.save(x=noise(0))
    with left_open():
        for turn in range(3):
            with CheckpointManager(root) as mgr:
                for size in (10_000, 1_000_000, 10):  # arenas are made anew
                    mgr.save(x=noise(turn, size)).result()


def test_c5_model_optimizer_and_generators_are_one_commit(root: Path) -> None:
    """A save that dies half way leaves all of the old state, never some of the new."""
    with CheckpointManager(root) as mgr:
        mgr.save(step=1, rng=True, model={"w": noise(1, 1000)}, optimizer={"m": noise(2)}, n=1).result()
        with no_large_file(only_worker()):
            failed = mgr.save(step=2, rng=True, model={"w": noise(3, 1000)}, optimizer={"m": noise(4)}, n=2)
            assert failed.exception() is not None
        with pytest.raises(SaveFailed):
            mgr.flush()
        loaded = mgr.load()
        assert (loaded["n"], mgr.step) == (1, 1)
        assert torch.equal(loaded["model"]["w"], noise(1, 1000))
        assert torch.equal(loaded["optimizer"]["m"], noise(2))
        with pytest.raises(NotFound):
            mgr.load("step:2")
