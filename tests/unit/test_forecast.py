"""What models would take: one that cannot be read leaves nothing behind."""

import os
from collections.abc import Callable, Iterator

import pytest

from moonclip.families.forecast import Forecaster
from store.format.values import Plain
from store.parallel import Threads
from store.saving.inputs import ItemInput, MadeInput, MadeValueInput

DATA = memoryview(os.urandom(100_000))


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads(2)
    yield made
    made.close()


def items(make_value: Callable[[], Plain]) -> list[ItemInput]:
    weights = MadeInput(0, "uint8", (len(DATA),), lambda start, stop: DATA[start:stop])
    return [ItemInput("model", {"w": weights}), ItemInput("files", {"f": MadeValueInput(0, make_value)})]


def test_what_is_left_out_was_not_seen(threads: Threads) -> None:
    """Else the next of the same content would seem to take nothing."""

    def fail() -> Plain:
        raise OSError("gone")

    forecaster = Forecaster(None, threads)
    with pytest.raises(OSError, match="gone"):
        forecaster.add("a", items(fail))
    told = forecaster.add("b", items(lambda: b"recipe"))
    assert told.base is None
    assert (told.bytes.raw_bytes >= len(DATA), told.bytes.shared_bytes) == (True, 0)
    assert forecaster.add("c", items(lambda: b"recipe")).bytes.shared_bytes == len(DATA)
