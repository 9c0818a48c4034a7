"""No collections while a state is taken in, and what people had set stays set."""

import gc

import pytest

from moonclip.collector import collector_paused


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
