"""F10: views that somebody made up: of words that a base does not have, or of words that it does not hold."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from store.codec import Transform
from store.codec.views import View, encode_view, seen
from store.errors import Incompatible
from store.format.dtypes import Element
from store.format.objects import Commit, Kind, TreeNode
from store.format.pack import ENTRY_BYTES, FOOTER_BYTES, ObjectHeader, encode_footer, footer_of
from store.ids import ChunkId, ObjectId, TreeId, chunk_id, pack_id
from store.layout import VIEWS
from store.remotes.checking.gc import remote_gc
from store.remotes.names import PackName
from store.remotes.remote import open_remote
from store.repository import Repository
from tests.remotes.hostile import chunk, commit_object, content, remote_of, tensor, tree, tried, watched
from tests.remotes.sharing import require_sound
from tools.fuzz.forging import Stored, packs_in, put_pack
from tools.fuzz.keys import Keys

BASE = bytes(range(256)) * 64
VIEW = View(Element.FP32, 1000)
RAW = bytes(seen(memoryview(BASE), VIEW, Element.BF16, 4096))
CONSTANT_PLANES = (1 << 3).to_bytes(4, "little") * 2 + b"\0\0"


def viewed(view: bytes, raw: bytes = RAW, base: ObjectId | None = None) -> Stored:
    """A chunk that says it is just what the view shows."""
    ids = chunk_id(raw), base or chunk_id(BASE)
    header = ObjectHeader(Kind.CHUNK, Transform.XOR, False, Element.BF16, len(raw), *ids, viewed=True)
    return Stored(header, view + CONSTANT_PLANES)


def root_of(*raws: bytes) -> Stored:
    entries = tuple((f"w{number}", tensor(len(raw), chunk_id(raw))) for number, raw in enumerate(raws))
    return tree(TreeNode(entries=entries))


HONEST = viewed(encode_view(VIEW))


@pytest.mark.parametrize("order", [1, -1], ids=["base first", "base last"])
def test_a_view_comes_over_with_a_base_of_another_length(tmp_path: Path, order: int) -> None:
    with watched(tmp_path) as repo:
        assert tried(repo, remote_of(root_of(BASE, RAW), *[chunk(BASE), HONEST][::order])) == ""
        assert bytes(repo.reader.chunk(ChunkId(HONEST.header.id))) == RAW
        assert VIEWS in repo.layout.format.read_text()


@pytest.mark.parametrize("length", [len(RAW), len(BASE)], ids=["as long as the chunk", "longer"])
def test_a_view_comes_over_to_a_base_that_is_here(tmp_path: Path, length: int) -> None:
    base, view = BASE[:length], View(Element.FP16, 0)
    raw = bytes(seen(memoryview(base), view, Element.BF16, 4096))
    first = commit_object(Commit({"model": TreeId(root_of(base).header.id)}, branch="main"))
    then = commit_object(Commit({"model": TreeId(root_of(base, raw).header.id)}, branch="next"))
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        assert tried(repo, content([chunk(base), root_of(base), first], {"branches/main": first.header.id})) == ""
        above = viewed(encode_view(view), raw, chunk_id(base))
        keys = content([root_of(base, raw), above, then], {"branches/next": then.header.id})
        assert tried(repo, keys) == ""
        assert bytes(repo.reader.chunk(ChunkId(above.header.id))) == raw
        require_sound(repo)


LIES = {
    "a window that the base does not have": viewed(encode_view(View(Element.FP32, 3000))),
    "a window far behind": viewed(encode_view(View(Element.FP32, 2**32 - 1))),
    "another window": viewed(encode_view(View(Element.FP32, 999))),
    "words of another kind": viewed(encode_view(View(Element.BF16, 1000))),
    "words that cannot be cast": viewed(encode_view(View(Element.INT32, 1000))),
    "words nobody knows": viewed(b"\x63" + encode_view(VIEW)[1:]),
    "what must be zero is not": viewed(encode_view(VIEW)[:3] + b"\1" + encode_view(VIEW)[4:]),
    "no view": Stored(HONEST.header, CONSTANT_PLANES),
    "a view that is not said to be there": Stored(HONEST.header._replace(viewed=False), HONEST.payload),
    "a view of what nobody has": Stored(HONEST.header._replace(base=ObjectId(b"\7" * 32)), HONEST.payload),
}


@pytest.mark.parametrize("lie", LIES)
def test_f10_a_view_that_lies_is_not_taken(tmp_path: Path, lie: str) -> None:
    with watched(tmp_path) as repo:
        assert tried(repo, remote_of(root_of(BASE, RAW), chunk(BASE), LIES[lie]))
        assert repo.refs.list() == {}


def newer(objects: Sequence[Stored]) -> dict[str, bytes]:
    """A pack of these objects, of which the first has a flag that nobody knows yet."""
    keys: dict[str, bytes] = {}
    put_pack(keys, objects)
    (name,) = packs_in(keys)
    idx, pack = keys[name.idx_key], keys[name.pack_key]
    end = len(pack) - FOOTER_BYTES - ENTRY_BYTES * len(objects)
    table = bytearray(pack[end:-FOOTER_BYTES])
    table[3] |= 0x40
    new = PackName(pack_id(table).hex(), pack_id(table))
    head, commits = idx[:16], idx[16 + len(table) :]
    return {
        new.idx_key: head + table + commits,
        new.pack_key: pack[:end] + table + encode_footer(footer_of(bytes(table), end)),
    }


@pytest.mark.parametrize("count", [1, 3], ids=["a chunk", "all of it"])
def test_a_pack_of_a_newer_version_is_told_of_where_it_is_missed_and_kept(tmp_path: Path, count: int) -> None:
    root = root_of(BASE)
    made = commit_object(Commit({"model": TreeId(root.header.id)}, branch="main"))
    objects = [chunk(BASE), root, made]
    keys = newer(objects[:count]) | content([chunk(RAW), *objects[count:]], {"branches/main": made.header.id})
    with watched(tmp_path) as repo:
        assert "unknown flags 0x40; a newer version wrote it" in tried(repo, keys)
        with open_remote(repo, "origin", Keys(keys)) as remote, pytest.raises(Incompatible, match="newer version"):
            remote_gc(repo, remote, dry_run=True)
