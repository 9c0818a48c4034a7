"""Keys of a remote: each of ours is read back as it was written, all others are passed over."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.ids import PackId
from store.limits import MAX_KEY_BYTES, MAX_REF_NAME_BYTES
from store.naming.refnames import BRANCHES, TAGS, RefName, branch_name, is_full_name
from store.remotes.names import RefKey, absent_key, pack_name, parse_absent, parse_pack, parse_ref

STORE = "0123456789abcdef" * 2
PACK = PackId(bytes(range(32)))


@pytest.mark.parametrize("nonce", [b"", b"\0\1\2\3"])
def test_keys_of_a_pack_are_read_back(nonce: bytes) -> None:
    name = pack_name(PACK, nonce)
    assert parse_pack(name.pack_key) == (name, False)
    assert parse_pack(name.idx_key) == (name, True)
    assert name.id == PACK


@given(st.sampled_from([BRANCHES, TAGS]), st.text(min_size=1, max_size=30), st.sampled_from([None, STORE]))
def test_keys_of_refs_are_read_back(kind: str, short: str, store: str | None) -> None:
    if is_full_name(f"{kind}/{short}"):
        ref = RefKey(store, RefName(f"{kind}/{short}"))
        assert parse_ref(ref.key) == ref


def test_no_ref_is_a_directory_of_another() -> None:
    one, below = RefKey(None, branch_name("exp")).key, RefKey(None, branch_name("exp/lr3")).key
    assert not below.startswith(f"{one}/")


def test_the_longest_name_fits_a_key() -> None:
    longest = RefKey(STORE, branch_name("x" * MAX_REF_NAME_BYTES))
    assert len(longest.key.encode()) < MAX_KEY_BYTES / 2


def test_absence_records_of_a_store_are_found() -> None:
    assert parse_absent(absent_key(STORE)) == STORE


@pytest.mark.parametrize(
    "key",
    [
        "packs/../../x.pack",
        f"packs/{PACK.hex()}",
        f"packs/{PACK.hex()}.pack\n",
        f"packs/{PACK.hex().upper()}.pack",
        f"packs/{PACK.hex()}-{'0' * 7}.pack",
        f"packs/a/{PACK.hex()}.idx",
        "refs/branches/../../x",
        "refs/branches/..~x",
        "refs/branches/main.lock",
        "refs/branches/a/b",
        "refs/heads/main",
        "refs/by/short/branches/main",
        f"refs/by/{STORE}/remotes/main",
        f"refs/branches/{'x' * 300}",
        "absent/../x",
        f"absent/{STORE}/x",
        "",
    ],
)
def test_f10_foreign_and_hostile_keys_are_none_of_ours(key: str) -> None:
    assert parse_pack(key) is None
    assert parse_ref(key) is None
    assert parse_absent(key) is None
