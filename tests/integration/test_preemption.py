"""A run that is told to end: a flag, and a last save that beats the deadline."""

import logging
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from moonclip import CheckpointManager, DeadlinePassed, Incompatible, MoonclipError, RemoteMissing, SaveFailed
from moonclip.managing.milestones import _tell
from moonclip.managing.preemption import STOP_SIGNALS
from tests import preloaded
from tests.pushing import refs_of_remote_held, remote_tip
from tests.workers import becomes_true, no_large_file, only_worker, refs_held

PROJECT = Path(__file__).parents[2]

TRAINING = """
import sys, torch
from moonclip import CheckpointManager

root = sys.argv[1]
model = torch.nn.Linear(300, 300)
with CheckpointManager(root) as mgr:
    mgr.watch_signals()
    for step in range(mgr.resume(model), 1_000_000):
        with torch.no_grad():
            model.weight.fill_(float(step))
        print(step, flush=True)
        if mgr.should_stop:
            mgr.save_final(step, model, deadline_s=60)
            break
        mgr.save(step, model)
"""


def training(root: Path) -> preloaded.Program:
    return preloaded.start("-W", "error", "-c", TRAINING, str(root))


@pytest.mark.parametrize(
    ("number", "rounds"),
    [(signal.SIGTERM, 1), *(pytest.param(number, 8, marks=pytest.mark.slow) for number in STOP_SIGNALS)],
)
def test_b9_a_signal_at_any_moment_leaves_a_final_commit(tmp_path: Path, number: signal.Signals, rounds: int) -> None:
    dice = random.Random(number)
    last = -1
    for _ in range(rounds):
        with training(tmp_path) as run:
            for _ in range(dice.randrange(1, 40)):
                run.stdout.readline()
            run.send_signal(number)
            told, errors = run.communicate()
        assert (run.returncode, errors) == (0, "")
        with CheckpointManager(tmp_path) as mgr:
            found = mgr.describe().snapshot
            assert found.metadata == {"final": True}
            assert found.step is not None
            assert found.step > last
            if told:
                assert found.step == int(told.split()[-1])
            last = found.step
            assert mgr.load()["model"]["weight"].eq(last).all()
            assert mgr.fsck().clean


@pytest.fixture
def mgr(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(tmp_path / "store") as manager:
        yield manager


@pytest.fixture
def before() -> Iterator[list[int]]:
    """Signals that a handler of somebody else's has got."""
    got: list[int] = []
    others = signal.signal(signal.SIGUSR1, lambda number, _: got.append(number))
    yield got
    signal.signal(signal.SIGUSR1, others)


def test_a_flag_is_set_and_the_handler_from_before_is_told(mgr: CheckpointManager, before: list[int]) -> None:
    theirs = signal.getsignal(signal.SIGUSR1)
    assert not mgr.should_stop
    mgr.watch_signals(signal.SIGUSR1)
    assert not mgr.should_stop
    signal.raise_signal(signal.SIGUSR1)
    assert mgr.should_stop
    assert before == [signal.SIGUSR1]
    mgr.watch_signals(signal.SIGUSR1, signal.SIGTERM)
    assert mgr.should_stop
    mgr.close()
    assert signal.getsignal(signal.SIGUSR1) == theirs
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    signal.raise_signal(signal.SIGUSR1)
    assert before == [signal.SIGUSR1] * 2


def test_a_handler_that_came_later_stays(mgr: CheckpointManager, before: list[int]) -> None:
    mgr.watch_signals(signal.SIGUSR1)
    ours: Any = signal.getsignal(signal.SIGUSR1)
    later: list[int] = []

    def chained(number: int, frame: Any) -> None:
        later.append(number)
        ours(number, frame)

    signal.signal(signal.SIGUSR1, chained)
    mgr.close()
    assert signal.getsignal(signal.SIGUSR1) is chained
    signal.raise_signal(signal.SIGUSR1)
    assert (len(later), len(before)) == (1, 1)


def test_b9_a_handler_that_leads_to_an_older_watch_does_not_end_the_process(mgr: CheckpointManager) -> None:
    mgr.watch_signals(signal.SIGUSR1)
    older: Any = signal.getsignal(signal.SIGUSR1)

    def chained(number: int, frame: Any) -> None:  # as libraries do
        older(number, frame)

    signal.signal(signal.SIGUSR1, chained)
    mgr.watch_signals(signal.SIGUSR1)
    try:
        signal.raise_signal(signal.SIGUSR1)
        assert mgr.should_stop
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_a_watch_that_is_refused_leaves_the_one_before(mgr: CheckpointManager) -> None:
    mgr.watch_signals(signal.SIGUSR1)
    assert isinstance(in_thread(mgr.watch_signals)[0], Incompatible)
    with pytest.raises(Incompatible):
        mgr.watch_signals(signal.SIGKILL)
    signal.raise_signal(signal.SIGUSR1)
    assert mgr.should_stop


def test_a_closed_manager_watches_nothing(mgr: CheckpointManager) -> None:
    mgr.close()
    with pytest.raises(MoonclipError, match="closed"):
        mgr.watch_signals(signal.SIGUSR1)
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_a_manager_that_nobody_has_any_more_watches_nothing(tmp_path: Path, before: list[int]) -> None:
    theirs = signal.getsignal(signal.SIGUSR1)
    manager = CheckpointManager(tmp_path / "store")
    manager.watch_signals(signal.SIGUSR1)
    assert signal.getsignal(signal.SIGUSR1) != theirs
    del manager
    assert signal.getsignal(signal.SIGUSR1) == theirs


def in_thread(act: Callable[[], object]) -> list[BaseException]:
    raised: list[BaseException] = []

    def noted() -> None:
        try:
            act()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=noted)
    thread.start()
    thread.join()
    return raised


def test_another_thread_is_told_where_to_call_it(mgr: CheckpointManager) -> None:
    (error,) = in_thread(mgr.watch_signals)
    assert isinstance(error, Incompatible)
    assert "main thread" in str(error)
    assert not mgr.should_stop


@pytest.mark.parametrize("number", [signal.SIGKILL, 9999])
def test_a_signal_that_nobody_can_handle_is_refused(mgr: CheckpointManager, number: int) -> None:
    with pytest.raises(Incompatible, match="cannot be watched"):
        mgr.watch_signals(signal.SIGUSR2, number)
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL


ENDS = {
    "a forked child": """
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
        assert not mgr.should_stop
        mgr.close()
        os.kill(os.getpid(), signal.SIGTERM)
    """,
    "closed by another thread": """
        thread = threading.Thread(target=mgr.close)
        thread.start()
        thread.join()
        os.kill(os.getpid(), signal.SIGTERM)
    """,
}


@pytest.mark.parametrize("ending", ENDS)
def test_where_nobody_asks_a_signal_does_what_it_does(tmp_path: Path, ending: str) -> None:
    script = f"""
import os, signal, sys, threading
from moonclip import CheckpointManager
mgr = CheckpointManager(sys.argv[1])
mgr.watch_signals()
{textwrap.dedent(ENDS[ending])}
print("still here")
"""
    done = preloaded.run("-c", script, str(tmp_path / "store"))
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "", "")


def test_an_interrupt_from_the_keyboard_may_be_one_of_them(mgr: CheckpointManager) -> None:
    mgr.watch_signals(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    assert mgr.should_stop
    mgr.close()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


# --- the last save ------------------------------------------------------------------------------------------------


def state(seed: int) -> dict[str, torch.Tensor]:
    return {"weight": torch.randn(400, 300, generator=torch.Generator().manual_seed(seed))}


def test_the_last_save_is_durable_pushed_and_tidy(tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    with CheckpointManager(tmp_path / "store", remote=tmp_path / "remote") as mgr:
        for step in range(4):
            mgr.save(step=step, model=state(step))
        mgr.flush()
        packs = len(list((tmp_path / "store" / "packs").rglob("*.pack")))
        commit = mgr.save_final(4, model=state(4), tag="done", metadata={"loss": 0.5})
        assert mgr.tags() == {"done": commit}
        assert mgr.head == commit
        assert mgr.describe().snapshot.metadata == {"loss": 0.5, "final": True}
        assert len(list((tmp_path / "store" / "packs").rglob("*.pack"))) < packs
        tip = remote_tip(tmp_path / "store", "main")
        assert tip is not None
        assert tip.hex() == commit
        for step in range(5):
            assert torch.equal(mgr.load(step)["model"]["weight"], state(step)["weight"])


def test_a_save_that_failed_before_is_told_once_the_last_one_is_made(mgr: CheckpointManager) -> None:
    with no_large_file(only_worker()):
        failed = mgr.save(step=1, model={"weight": torch.randn(1_000_000)})
        assert failed.exception() is not None
    with pytest.raises(SaveFailed, match="step 1"):
        mgr.save_final(2, model=state(2))
    assert mgr.step == 2
    mgr.flush()


def test_a12_a_full_disk_fails_the_last_save_itself_and_tells_of_earlier_ones(mgr: CheckpointManager) -> None:
    with no_large_file(only_worker()):
        mgr.save(step=1, model={"weight": torch.randn(1_000_000)})
        with pytest.raises(SaveFailed, match="step 2") as failed:
            mgr.save_final(2, model={"weight": torch.randn(1_000_000)})
    assert "step 1" in failed.value.__notes__[0]
    mgr.flush()  # told once
    assert mgr.head is None


def test_a_deadline_that_passes_is_told_and_the_save_goes_on(mgr: CheckpointManager, tmp_path: Path) -> None:
    with refs_held(tmp_path / "store"), pytest.raises(DeadlinePassed, match="step 3 is not durable yet"):
        mgr.save_final(3, model=state(3), deadline_s=0.0)
    mgr.flush()
    assert mgr.step == 3


def test_the_time_counts_while_the_save_before_is_waited_for(mgr: CheckpointManager, tmp_path: Path) -> None:
    with refs_held(tmp_path / "store"):
        mgr.save(step=2, model=state(2))
        with pytest.raises(DeadlinePassed, match="step 3 was not begun"):
            mgr.save_final(3, model=state(3), deadline_s=0.0)
    mgr.flush()
    assert mgr.step == 2


def test_a_callback_of_a_future_cannot_save_for_the_last_time(mgr: CheckpointManager, tmp_path: Path) -> None:
    raised: list[BaseException] = []

    def too_soon(_: object) -> None:
        try:
            mgr.save_final(2, model=state(2), deadline_s=1000)
        except MoonclipError as error:
            raised.append(error)

    with refs_held(tmp_path / "store"):
        mgr.save(1, {"model": state(1)}).add_done_callback(too_soon)
    mgr.flush()
    assert "a callback of a save" in str(raised[0])


LOADING = """
import sys, torch
from moonclip import CheckpointManager

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, number):
        return torch.ones(4)

model = torch.nn.Linear(4, 4)
with CheckpointManager(sys.argv[1]) as mgr:
    mgr.watch_signals()
    try:
        for step, batch in enumerate(torch.utils.data.DataLoader(Data(), num_workers=2)):
            print(step, flush=True)
            if mgr.should_stop:
                break
            mgr.save(step, model)
    except RuntimeError:
        if not mgr.should_stop:
            raise
    mgr.save_final(step, model, deadline_s=60)
"""


@pytest.mark.slow
def test_b9_a_signal_to_the_whole_group_ends_loaders_and_leaves_a_final_commit(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", LOADING, str(tmp_path)]
    run = subprocess.Popen(
        command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert run.stdout is not None
    for _ in range(5):
        run.stdout.readline()
    os.killpg(run.pid, signal.SIGTERM)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors
    with CheckpointManager(tmp_path) as mgr:
        assert mgr.describe().snapshot.metadata == {"final": True}
        assert mgr.fsck().clean


def test_a_push_has_what_is_left_of_the_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "remote").mkdir()
    with CheckpointManager(tmp_path / "store", remote=tmp_path / "remote") as mgr:
        commit = mgr.save_final(3, model=state(3), deadline_s=100)
        tip = remote_tip(tmp_path / "store", "main")
        assert tip is not None
        assert tip.hex() == commit
    assert caplog.text == ""


def test_a_push_that_takes_longer_goes_on_and_its_end_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "remote").mkdir()
    caplog.set_level(logging.INFO, "moonclip")
    with CheckpointManager(tmp_path / "store", remote=tmp_path / "remote") as mgr:
        commit = mgr.save(step=3, model=state(3)).result()
        with refs_of_remote_held(tmp_path / "remote"):
            mgr._send(0.0)  # what save_final does once the commit is durable and the time is up
            assert "not all of it is pushed yet" in caplog.text
    tip = remote_tip(tmp_path / "store", "main")
    assert tip is not None
    assert tip.hex() == commit
    assert becomes_true(lambda: "the final commit is pushed" in caplog.text)
    failed: Future[None] = Future()
    failed.set_exception(RemoteMissing("gone"))
    _tell(failed)
    assert "the final commit is not pushed: gone" in caplog.text


def test_a_push_that_had_no_turn_yet_is_waited_for_by_close(tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    with CheckpointManager(tmp_path / "store", remote=tmp_path / "remote") as mgr:
        commit = mgr.save(step=3, model=state(3)).result()
        with mgr._recorder.exclusively():
            mgr._send(0.0)
    tip = remote_tip(tmp_path / "store", "main")
    assert tip is not None
    assert tip.hex() == commit


def test_a_remote_that_is_gone_is_told_with_or_without_a_deadline(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "store", remote=tmp_path / "gone") as mgr:
        for deadline_s in (None, 100):
            with pytest.raises(RemoteMissing):
                mgr.save_final(3, model=state(3), deadline_s=deadline_s)
        assert [each.step for each in mgr.list_snapshots()] == [3, 3]


def test_signals_and_process_ids_are_of_this_process() -> None:
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, f"left over in {os.getpid()}"
