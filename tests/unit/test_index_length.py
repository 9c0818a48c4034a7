"""The index's file is as long as its meta pages say, so that nobody takes it for one that was cut off."""

import os
import random
from pathlib import Path

import pytest

from store.index.environment import Environment
from store.index.metapages import HEAD_BYTES, meta_pages
from store.index.sharing import close_environment, open_environment
from store.index.transaction import OBJECTS, Transaction

MIB = 1 << 20


def lacking_bytes(path: Path) -> int:
    data = path / "data.mdb"
    metas = meta_pages(data.read_bytes()[:HEAD_BYTES])
    assert metas is not None
    return max(metas, key=lambda meta: meta.transaction).needed_bytes - data.stat().st_size


def change(environment: Environment, draw: random.Random, there: set[int]) -> None:
    """Put or delete many keys in one transaction."""
    count = draw.choice([10, 1000, 8000, 30000])
    is_removal = bool(there) and draw.random() < 0.5
    keys = draw.sample(sorted(there), min(len(there), count)) if is_removal else draw.sample(range(10**9), count)

    def body(transaction: Transaction) -> None:
        for key in keys:
            encoded = b"%016d" % key
            transaction.delete(OBJECTS, encoded) if is_removal else transaction.put(OBJECTS, encoded, bytes(60))

    environment.write(body)
    there ^= set(keys)


def test_pages_that_a_transaction_takes_and_gives_back_are_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB leaves them out, at the file's end."""
    left_out = 0
    for seed in (2, 13, 18, 19, 29):
        path = tmp_path / str(seed)
        path.mkdir()
        environment = open_environment(path, map_bytes=256 * MIB)
        draw, there = random.Random(seed), set[int]()
        lengthen = environment._lengthen

        def counted(path: Path = path, lengthen: object = lengthen) -> None:
            nonlocal left_out
            left_out += lacking_bytes(path) > 0
            lengthen()  # type: ignore[operator]

        monkeypatch.setattr(environment, "_lengthen", counted)
        for _ in range(8):
            change(environment, draw, there)
            assert lacking_bytes(path) <= 0
        close_environment(environment)
        close_environment(open_environment(path, map_bytes=256 * MIB))
    assert left_out, "LMDB left nothing out: other numbers are needed to see that it does"


def test_one_that_is_short_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer may be about to lengthen it."""
    environment = open_environment(tmp_path, map_bytes=MIB)
    environment.write(lambda transaction: transaction.put(OBJECTS, b"k", b"v"))
    close_environment(environment)
    data = tmp_path / "data.mdb"
    whole_bytes = data.stat().st_size
    os.truncate(data, whole_bytes - 1)
    monkeypatch.setattr("store.index.environment.time.sleep", lambda _: os.truncate(data, whole_bytes))
    close_environment(open_environment(tmp_path, map_bytes=MIB))
