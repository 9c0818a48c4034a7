"""Saves that are cut short, closed upon or end oddly: what comes after them is right, and nobody waits for ever."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from moonclip import CheckpointManager, MoonclipError, SaveFailed
from moonclip.saver import SaveThread
from moonclip.staging import Staging
from store.refs import NotDurable
from store.repository import Repository

PATIENCE_S = 60
"""How long something may take that, without the fix, never ends."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def saves() -> Iterator[SaveThread]:
    saves = SaveThread()
    yield saves
    saves.close()


def ends(function: Callable[[], object]) -> bool:
    """Call it in another thread; whether it came back."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return not thread.is_alive()


def filled(value: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((100_000,), float(value)), "tiny": torch.full((100,), value)}


def interrupted_after(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        real(*args)
        raise KeyboardInterrupt

    return call


def interrupted(*args: Any) -> Any:
    raise KeyboardInterrupt


INTERRUPTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "while items are made": lambda patch: patch.setattr("moonclip.staging._item", interrupted),
    "while tensors are copied": lambda patch: patch.setattr("moonclip.staging._copy", interrupted),
    "after the swap": lambda patch: patch.setattr(Staging, "capture", interrupted_after(Staging.capture)),
    "before the hand-over": lambda patch: patch.setattr(SaveThread, "submit", interrupted),
    "after the hand-over": lambda patch: patch.setattr(SaveThread, "submit", interrupted_after(SaveThread.submit)),
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


def test_a_save_that_was_handed_over_but_not_announced_is_found_by_whoever_waits(saves: SaveThread) -> None:
    real, written = saves._wakeups, list[int]()

    class Interrupted:
        def put(self, _: object) -> None:
            raise KeyboardInterrupt

    def work() -> str:
        written.append(1)
        return "id"

    saves._wakeups = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        saves.submit(work, 1)
    saves._wakeups = real
    assert ends(saves.wait)
    assert written == [1]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("fails", [False, True])
def test_a_callback_that_ends_with_an_error_costs_no_save(
    saves: SaveThread, error: type[BaseException], fails: bool
) -> None:
    released = threading.Event()

    def work() -> str:
        released.wait()
        if fails:
            raise OSError
        return "first"

    def on_done(_: object) -> None:
        raise error

    future = saves.submit(work, 1)
    future.add_done_callback(on_done)
    released.set()
    assert ends(saves.wait)
    assert saves.submit(lambda: "second", 2).result(PATIENCE_S) == "second"
    assert (saves.take_failure() is not None) == fails


def test_a_failure_is_told_to_one_of_those_who_ask_at_once(saves: SaveThread) -> None:
    told: list[SaveFailed | None] = []

    class Raced(list[SaveFailed]):
        """Another thread asks between the look and the taking."""

        has_raced = False

        def __len__(self) -> int:
            length = super().__len__()
            if not self.has_raced:
                self.has_raced = True
                other.start()
                other.join(0.2)
            return length

    other = threading.Thread(target=lambda: told.append(saves.take_failure()))
    saves._failures = Raced([SaveFailed("one")])
    told.append(saves.take_failure())
    other.join()
    assert sorted(failure is None for failure in told) == [False, True]


def test_nothing_is_handed_over_to_a_thread_that_was_told_to_end(saves: SaveThread) -> None:
    saves.close()
    with pytest.raises(MoonclipError, match="told to end"):
        saves.submit(lambda: "lost", 1)


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
    released = threading.Event()

    def close(_: object) -> None:
        with pytest.raises(MoonclipError) as error:
            mgr.close()
        refused.append(str(error.value))

    with CheckpointManager(root) as mgr:
        assert mgr._recorder._thread is not None
        future = mgr._recorder._thread.submit(lambda: str(released.wait()), None)
        future.add_done_callback(close)
        released.set()
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

    def failing(repo: Repository, request: Any) -> Any:
        real(repo, request)
        raise error

    with CheckpointManager(root) as mgr:
        for step in (0, 2):
            with monkeypatch.context() as patch:
                patch.setattr(Repository, "save", failing)
                assert mgr.save(step=step, metadata={"loss": 0.5}, x=filled(step)).exception() is not None
            with pytest.raises(SaveFailed):
                mgr.flush()
            mgr.save(step=step + 1, x=filled(step + 1)).result()
        assert list(mgr.branches()) == ["main"]
        assert [snapshot.step for snapshot in mgr.list_snapshots()] == [0, 1, 2, 3]
        assert all(torch.equal(mgr.load(f"step:{n}")["x"]["w"], filled(n)["w"]) for n in range(4))


def test_somebody_elses_commit_is_not_gone_on_from(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(repo: Repository, request: Any) -> Any:
        raise OSError(5, "too early")

    with CheckpointManager(root) as mgr, CheckpointManager(root) as other:
        tip = other.save(step=7, x=1).result()
        with monkeypatch.context() as patch:
            patch.setattr(Repository, "save", failing)
            assert mgr.save(step=8, x=1).exception() is not None
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
