"""Items that nobody alters until they are stored: copied behind the save, and watched meanwhile."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from moonclip.capture.capturing import Capture
from moonclip.capture.staging import Staging
from moonclip.state.flattening import flatten
from store.errors import StateChanged
from store.saving.inputs import TensorInput, located
from tests.gating import GatedThreads

COUNT = 10_000


@pytest.fixture
def threads() -> Iterator[GatedThreads]:
    threads = GatedThreads(2)
    yield threads
    threads.gate.set()
    threads.close()


def capture(threads: GatedThreads, *lent: str, **items: Any) -> Capture:
    states = {name: flatten(obj, item=name) for name, obj in items.items()}
    return Staging(threads).capture(states, items.values(), lent=lent)


def held(capture: Capture, item: str) -> np.ndarray[Any, Any]:
    (found,) = (each for each in located(capture.items, capture.arena.memory) if each.name == item)
    (given,) = (each for each in found.entries.values() if isinstance(each, TensorInput))
    return np.frombuffer(given.data, dtype=np.float32)  # type: ignore[arg-type]


def test_what_is_lent_is_copied_behind_and_all_else_at_once(threads: GatedThreads) -> None:
    lent, own = torch.ones(COUNT), torch.ones(5)
    threads.gate.clear()
    captured = capture(threads, "lent", "missing", lent=lent, own=own)
    assert not captured.is_done
    own.fill_(2)
    assert held(captured, "own").tolist() == [1] * 5
    threads.gate.set()
    captured.wait()
    assert held(captured, "lent").sum() == COUNT


def test_without_such_items_all_is_there_at_once(threads: GatedThreads) -> None:
    assert capture(threads, lent=torch.ones(COUNT)).is_done
    assert capture(threads, "lent", lent=3).is_done


def test_a_broken_promise_is_told_by_the_name_of_the_tensor(threads: GatedThreads) -> None:
    lent = torch.ones(COUNT)
    threads.gate.clear()
    captured = capture(threads, "lent", lent={"w": lent})
    lent.mul_(2)
    threads.gate.set()
    with pytest.raises(StateChanged, match=r"lent::w was altered .* requires_copy=False may not be altered"):
        captured.wait()


def test_an_array_that_is_lent_is_watched_by_its_words(threads: GatedThreads) -> None:
    lent = np.ones(COUNT, dtype=np.float32)
    threads.gate.clear()
    captured = capture(threads, "lent", lent=lent)
    assert not captured.is_done
    lent *= 2
    threads.gate.set()
    with pytest.raises(StateChanged, match="lent"):
        captured.wait()
