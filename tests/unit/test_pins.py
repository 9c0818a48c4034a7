"""Pins: commits that stay whatever policies say."""

from pathlib import Path

import pytest

from store.disk.files import Files
from store.errors import Corrupt
from store.ids import CommitId, ObjectId
from store.upkeep.pins import Pin, Pins

FIRST, SECOND = (CommitId(ObjectId(bytes([number]) * 32)) for number in (1, 2))


def pins(root: Path) -> Pins:
    return Pins(root, Files())


def test_pins_are_kept_in_order_with_any_message(tmp_path: Path) -> None:
    assert pins(tmp_path).all() == {}
    messages = ['two\nlines, "quoted" \ud800', ""]
    expected = {commit: Pin(commit, 5, message) for commit, message in zip((SECOND, FIRST), messages, strict=True)}
    for pin in expected.values():
        pins(tmp_path).put(pin)
    assert pins(tmp_path).all() == expected
    assert list(pins(tmp_path).all()) == [SECOND, FIRST]


def test_a_commit_is_pinned_once(tmp_path: Path) -> None:
    pins(tmp_path).put(Pin(FIRST, 1, "old"))
    pins(tmp_path).put(Pin(FIRST, 2, "new"))
    assert pins(tmp_path).all() == {FIRST: Pin(FIRST, 2, "new")}


def test_unpinning(tmp_path: Path) -> None:
    pins(tmp_path).put(Pin(FIRST, 1))
    assert not pins(tmp_path).remove(SECOND)
    assert pins(tmp_path).remove(FIRST)
    assert not pins(tmp_path).remove(FIRST)
    assert pins(tmp_path).all() == {}


@pytest.mark.parametrize("damage", [b"", b"x", b'zz 1 ""\n', b"\n", FIRST.hex().encode() + b" 1 [1]\n"])
def test_damage_is_told_since_nobody_knows_what_it_protected(tmp_path: Path, damage: bytes) -> None:
    pins(tmp_path).put(Pin(FIRST, 1))
    path = tmp_path / "pins"
    path.write_bytes(path.read_bytes() + damage if damage else path.read_bytes()[:-3])
    for act in (pins(tmp_path).all, lambda: pins(tmp_path).remove(FIRST), lambda: pins(tmp_path).put(Pin(SECOND, 1))):
        with pytest.raises(Corrupt, match="is damaged"):
            act()
