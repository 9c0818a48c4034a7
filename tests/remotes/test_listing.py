"""Refs of a remote, read without a store."""

from pathlib import Path

import pytest

from store.errors import Corrupt
from store.ids import CommitId, ObjectId
from store.naming.refnames import branch_name, tag_name
from store.remotes.listing import listed_refs
from store.remotes.names import RefKey
from store.remotes.storages.directory import DirectoryStorage

COMMIT = CommitId(ObjectId(bytes(range(32))))
STORE = "ab" * 16


def put(root: Path, key: str, text: str) -> None:
    DirectoryStorage(root).put(key, text.encode())


def test_refs_of_all_stores_but_for_deleted_ones(tmp_path: Path) -> None:
    main, best = RefKey(None, branch_name("exp/lr3")), RefKey(STORE, tag_name("best"))
    for key in (main, best):
        put(tmp_path, key.key, f"{COMMIT.hex()}\n")
    put(tmp_path, RefKey(None, branch_name("gone")).key, f"{'0' * 64}\n")
    assert dict(listed_refs(DirectoryStorage(tmp_path))) == {main: COMMIT, best: COMMIT}


def test_f10_keys_that_are_none_of_ours_are_passed_over(tmp_path: Path) -> None:
    for key in ("refs/notes/x", "refs/branches/a..b", f"refs/by/{STORE}/notes/x", "packs/x"):
        put(tmp_path, key, "x")
    assert list(listed_refs(DirectoryStorage(tmp_path))) == []


@pytest.mark.parametrize("text", ["", "x\n", COMMIT.hex(), f"{COMMIT.hex()}\n\n", "0" * 100_000])
def test_damage_is_named(tmp_path: Path, text: str) -> None:
    put(tmp_path, "refs/branches/main", text)
    with pytest.raises(Corrupt, match="refs/branches/main"):
        list(listed_refs(DirectoryStorage(tmp_path)))
