"""Frozen parameters are skipped while they are what they were, and never when there is doubt."""

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from moonclip.capture.capturing import Capture
from moonclip.capture.staging import Staging
from moonclip.state.flattening import flatten
from moonclip.state.items import state_of
from store.errors import StateChanged
from store.limits import MIB
from store.parallel import Threads
from store.saving.inputs import TensorInput, UnchangedInput, located

WIDTH = 96


class Run:
    """A model with a frozen first layer, saved again and again."""

    def __init__(self, *, overlap: bool = False) -> None:
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        self.frozen = self.model[0].weight.requires_grad_(requires_grad=False)
        self.model.register_buffer("table", torch.randn(WIDTH, WIDTH))
        self.items: dict[str, Any] = {"model": self.model}
        self.threads = Threads(2)
        self.staging = Staging(self.threads, overlap=overlap, skip_unmodified=True)

    def capture(self, *, is_last_committed: bool = True) -> Capture:
        states = {name: flatten(state_of(obj), item=name) for name, obj in self.items.items()}
        capture = self.staging.capture(states, self.items.values(), is_last_committed=is_last_committed)
        capture.wait()
        return capture


@pytest.fixture(params=["copy", "overlap"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    run = Run(overlap=request.param == "overlap")
    yield run
    run.staging.guard.close()
    run.threads.close()


def skipped(capture: Capture) -> set[str]:
    return {
        f"{item.name}::{name}"
        for item in capture.items
        for name, given in item.entries.items()
        if isinstance(given, UnchangedInput)
    }


def held(capture: Capture, name: str) -> bytes:
    (given,) = (item.entries[name] for item in located(capture.items, capture.arena.memory) if name in item.entries)
    assert isinstance(given, TensorInput)
    return bytes(given.data)


def test_a_frozen_parameter_is_skipped_from_the_second_save_on(run: Run) -> None:
    assert [skipped(run.capture(is_last_committed=number > 0)) for number in range(4)] == [
        set(),
        *[{"model::0.weight"}] * 3,
    ]


def test_after_a_save_that_failed_all_is_copied(run: Run) -> None:
    run.capture()
    assert skipped(run.capture(is_last_committed=False)) == set()
    assert skipped(run.capture()) == {"model::0.weight"}


def assign(run: Run) -> None:
    run.model[0].weight = nn.Parameter(run.frozen.detach().clone(), requires_grad=False)


def move(run: Run) -> None:
    run.frozen.data = run.frozen.detach().clone()


def transpose(run: Run) -> None:
    run.frozen.data = run.frozen.detach().t()


def thaw(run: Run) -> None:
    run.frozen.requires_grad_()


def own(run: Run) -> None:
    run.items["optimizer"] = torch.optim.SGD(run.model.parameters(), lr=0.1)


def write(run: Run) -> None:
    run.frozen[0, 0] += 1


def write_silently(run: Run) -> None:
    run.frozen.data.add_(1)


def as_a_plain_dict(run: Run) -> None:
    run.items["model"] = run.model.state_dict()


@pytest.mark.parametrize("alter", [assign, move, transpose, thaw, own, write, write_silently, as_a_plain_dict])
def test_whatever_casts_doubt_has_it_copied(run: Run, alter: Callable[[Run], None]) -> None:
    run.capture()
    alter(run)
    capture = run.capture()
    assert skipped(capture) == set()
    assert held(capture, "0.weight") == run.model.state_dict()["0.weight"].contiguous().numpy().tobytes()


def test_a_flat_buffer_that_a_frozen_parameter_lies_at_the_start_of_is_copied(run: Run) -> None:
    flat = torch.randn(3 * WIDTH * WIDTH)
    run.frozen.data = flat[: WIDTH * WIDTH].view(WIDTH, WIDTH)
    run.items["plain"] = {"flat": flat}
    run.capture()
    flat[2 * WIDTH * WIDTH] += 1  # meets no sampled word
    capture = run.capture()
    assert skipped(capture) == {"model::0.weight"}
    assert held(capture, "flat") == flat.numpy().tobytes()


def test_a_tie_is_skipped_only_as_a_whole(run: Run) -> None:
    run.capture()
    run.model.add_module("again", run.model[0])
    assert skipped(run.capture()) == set()
    assert skipped(run.capture()) == {"model::0.weight", "model::again.weight"}


def test_what_was_skipped_can_still_be_copied(run: Run) -> None:
    run.capture()
    capture = run.capture()
    assert capture.fill is not None
    capture.fill()
    assert skipped(capture) == set() and capture.fill is None
    assert held(capture, "0.weight") == run.frozen.numpy().tobytes()


def test_a_capture_that_could_still_be_filled_keeps_nothing_alive(run: Run) -> None:
    run.capture()
    capture = run.capture()
    assert capture.fill is not None
    for thread in threading.enumerate():
        if thread.name == "moonclip-capture":
            thread.join()
    dropped = weakref.ref(capture)
    gc.disable()  # it must not take a collection
    try:
        del capture
        assert dropped() is None
    finally:
        gc.enable()


def test_unless_it_has_changed_since(run: Run) -> None:
    run.capture()
    capture = run.capture()
    run.frozen.add_(1)
    assert capture.fill is not None
    with pytest.raises(StateChanged, match=r"model::0\.weight"):
        capture.fill()


def test_pages_that_skipping_left_out_do_not_count_as_made(run: Run) -> None:
    """Else whoever fills them later writes pages that there may be no room for, which ends the process."""
    run.model.register_buffer("first", torch.zeros(2 * MIB))
    run.capture()
    run.model.register_parameter("late", nn.Parameter(torch.ones(64 * 1024), requires_grad=False))
    assert skipped(run.capture()) == {"model::0.weight"}
    capture = run.capture()
    assert "model::late" in skipped(capture)
    pages = run.staging._pages
    size_bytes = os.fstat(capture.arena.fd).st_blocks * 512
    assert pages.made_bytes(capture.arena) <= size_bytes


def test_nothing_is_skipped_unasked() -> None:
    run = Run()
    run.staging = Staging(run.threads)
    assert [skipped(run.capture()) for _ in range(3)] == [set()] * 3
    run.threads.close()
