"""Pickle stays shut unless a caller opens it by name."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from moonclip.state.flattening import FlatValue, flatten, unflatten
from moonclip.state.policy import Policy
from moonclip.state.values import from_plain, to_plain
from store.errors import Corrupt, Incompatible, Unsafe
from store.format.values import Tagged
from tests.state_trip import trip


class Settings:
    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and other.rate == self.rate

    __hash__ = None  # type: ignore[assignment]


class Attack:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


SETTINGS = f"{Settings.__module__}.Settings"


def attack(path: Path, claims: str) -> Tagged:
    return Tagged("pickle", (claims, pickle.dumps(Attack(path))))


def test_an_unknown_object_is_refused_and_the_way_out_is_named() -> None:
    with pytest.raises(Incompatible, match=rf"config: 'args/0': .*allow=\['{SETTINGS}'\]"):
        flatten({"args": [Settings(0.1)]}, item="config")


def test_a_listed_class_is_pickled_and_read_back() -> None:
    listed = Policy(classes=(SETTINGS,))
    assert trip({"args": [Settings(0.1)], "w": torch.ones(1)}, listed)["args"] == [Settings(0.1)]
    with pytest.raises(
        Unsafe, match=rf"value: '0': this is a pickle of {SETTINGS}.*allow=\['{SETTINGS}'\].*allow_pickle=True"
    ):
        from_plain(to_plain([Settings(0.1)], listed))


def test_allow_pickle_covers_all_classes() -> None:
    assert trip(Settings(0.2), Policy(allow_pickle=True)) == Settings(0.2)


def test_a17_a_stored_pickle_runs_nothing(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb"
    entries = {"": FlatValue(0, {"args": [attack(bomb, SETTINGS)]})}
    with pytest.raises(Unsafe, match=r"model: 'args/0': this is a pickle"):
        unflatten(entries, item="model")
    assert not bomb.exists()


def test_a17_a_listed_class_opens_the_door_for_itself_only(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb"
    with pytest.raises(Unsafe, match=r"the pickle asks for posix\.mkdir"):
        from_plain(attack(bomb, SETTINGS), Policy(classes=(SETTINGS,)))
    assert not bomb.exists()
    from_plain(attack(bomb, SETTINGS), Policy(allow_pickle=True))
    assert bomb.exists()


def test_a17_a_pickle_as_a_key_runs_nothing(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb"
    with pytest.raises(Unsafe):
        from_plain({attack(bomb, SETTINGS): 1})
    assert not bomb.exists()


def test_a_broken_pickle_is_an_error_of_ours() -> None:
    listed = Policy(classes=(SETTINGS,))
    with pytest.raises(Incompatible, match="cannot be read"):
        from_plain(Tagged("pickle", (SETTINGS, b"\x80\x05.")), listed)
    with pytest.raises(Corrupt, match="malformed pickle"):
        from_plain(Tagged("pickle", SETTINGS), listed)
    with pytest.raises(Incompatible, match="cannot be pickled"):
        to_plain(lambda: 0, Policy(allow_pickle=True))
