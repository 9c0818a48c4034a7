"""Random streams go on where they were."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from moonclip.state.rng import capture, restore
from moonclip.state.values import from_plain
from store.errors import Incompatible
from store.format import values
from tests.state_trip import trip


@pytest.fixture(autouse=True)
def _generators_are_put_back() -> Iterator[None]:
    before = capture()
    yield
    restore(before)


def draw() -> list[Any]:
    return [
        *(random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), np.random.randint(100)),
        *(torch.rand(3).tolist(), torch.randn(3).tolist(), torch.randperm(9).tolist()),
    ]


def test_a16_all_streams_continue() -> None:
    draw()
    random.gauss(0, 1)
    np.random.randn()
    state = capture()
    expected = [draw(), draw()]
    kept = from_plain(values.decode(values.encode(state)))  # no pickle on the way: the engine's values are enough
    restore(kept)
    assert [draw(), draw()] == expected
    restore(trip(state))
    assert draw() == expected[0]


def test_a16_another_bit_generator_of_numpy() -> None:
    numpy_random: Any = np.random  # NumPy's stubs lack these two
    before = numpy_random.get_bit_generator()
    try:
        numpy_random.set_bit_generator(np.random.Philox(7))
        np.random.rand(3)
        state = trip(capture())
        expected = np.random.rand(3).tolist()
        restore(state)
        assert np.random.rand(3).tolist() == expected
    finally:
        numpy_random.set_bit_generator(before)


@pytest.mark.parametrize("broken", [{}, {"python": 3}, {"python": (3, (), None)}])
def test_what_is_no_state_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(Incompatible, match="not a state of the random number generators"):
        restore(broken)
    with pytest.raises(Incompatible):
        restore(capture() | {"torch": b"short"})
