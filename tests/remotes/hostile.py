"""What somebody makes up who wants to harm whoever fetches: objects whose hashes fit, and remotes of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from store.codec import Transform
from store.errors import MoonclipError
from store.format import whole
from store.format.dtypes import Element
from store.format.entries import Piece, TensorEntry
from store.format.objects import Commit, Kind, TreeNode
from store.format.pack import ObjectHeader
from store.ids import ChunkId, CommitId, ObjectId, TreeId, chunk_id, commit_id, tree_id
from store.remotes.fetching.fetch import Fetched, fetch
from store.remotes.remote import open_remote
from store.repository import Repository
from tests.descriptors import left_open
from tests.remotes.sharing import line, pushed, require_equal, require_sound
from tools.fuzz.forging import Stored, put_pack
from tools.fuzz.keys import Keys

SHARED = b'{"needs": ["moonclip-remote-1"], "refs": "shared"}'


def chunk(raw: bytes) -> Stored:
    """A chunk, stored raw."""
    return Stored(ObjectHeader(Kind.CHUNK, Transform.RAW, False, Element.INT8, len(raw), chunk_id(raw)), raw)


def tree(made: TreeNode | bytes) -> Stored:
    """A tree object; any bytes can be one."""
    encoded = made if isinstance(made, bytes) else made.encode()
    return blob(Kind.TREE, encoded, tree_id(encoded))


def commit_object(made: Commit | bytes) -> Stored:
    """A commit; any bytes can be one."""
    encoded = made if isinstance(made, bytes) else made.encode()
    return blob(Kind.COMMIT, encoded, commit_id(encoded))


def blob(kind: Kind, encoded: bytes, object_id: ObjectId) -> Stored:
    frame = whole.compress(encoded)
    if len(frame) < len(encoded):
        return Stored(ObjectHeader(kind, Transform.ZSTD, False, Element.INT8, len(encoded), object_id), frame)
    return Stored(ObjectHeader(kind, Transform.RAW, False, Element.INT8, len(encoded), object_id), encoded)


def tensor(size_bytes: int, *chunks: ObjectId, cuts: tuple[int, ...] = ()) -> TensorEntry:
    """A tensor that says that it is made of these chunks."""
    ids = tuple(ChunkId(each) for each in chunks)
    return TensorEntry(0, "uint8", (size_bytes,), (Piece((0,), (size_bytes,), cuts or (size_bytes,), ids),))


def content(objects: Sequence[Stored], refs: dict[str, ObjectId], **others: bytes) -> dict[str, bytes]:
    """A remote of one pack."""
    keys = {"format": SHARED, **others}
    put_pack(keys, objects)
    return keys | {f"refs/{name}": f"{tip.hex()}\n".encode() for name, tip in refs.items()}


def remote_of(root: Stored, *others: Stored) -> dict[str, bytes]:
    """A remote whose main has one commit, with one item."""
    made = commit_object(Commit({"model": TreeId(root.header.id)}, branch="main"))
    return content([*others, root, made], {"branches/main": made.header.id})


def fetched(repo: Repository, keys: dict[str, bytes]) -> Fetched:
    with open_remote(repo, "origin", Keys(keys)) as remote:
        return fetch(repo, remote)


def tried(repo: Repository, keys: dict[str, bytes]) -> str:
    """Fetch; says in words why not, which has to be one of our errors."""
    try:
        done = fetched(repo, keys)
    except MoonclipError as error:
        return str(error)
    return "; ".join(done.damaged.values())


@contextmanager
def watched(root: Path) -> Iterator[Repository]:
    """A store among files that stay as they are; afterwards it is sound, and all is well with a remote that is."""
    outside = root / "outside"
    outside.mkdir(parents=True)
    (outside / "x").write_bytes(b"as it was")
    with Repository.init(root / "outside" / "store", thread_count=2) as repo:
        before = _files(outside)
        with left_open(4):  # the packs that it read, and the index
            yield repo
        assert _files(outside) == before, "something was written outside of the store"
        require_sound(repo)
        _require_good_fetch(root, repo)


def _files(outside: Path) -> dict[str, bytes]:
    found = (path for path in outside.rglob("*") if "store" not in path.relative_to(outside).parts[:1])
    return {str(path): path.read_bytes() for path in found if path.is_file()}


def _require_good_fetch(root: Path, repo: Repository) -> None:
    keys: dict[str, bytes] = {}
    with Repository.init(root / "good", thread_count=2) as good:
        made = line(good, range(2))
        pushed(good, Keys(keys))
        with open_remote(repo, "good", Keys(keys)) as remote:
            assert fetch(repo, remote).damaged == {}
        require_equal(good, repo, made)


def nobody() -> CommitId:
    """The id of a commit that nobody has."""
    return CommitId(ObjectId(b"\x07" * 32))
