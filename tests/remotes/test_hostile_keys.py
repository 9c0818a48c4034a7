"""F10: keys, listings and small files of a remote that somebody made up."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from store.errors import Corrupt, Incompatible
from store.format.objects import Commit, TreeNode
from store.format.pack import HEADER_BYTES
from store.ids import CommitId, TreeId
from store.limits import MAX_REMOTE_REF_BYTES, MAX_REMOTE_REFS
from store.naming.refnames import remote_name
from store.remotes.condemned import decode_condemned
from store.remotes.fetching.fetch import fetch
from store.remotes.listing import listed_refs
from store.remotes.pushing.push import push
from store.remotes.remote import open_remote
from store.remotes.storages.storage import Stat
from store.upkeep.absences import Why
from tests.remotes.hostile import SHARED, chunk, commit_object, content, fetched, tensor, tree, tried, watched
from tests.remotes.sharing import line
from tools.fuzz.forging import packs_in
from tools.fuzz.keys import Keys

CHUNK = chunk(bytes(range(256)) * 4)
LEAF = tree(TreeNode(entries=(("a", tensor(1024, CHUNK.header.id)),)))
FIRST = commit_object(Commit({"model": TreeId(LEAF.header.id)}, branch="main"))
SECOND = commit_object(Commit({"model": TreeId(LEAF.header.id)}, (CommitId(FIRST.header.id),), step=1, branch="main"))
OBJECTS = [CHUNK, LEAF, FIRST, SECOND]


class Endless(Keys):
    """Lists keys without end."""

    def __init__(self, key: str) -> None:
        super().__init__({"format": SHARED})
        self.given_count = 0
        self._key = key

    def list(self, prefix: str) -> Iterator[Stat]:
        for number in count():
            self.given_count += 1
            yield Stat(self._key.format(number=number), -7, "1", -(10**30))


def test_f10_names_of_keys_lead_nowhere(tmp_path: Path) -> None:
    tip = f"{FIRST.header.id.hex()}\n".encode()
    names = ("../../x", "/etc/passwd", "a\nb", "a\0b", "x/../../y", "HEAD", "@", "-x", ".lock", "a.lock", "~")
    keys = content(OBJECTS, {"branches/main": FIRST.header.id})
    for name in names:
        keys |= {f"{place}{name}": tip for place in ("refs/branches/", "refs/tags/", "packs/", "absent/", "", "../")}
        keys[f"refs/by/{'1' * 32}/branches/{name}"] = tip
        keys[f"refs/by/../../branches/{name}"] = tip
        keys[f"packs/{name}.idx"] = keys[f"packs/{name}.pack"] = b"x"
    with watched(tmp_path) as repo:
        assert tried(repo, keys) == ""
        assert repo.refs.list() == {remote_name("origin", "main"): FIRST.header.id}


def test_refs_that_would_collide_on_disk_are_told_and_the_others_come(tmp_path: Path) -> None:
    names = ("exp", "exp~lr3", "Exp", "EXP", "a" * 190, "a" * 200)
    refs = {f"branches/{name}": FIRST.header.id for name in names}
    with watched(tmp_path) as repo:
        done = fetched(repo, content(OBJECTS, refs))
        whys = {change.name.removeprefix("remotes/origin/"): change.why for change in done.changes}
        assert sorted((whys.pop("exp"), whys.pop("exp/lr3"))) == ["new", "rejected"]
        assert whys == dict.fromkeys(("Exp", "EXP", "a" * 190), "new")


def test_many_refs_come(tmp_path: Path) -> None:
    keys = content(OBJECTS, {f"branches/r{number}": FIRST.header.id for number in range(400)})
    with watched(tmp_path) as repo:
        assert len(fetched(repo, keys).changes) == 400


@pytest.mark.parametrize("text", [b"", b"x", b"7" * 64, b"7" * 65 + b"\n", b"\0" * 65, b"7" * MAX_REMOTE_REF_BYTES * 2])
def test_f10_a_ref_that_is_none_is_named(tmp_path: Path, text: bytes) -> None:
    keys = content(OBJECTS, {"branches/main": FIRST.header.id})
    keys["refs/branches/main"] = text
    with watched(tmp_path) as repo:
        assert "refs/branches/main" in tried(repo, keys)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b"[" * 60_000, b'{"needs": 7}', b'{"needs": [[]], "refs": "shared"}', b"9" * 60_000]
)
def test_f10_a_format_that_is_none_is_refused(tmp_path: Path, text: bytes) -> None:
    with watched(tmp_path) as repo, pytest.raises(Corrupt, match="format"):
        fetched(repo, content(OBJECTS, {"branches/main": FIRST.header.id}, format=text))


def test_f10_a_format_that_needs_more_is_refused_by_name(tmp_path: Path) -> None:
    text = b'{"needs": ["moonclip-remote-1", "../x"], "refs": "shared"}'
    with watched(tmp_path) as repo, pytest.raises(Incompatible, match=r"'\.\./x'"):
        fetched(repo, content(OBJECTS, {"branches/main": FIRST.header.id}, format=text))


@pytest.mark.parametrize("key", ["refs/branches/r{number}", "refs/../../x{number}"])
def test_f10_a_listing_of_refs_without_end_is_given_up(tmp_path: Path, key: str) -> None:
    storage = Endless(key)
    with watched(tmp_path) as repo, open_remote(repo, "origin", storage) as remote:
        with pytest.raises(Corrupt, match="lists more than"):
            fetch(repo, remote)
        assert storage.given_count <= MAX_REMOTE_REFS + 1
    with pytest.raises(Corrupt, match="lists more than"):
        list(listed_refs(Endless("refs/../../x{number}")))


def test_a_ref_that_was_moved_back_is_told(tmp_path: Path) -> None:
    with watched(tmp_path) as repo:
        fetched(repo, content(OBJECTS, {"branches/main": SECOND.header.id}))
        (change,) = fetched(repo, content(OBJECTS, {"branches/main": FIRST.header.id})).changes
        assert (change.why, change.old, change.new) == ("forced", SECOND.header.id, FIRST.header.id)


def test_a_tag_that_was_moved_is_not_followed(tmp_path: Path) -> None:
    with watched(tmp_path) as repo:
        fetched(repo, content(OBJECTS, {"tags/best": SECOND.header.id}))
        (change,) = fetched(repo, content(OBJECTS, {"tags/best": FIRST.header.id})).changes
        assert change.why == "rejected"


def test_packs_that_change_places_are_not_taken_for_each_other(tmp_path: Path) -> None:
    keys = content([CHUNK, LEAF], {})
    (first,) = packs_in(keys)
    keys |= content([FIRST], {"branches/main": FIRST.header.id})
    (second,) = set(packs_in(keys)) - {first}
    honest = dict(keys)
    with watched(tmp_path) as repo:
        keys[first.idx_key], keys[second.idx_key] = keys[second.idx_key], keys[first.idx_key]
        assert tried(repo, keys)
        keys = dict(honest)
        keys[first.pack_key], keys[second.pack_key] = keys[second.pack_key], keys[first.pack_key]
        assert tried(repo, keys)
        assert repo.refs.list() == {}
        assert tried(repo, honest) == ""


def test_records_of_a_remote_permit_no_commit_without_history(tmp_path: Path) -> None:
    """A hole where a record is; but never a tip that lacks everything by one record, and never a commit."""
    permits = f"{FIRST.header.id.hex()} * pruned 1 origin\n{SECOND.header.id.hex()} * shallow 1\n".encode()
    keys = content([FIRST, SECOND], {"branches/main": SECOND.header.id}) | {f"absent/{'1' * 32}": permits}
    with watched(tmp_path) as repo:
        assert tried(repo, keys) == ""
        (record,) = repo.absences.records(CommitId(SECOND.header.id))
        assert (record.item, record.why) == ("model", Why.SHALLOW)
        assert repo.absences.lacks(CommitId(FIRST.header.id), "model")
    keys = content([SECOND], {"branches/main": SECOND.header.id}) | {f"absent/{'1' * 32}": permits}
    with watched(tmp_path / "again") as repo:
        assert "is nowhere on" in tried(repo, keys)


def test_f10_a_list_that_condemns_everything_makes_a_push_send_everything_again(tmp_path: Path) -> None:
    with watched(tmp_path) as repo:
        line(repo, range(2))
        keys: dict[str, bytes] = {}
        with open_remote(repo, "origin", Keys(keys)) as remote:
            push(repo, remote, every=True).require_all()
        names = ", ".join(f'"{name.text}": 1' for name in packs_in(keys))
        keys["gc/condemned"] = f'{{"packs": {{{names}}}}}'.encode()
        before = set(packs_in(keys))
        line(repo, [5])
        with open_remote(repo, "origin", Keys(keys)) as remote:
            push(repo, remote, every=True).require_all()
        kept = {key: data for key, data in keys.items() if not any(name.text in key for name in before)}
        kept["gc/condemned"] = b'{"packs": {}}'
        assert tried(repo, kept) == ""


@pytest.mark.parametrize(
    "text",
    [b"{", b"[]", b'{"packs": {"../x": 1}}', b'{"packs": {"a": [[[[]]]]}}', b'{"packs": ' + b"[" * 100_000],
)
def test_f10_a_list_of_condemned_packs_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(Corrupt, match="gc/condemned"):
        decode_condemned(text, "1")


def test_f10_an_idx_of_four_billion_objects_is_refused_unread(tmp_path: Path) -> None:
    keys = content(OBJECTS, {"branches/main": FIRST.header.id})
    (name,) = packs_in(keys)
    honest = keys[name.idx_key]
    with watched(tmp_path) as repo:
        for number in (0, 1 << 32, (1 << 32) - 1):
            keys[name.idx_key] = honest[:12] + (number & 0xFFFFFFFF).to_bytes(4, "little") + honest[16:]
            assert "is nowhere on" in tried(repo, keys)
        keys[name.idx_key] = honest[:HEADER_BYTES]
        assert "is nowhere on" in tried(repo, keys)
