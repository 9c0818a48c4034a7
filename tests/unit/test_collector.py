"""No collections while a state is taken in, and what people had set stays set."""

import gc
from contextlib import closing
from pathlib import Path

import pytest

from store.upkeep.collector import collector_paused
from tests.indexing import make


def test_nothing_is_collected_meanwhile_and_again_afterwards() -> None:
    with pytest.raises(RuntimeError), collector_paused():
        assert not gc.isenabled()
        raise RuntimeError
    assert gc.isenabled()


def test_where_collections_are_off_they_stay_off() -> None:
    gc.disable()
    try:
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_transaction_of_the_index_is_not_held_up_by_it(tmp_path: Path) -> None:
    with closing(make(tmp_path)) as index:
        assert not index.write(lambda _: gc.isenabled())
    assert gc.isenabled()
