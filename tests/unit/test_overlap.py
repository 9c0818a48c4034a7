"""Copying while training goes on: the next step waits, what changed all the same is noticed, nothing hangs."""

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

from moonclip.capture.capturing import Capture
from moonclip.capture.staging import Staging
from moonclip.state.flattening import flatten
from moonclip.state.items import state_of
from store.errors import StateChanged
from store.limits import HELD_COPY_BYTES
from store.parallel import Threads
from store.saving.inputs import TensorInput, located
from tests.gating import GatedThreads

WIDTH = 96
assert WIDTH * WIDTH * 4 > HELD_COPY_BYTES  # weights are copied late, biases at once


class Run:
    """A staging, and what is saved through it."""

    def __init__(self, **items: Any) -> None:
        self.items = items
        self.threads = GatedThreads(2)
        self.staging = Staging(self.threads, overlap=True)

    def capture(self, *, is_gate_open: bool = False) -> tuple[Capture, dict[str, bytes]]:
        """A capture whose late part waits at the gate, and what it is to hold."""
        if not is_gate_open:
            self.threads.gate.clear()
        states = {name: flatten(state_of(obj), item=name) for name, obj in self.items.items()}
        expected = {
            f"{item}/{name}": entry.source.tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            for item, state in states.items()
            for name, entry in state.entries.items()
            if hasattr(entry, "source")
        }
        return self.staging.capture(states, self.items.values()), expected

    def close(self) -> None:
        self.threads.gate.set()
        self.staging.guard.settle()
        self.staging.guard.close()
        self.threads.close()


@pytest.fixture
def runs() -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def make(**items: Any) -> Run:
        made.append(Run(**items))
        return made[-1]

    yield make
    for run in made:
        run.close()


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))


def held(capture: Capture) -> dict[str, bytes]:
    return {
        f"{item.name}/{name}": bytes(given.data)
        for item in located(capture.items, capture.arena.memory)
        for name, given in item.entries.items()
        if isinstance(given, TensorInput)
    }


def backward(model: nn.Module) -> torch.Tensor:
    loss = model(torch.randn(8, WIDTH)).square().mean()
    loss.backward()
    return loss


def until_waiting(capture: Capture, thread: threading.Thread) -> None:
    """Until the thread waits for the capture; it must not get past it."""
    while not capture._changed._waiters:  # type: ignore[attr-defined]
        assert thread.is_alive()


def check_that_it_waits(run: Run, step: Callable[[], object], *altered: torch.Tensor) -> None:
    """A step begun while nothing is copied yet waits, and then alters what the capture no longer needs."""
    capture, expected = run.capture()
    assert not capture.is_done
    before = [tensor.detach().clone() for tensor in altered]
    stepping = threading.Thread(target=step)
    stepping.start()
    until_waiting(capture, stepping)
    assert all(map(torch.equal, before, altered))
    run.threads.gate.set()
    stepping.join()
    capture.wait()
    assert held(capture) == expected
    assert not any(map(torch.equal, before, altered))


STEPS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    "for-loop": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=False, fused=False),
    "foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=True),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
}


@pytest.mark.parametrize("kind", STEPS)
def test_a_step_waits_for_what_is_not_copied(runs: Callable[..., Run], kind: str) -> None:
    model = network()
    optimizer = STEPS[kind](list(model.parameters()))
    run = runs(model=model, optimizer=optimizer)
    for _ in range(3):
        backward(model)
        check_that_it_waits(run, optimizer.step, model[0].weight)


def test_lbfgs_steps_as_often_as_it_likes(runs: Callable[..., Run]) -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    run = runs(model=model, optimizer=optimizer)
    for _ in range(3):
        check_that_it_waits(run, lambda: optimizer.step(lambda: backward(model)), model[0].weight)


def test_several_optimizers_wait_for_one_capture(runs: Callable[..., Run]) -> None:
    models = [network(), network()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    run = runs(a=models[0], b=models[1], first=optimizers[0], second=optimizers[1])
    for model in models:
        backward(model)
    check_that_it_waits(run, optimizers[1].step, models[1][0].weight)
    check_that_it_waits(run, optimizers[0].step, models[0][0].weight)


def test_a_gradient_scaler_that_skips_a_step_leaves_nothing_waiting(runs: Callable[..., Run]) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    run = runs(model=model, optimizer=optimizer, scaler=scaler, scheduler=scheduler)

    def step(factor: float) -> None:
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(8, WIDTH)).square().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()

    step(1.0)
    scheduler.step()
    capture, expected = run.capture()
    step(float("inf"))
    assert not capture.is_done
    run.threads.gate.set()
    capture.wait()
    assert held(capture) == expected
    model.eval()  # its running statistics are nan by now
    check_that_it_waits(run, lambda: step(1.0), model[0].weight)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, where it compiles
def test_a_compiled_step_waits(runs: Callable[..., Run]) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    run = runs(model=model, optimizer=optimizer)
    compiled = torch.compile(optimizer.step, backend="eager")
    for _ in range(3):
        backward(model)
        check_that_it_waits(run, compiled, model[0].weight)


# --- what is copied at once -----------------------------------------------------------------------------------------


def test_what_no_step_alone_alters_is_copied_at_once(runs: Callable[..., Run]) -> None:
    model = network()
    table = torch.randn(WIDTH, WIDTH)
    model.register_buffer("table", torch.randn(WIDTH, WIDTH))
    run = runs(model=model, plain={"table": table})
    capture, expected = run.capture()
    table.zero_()
    model.table.zero_()
    model[1].running_mean.zero_()
    model(torch.randn(8, WIDTH))
    run.threads.gate.set()
    capture.wait()
    assert held(capture) == expected


def test_a_flat_buffer_that_a_parameter_lies_at_the_start_of_is_copied_at_once(runs: Callable[..., Run]) -> None:
    flat = torch.randn(3 * WIDTH * WIDTH)
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    model.weight.data = flat[: WIDTH * WIDTH].view(WIDTH, WIDTH)
    run = runs(model=model, plain={"flat": flat})
    capture, expected = run.capture()
    flat[WIDTH * WIDTH :].zero_()
    run.threads.gate.set()
    capture.wait()
    assert held(capture) == expected


def test_a_state_without_large_parameters_is_done_at_once(runs: Callable[..., Run]) -> None:
    capture, expected = runs(model=nn.Linear(3, 3)).capture()
    assert capture.is_done and held(capture) == expected


def test_parameters_that_torch_has_to_arrange_are_watched_too(runs: Callable[..., Run]) -> None:
    model = nn.Conv2d(32, 32, 3).to(memory_format=torch.channels_last)
    run = runs(model=model)
    for write in (lambda: None, lambda: model.weight.data.mul_(2)):
        capture, expected = run.capture()
        write()
        run.threads.gate.set()
        capture.settle()
        assert (held(capture) == expected) is (capture._error is None) is (write.__code__.co_names == ())


def test_memory_that_a_tensor_is_given_another_for_is_copied_first(runs: Callable[..., Run]) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    backward(model)
    optimizer.step()
    run = runs(optimizer=optimizer)
    momentum = optimizer.state[model[0].weight]["momentum_buffer"]
    given_up = weakref.ref(momentum.untyped_storage())
    capture, expected = run.capture()
    momentum.data = torch.zeros(WIDTH, WIDTH)
    assert given_up() is not None
    run.threads.gate.set()
    capture.wait()
    assert held(capture) == expected


def test_words_are_compared_bit_for_bit(runs: Callable[..., Run]) -> None:
    weight = nn.Parameter(torch.full((WIDTH, WIDTH), torch.nan, dtype=torch.complex128))
    model = nn.ParameterDict({"zeros": nn.Parameter(torch.zeros(WIDTH, WIDTH, dtype=torch.complex128)), "nan": weight})
    run = runs(model=model)
    capture, expected = run.capture()
    run.threads.gate.set()
    capture.wait()
    assert held(capture) == expected
    capture, _ = run.capture()
    model["zeros"].data.view(torch.float64).fill_(-0.0)
    run.threads.gate.set()
    with pytest.raises(StateChanged, match="zeros"):
        capture.wait()


# --- what changed all the same --------------------------------------------------------------------------------------


def write_in_place(weight: nn.Parameter) -> None:
    with torch.no_grad():
        weight[0, 0] += 1.0  # meets no sampled word, but raises the counter


def write_through_data(weight: nn.Parameter) -> None:
    weight.data.mul_(2)  # raises no counter


def write_through_numpy(weight: nn.Parameter) -> None:
    weight.detach().numpy()[:] += 1


WRITES = [write_in_place, write_through_data, write_through_numpy]


@pytest.mark.parametrize("write", WRITES)
def test_a_tensor_that_changed_fails_its_save_by_name_and_no_other(runs: Callable[..., Run], write: Any) -> None:
    model = network()
    run = runs(model=model)
    first, _ = run.capture()
    run.threads.gate.set()
    first.wait()
    kept = held(first)
    capture, _ = run.capture()
    write(model[2].weight)
    run.threads.gate.set()
    with pytest.raises(StateChanged, match=r"model::2\.weight was altered"):
        capture.wait()
    assert held(first) == kept
    capture, expected = run.capture()
    run.threads.gate.set()
    capture.wait()
    assert held(capture) == expected and held(first) == kept


def test_state_of_an_optimizer_that_changed_is_named(runs: Callable[..., Run]) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    backward(model)
    optimizer.step()
    run = runs(optimizer=optimizer)
    capture, _ = run.capture()
    optimizer.state[model[0].weight]["momentum_buffer"].add_(1)
    run.threads.gate.set()
    with pytest.raises(StateChanged, match="optimizer::state/0/momentum_buffer"):
        capture.wait()


# --- waiting --------------------------------------------------------------------------------------------------------


def test_updates_under_the_lock_wait_and_captures_wait_for_them(runs: Callable[..., Run]) -> None:
    model, average = network(), network()
    run = runs(model=model, average=average)

    def update() -> None:
        with run.staging.guard.updating(), torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.5)

    check_that_it_waits(run, update, average[0].weight)
    with run.staging.guard.updating():
        capture, expected = run.capture(is_gate_open=True)
        assert capture.is_done and held(capture) == expected


def test_tensors_that_nobody_else_holds_live_until_they_are_copied(runs: Callable[..., Run]) -> None:
    run = runs(model=network())
    capture, expected = run.capture()
    run.items.clear()
    trash = [torch.randn(WIDTH, WIDTH) for _ in range(50)]  # where they were, if they were given up
    run.threads.gate.set()
    capture.wait()
    assert held(capture) == expected and trash


def test_a_capture_that_is_done_and_dropped_keeps_nothing_alive(runs: Callable[..., Run]) -> None:
    run = runs(model=network())
    capture, _ = run.capture()
    run.threads.gate.set()
    capture.wait()
    for thread in copying_threads():
        thread.join()
    dropped = weakref.ref(capture)
    del capture
    gc.collect()
    assert dropped() is None


def test_an_error_in_the_copying_ends_the_capture_not_the_loop(
    runs: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise OSError("no such memory")

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = runs(model=model)
    capture, _ = run.capture()
    monkeypatch.setattr("moonclip.capture.copying.stream", fail)
    run.threads.gate.set()
    backward(model)
    optimizer.step()
    with pytest.raises(OSError, match="no such memory"):
        capture.wait()


def copying_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "moonclip-capture"]


def test_a_thread_that_an_interrupt_hid_gives_no_arena_back(
    runs: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(threading.Thread):
        def start(self) -> None:
            super().start()
            raise KeyboardInterrupt

    run = runs(model=network())
    last, expected = run.capture()
    run.threads.gate.set()
    last.wait()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("moonclip.capture.overlap.threading", SimpleNamespace(Thread=Interrupted))
        run.capture()
    run.threads.gate.set()
    for thread in copying_threads():
        thread.join()
    assert run.staging._arenas == (None, last.arena)
    assert held(last) == expected


def test_a_capture_that_an_interrupt_hid_is_over_before_the_next_begins(
    runs: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    run = runs(model=network())
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(run.staging.guard, "settle_inside", interrupt)
        run.capture()
    hidden = run.staging.guard._pending()
    assert hidden is not None and not hidden.is_done
    taken: list[tuple[Capture, dict[str, bytes]]] = []
    capturing = threading.Thread(target=lambda: taken.append(run.capture()))
    capturing.start()
    until_waiting(hidden, capturing)
    run.threads.gate.set()
    capturing.join()
    ((capture, expected),) = taken
    capture.wait()
    assert held(capture) == expected


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_waits_for_nothing(runs: Callable[..., Run]) -> None:
    model = nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    model.weight.grad = torch.ones(WIDTH, WIDTH)
    run = runs(model=model)
    capture, _ = run.capture()
    child = os.fork()
    if child == 0:
        with run.staging.guard.updating():
            optimizer.step()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    run.threads.gate.set()
    capture.wait()


# --- the hook -------------------------------------------------------------------------------------------------------


def test_there_is_one_hook_and_it_goes_with_the_last_guard(runs: Callable[..., Run]) -> None:
    before = len(_global_optimizer_pre_hooks)
    first, second = runs(), runs()
    assert len(_global_optimizer_pre_hooks) == before + 1
    first.close()
    assert len(_global_optimizer_pre_hooks) == before + 1
    second.close()
    assert len(_global_optimizer_pre_hooks) == before


def test_a_guard_that_is_dropped_is_not_kept_alive() -> None:
    before = len(_global_optimizer_pre_hooks)
    dropped = Run()
    dropped.threads.close()
    del dropped
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    optimizer.step()
    other = Run()
    other.close()
    assert len(_global_optimizer_pre_hooks) == before


def test_a_staging_that_does_not_overlap_hooks_nothing() -> None:
    before = len(_global_optimizer_pre_hooks)
    threads = Threads(1)
    Staging(threads).capture({"x": flatten(deepcopy(torch.ones(3)))})
    threads.close()
    assert len(_global_optimizer_pre_hooks) == before
