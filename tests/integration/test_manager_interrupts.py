"""Saves that are cut short, closed upon or end oddly: what comes after them is right, and nobody waits for ever."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from moonclip import CheckpointManager, MoonclipError, SaveFailed
from moonclip.capture.staging import Staging
from moonclip.saving.wishes import Wish
from store.naming.refs import NotDurable
from store.repository import Repository
from store.worker.client import Client
from tests.workers import PATIENCE_S, await_save, becomes_true, kill, no_large_file, only_worker, refs_held


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def ends(function: Callable[[], object]) -> bool:
    """Call it in another thread; whether it came back."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return not thread.is_alive()


def filled(value: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((100_000,), float(value)), "tiny": torch.full((100,), value)}


def interrupted_after(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        real(*args, **named)
        raise KeyboardInterrupt

    return call


def interrupted(*args: Any, **named: Any) -> Any:
    raise KeyboardInterrupt


INTERRUPTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "while items are made": lambda patch: patch.setattr("moonclip.capture.staging._inputs", interrupted),
    "while tensors are copied": lambda patch: patch.setattr("moonclip.capture.copying.Copier._move", interrupted),
    "after the swap": lambda patch: patch.setattr(Staging, "capture", interrupted_after(Staging.capture)),
    "before the hand-over": lambda patch: patch.setattr(Client, "submit", interrupted),
    "after the hand-over": lambda patch: patch.setattr(Client, "submit", interrupted_after(Client.submit)),
}


@pytest.mark.parametrize("where", INTERRUPTS)
def test_after_an_interrupt_what_is_saved_is_what_is_stored(
    root: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    with CheckpointManager(root, threads=2) as mgr:
        for value in range(0, 9, 3):
            mgr.save(step=value, x=filled(value)).result()
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                INTERRUPTS[where](patch)
                mgr.save(step=value + 1, x=filled(value + 1))
            mgr.save(step=value + 2, x=filled(value + 2)).result()
        stored = {snapshot.step: mgr.load(snapshot.id)["x"] for snapshot in mgr.list_snapshots()}
    asked = {step for step in range(9) if where == "after the hand-over" or step % 3 != 1}
    assert stored.keys() == asked
    for step, found in stored.items():
        assert step is not None
        assert all(torch.equal(found[name], tensor) for name, tensor in filled(step).items())


def test_a_save_that_was_handed_over_but_not_announced_is_found_by_whoever_waits(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CheckpointManager(root) as mgr:
        mgr.save(step=0, x=filled(0)).result()
        real = Client._wake

        def interrupted_once(client: Client) -> None:
            monkeypatch.setattr(Client, "_wake", real)
            raise KeyboardInterrupt

        client = mgr._recorder._client
        assert client is not None
        job = mgr._recorder._captured(*_asked(mgr, 1))
        monkeypatch.setattr(Client, "_wake", interrupted_once)
        with pytest.raises(KeyboardInterrupt):
            client.submit(job)
        assert ends(client.wait)
        assert torch.equal(mgr.load("step:1")["x"]["w"], filled(1)["w"])


def _asked(mgr: CheckpointManager, step: int) -> tuple[Any, ...]:
    wish = Wish({"x": filled(step)}, step=step)
    return wish, *mgr._recorder._described(wish)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("fails", [False, True])
def test_a_callback_that_ends_with_an_error_costs_no_save(root: Path, error: type[BaseException], fails: bool) -> None:
    def on_done(_: object) -> None:
        raise error

    with CheckpointManager(root) as mgr, ExitStack() as fault:
        if fails:
            fault.enter_context(no_large_file(only_worker()))
        with refs_held(root):
            mgr.save(step=1, x=torch.randn(1_000_000)).add_done_callback(on_done)
        assert ends(mgr._recorder.wait)
        fault.close()
        assert (mgr._recorder._taken_failure() is not None) == fails
        assert mgr.save(step=2, x=filled(2)).result(PATIENCE_S)


def test_a_failure_is_told_to_one_of_those_who_ask_at_once(root: Path) -> None:
    told: list[SaveFailed] = []
    start = threading.Barrier(8)

    def ask() -> None:
        start.wait()
        try:
            mgr.flush()
        except SaveFailed as failure:
            told.append(failure)

    with CheckpointManager(root) as mgr:
        with no_large_file(only_worker()):
            assert mgr.save(step=1, x=torch.randn(1_000_000)).exception() is not None
        askers = [threading.Thread(target=ask) for _ in range(8)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        assert len(told) == 1


def test_closing_waits_for_the_save_that_another_thread_is_in(root: Path) -> None:
    mgr = CheckpointManager(root)
    closing = threading.Event()
    futures: list[Any] = []

    def close() -> None:
        closing.set()
        mgr.close()

    closer = threading.Thread(target=close, daemon=True)

    class Slow:
        def state_dict(self) -> dict[str, torch.Tensor]:
            closer.start()
            closing.wait()
            closer.join(0.2)  # it ends here if nothing holds it back
            return filled(1)

    assert ends(lambda: futures.append(mgr.save(step=1, x=Slow())))
    closer.join(PATIENCE_S)
    assert not closer.is_alive()
    assert futures[0].result(PATIENCE_S)
    with pytest.raises(MoonclipError, match="closed"):
        mgr.save(step=2, x=1)
    with CheckpointManager(root) as again:
        assert torch.equal(again.load("step:1")["x"]["w"], filled(1)["w"])


def test_a_callback_cannot_close(root: Path) -> None:
    refused: list[str] = []

    def close(_: object) -> None:
        with pytest.raises(MoonclipError) as error:
            mgr.close()
        refused.append(str(error.value))

    with CheckpointManager(root) as mgr:
        with refs_held(root):
            mgr.save(step=0, x=1).add_done_callback(close)
        mgr.flush()
        mgr.save(step=1, x=1).result()
    assert len(refused) == 1
    assert "close" in refused[0]


@pytest.mark.parametrize("error", [OSError(5, "too late"), NotDurable("too late")], ids=["unknown", "not durable"])
def test_a_commit_that_was_made_by_a_save_that_failed_is_gone_on_from(
    root: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """The disk may report an error when the branch has moved already."""
    real = Repository.save

    def failing(repo: Repository, *request: Any) -> Any:
        real(repo, *request)
        raise error

    with CheckpointManager(root, async_save=False) as mgr:
        for step in (0, 2):
            with monkeypatch.context() as patch, pytest.raises(type(error)):
                patch.setattr(Repository, "save", failing)
                mgr.save(step=step, metadata={"loss": 0.5}, x=filled(step))
            mgr.save(step=step + 1, x=filled(step + 1)).result()
        require_line(mgr)


def require_line(mgr: CheckpointManager) -> None:
    assert list(mgr.branches()) == ["main"]
    assert [snapshot.step for snapshot in mgr.list_snapshots()] == [0, 1, 2, 3]
    assert all(torch.equal(mgr.load(f"step:{n}")["x"]["w"], filled(n)["w"]) for n in range(4))


@contextmanager
def endless(path: Path) -> Iterator[None]:
    """A file that whoever opens it waits for; nobody does any more once the block has ended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    try:
        yield
    finally:
        with suppress(OSError):  # there is nobody
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        path.unlink()


def test_a_commit_whose_worker_died_before_it_could_tell_is_gone_on_from(root: Path) -> None:
    """It dies between the branch's move and the tag's, waiting for the tag's file."""
    with CheckpointManager(root) as mgr:
        client = mgr._recorder._client
        assert client is not None
        for step in (0, 2):
            mgr.flush()
            assert becomes_true(lambda: client._worker and client._worker.is_ready)  # starting, it reads all refs
            before = mgr.head
            with endless(root / "refs" / "tags" / f"trap{step}"):
                future = mgr.save(f"trap{step}", step=step, overwrite=True, metadata={"loss": 0.5}, x=filled(step))
                assert becomes_true(lambda before=before: mgr.head != before)
                kill(only_worker())
                assert isinstance(future.exception(PATIENCE_S), SaveFailed)
            with pytest.raises(SaveFailed, match="SIGKILL"):
                mgr.save(step=step + 1, x=filled(step + 1))
        require_line(mgr)


def test_somebody_elses_commit_is_not_gone_on_from(root: Path) -> None:
    with CheckpointManager(root) as mgr, CheckpointManager(root, async_save=False) as other:
        mgr.save(step=6, x=1).result()
        other.resume(x=None)
        tip = other.save(step=7, x=1).result()
        worker = only_worker()
        with refs_held(root):
            failed = mgr.save(step=8, x=1)
            await_save(root)
            kill(worker)
            assert isinstance(failed.exception(PATIENCE_S), SaveFailed)
        with pytest.raises(SaveFailed):
            mgr.flush()
        assert isinstance(mgr.save(step=9, x=1).exception(), SaveFailed)
        assert mgr.branches()["main"] == tip
        with pytest.raises(SaveFailed, match="moved"):
            mgr.flush()


def test_b9_a_save_inside_a_save_is_refused_and_harms_neither(root: Path) -> None:
    """What a signal handler does that saves while the training loop is saving."""
    mgr = CheckpointManager(root)
    inside: list[str] = []

    class Interrupted:
        def state_dict(self) -> dict[str, torch.Tensor]:
            for call in (lambda: mgr.save(step=1000, it=filled(9)), mgr.close):
                with pytest.raises(MoonclipError, match="signal handler") as refused:
                    call()
                inside.append(str(refused.value))
            return filled(1)

        def load_state_dict(self, state: object) -> None:
            raise NotImplementedError

    mgr.save(step=1, it=Interrupted()).result()
    assert len(inside) == 2
    mgr.save(step=2, it=filled(2)).result()
    assert torch.equal(mgr.load("step:1")["it"]["w"], filled(1)["w"])
    assert torch.equal(mgr.load("step:2")["it"]["w"], filled(2)["w"])
    mgr.close()
