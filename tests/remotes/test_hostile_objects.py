"""F10: objects that somebody made up, whose hashes fit. Nothing refers to them, and the store stays sound."""

from pathlib import Path

import pytest

from store.codec import Transform
from store.format import values
from store.format.dtypes import Element
from store.format.entries import ContainerEntry, ValueEntry
from store.format.objects import Commit, Kind, SubTree, TreeNode
from store.format.pack import ObjectHeader
from store.format.values import Tagged
from store.ids import CommitId, ObjectId, TreeId, chunk_id
from store.naming.refnames import branch_name, remote_name
from tests.remotes.hostile import (
    blob,
    chunk,
    commit_object,
    content,
    fetched,
    nobody,
    remote_of,
    tensor,
    tree,
    tried,
    watched,
)
from tools.fuzz.forging import Stored

RAW = bytes(range(256)) * 4
CHUNK = chunk(RAW)
LEAF = tree(TreeNode(entries=(("a", tensor(1024, CHUNK.header.id)),)))
ROOT = tree(TreeNode(subtrees=(SubTree("a", 1, TreeId(LEAF.header.id)),)))
MAIN = branch_name("main")


def above(name: str, count: int, below: Stored) -> Stored:
    return tree(TreeNode(subtrees=(SubTree(name, count, TreeId(below.header.id)),)))


def one(entry: object) -> Stored:
    return tree(TreeNode(entries=(("a", entry),)))  # type: ignore[arg-type]


LIES = {
    "no tree": (tree(b"\xff" * 100),),
    "a tree cut off": (tree(LEAF.payload[:20]),),
    "a chunk that is a tree": (one(tensor(1024, LEAF.header.id)), LEAF),
    "a chunk of another length": (one(tensor(512, CHUNK.header.id)),),
    "a chunk that is two": (one(tensor(1024, CHUNK.header.id, CHUNK.header.id, cuts=(512, 512))),),
    "a chunk nobody has": (one(tensor(1024, nobody())),),
    "two lengths of one chunk": (
        tree(TreeNode(entries=(("a", tensor(1024, CHUNK.header.id)), ("b", tensor(512, CHUNK.header.id))))),
    ),
    "a sub-tree of another name": (above("b", 1, LEAF), LEAF),
    "a sub-tree of more names": (above("a", 7, LEAF), LEAF),
    "a sub-tree of sub-trees": (above("a", 1, ROOT), ROOT, LEAF),
    "a sub-tree that is a chunk": (above("a", 1, CHUNK),),
    "a value that is none": (one(ValueEntry(0, inline=b"\xff\xff")),),
    "text that is text": (one(ValueEntry(0, inline=b"\x82\x64text\x64dict")),),
}


@pytest.mark.parametrize("lie", LIES)
def test_f10_what_trees_say_is_checked_before_anything_refers_to_them(tmp_path: Path, lie: str) -> None:
    root, *others = LIES[lie]
    with watched(tmp_path) as repo:
        assert tried(repo, remote_of(root, CHUNK, *others))
        assert repo.refs.list() == {}


def test_f10_a_lie_keeps_back_its_own_branch_only(tmp_path: Path) -> None:
    """Both trees name the same chunk, and one of them says that it is shorter."""
    honest = commit_object(Commit({"model": TreeId(LEAF.header.id)}, branch="main"))
    false = one(tensor(512, CHUNK.header.id))
    lying = commit_object(Commit({"model": TreeId(false.header.id)}, branch="exp"))
    refs = {"branches/main": honest.header.id, "branches/exp": lying.header.id}
    with watched(tmp_path) as repo:
        done = fetched(repo, content([CHUNK, LEAF, false, honest, lying], refs))
        assert list(done.damaged) == [branch_name("exp")]
        assert "is not the chunk it should be" in done.damaged[branch_name("exp")]
        assert repo.refs.list() == {remote_name("origin", "main"): honest.header.id}


def test_f10_a_lie_about_what_is_here_already_is_found_too(tmp_path: Path) -> None:
    honest = commit_object(Commit({"model": TreeId(ROOT.header.id)}, branch="main"))
    false = above("a", 2, LEAF)
    parents = (CommitId(honest.header.id),)
    lying = commit_object(Commit({"model": TreeId(false.header.id)}, parents, branch="main"))
    with watched(tmp_path) as repo:
        assert tried(repo, content([CHUNK, LEAF, ROOT, honest], {"branches/main": honest.header.id})) == ""
        keys = content([false, lying], {"branches/main": lying.header.id})
        assert "does not hold the names" in tried(repo, keys)
        assert repo.refs.list() == {remote_name("origin", "main"): honest.header.id}


def test_f10_trees_below_trees_without_end_are_not_followed(tmp_path: Path) -> None:
    chain = [LEAF]
    for _ in range(3000):
        chain.append(above("a", 1, chain[-1]))
    with watched(tmp_path) as repo:
        assert "does not hold the names" in tried(repo, remote_of(chain[-1], CHUNK, *chain[:-1]))


def test_f10_a_commit_that_is_none_or_has_others_for_parents_is_not_taken(tmp_path: Path) -> None:
    made = {
        "empty": commit_object(b"\xa0"),
        "a parent nobody has": commit_object(Commit({}, (nobody(),))),
        "a parent that is a tree": commit_object(Commit({}, (CommitId(LEAF.header.id),))),
        "an item that is a chunk": commit_object(Commit({"model": TreeId(CHUNK.header.id)})),
    }
    with watched(tmp_path) as repo:
        for name, commit in made.items():
            keys = content([CHUNK, LEAF, commit], {"branches/main": commit.header.id})
            assert list(fetched(repo, keys).damaged) == [MAIN], name
        for name in (LEAF, CHUNK):
            keys = content([CHUNK, LEAF], {"branches/main": name.header.id})
            assert list(fetched(repo, keys).damaged) == [MAIN]
        assert repo.refs.list() == {}


def test_f10_an_item_that_is_a_commit_is_not_taken(tmp_path: Path) -> None:
    below = commit_object(Commit({}))
    above_it = commit_object(Commit({"model": TreeId(below.header.id)}))
    with watched(tmp_path) as repo:
        assert "is not a tree" in tried(repo, content([below, above_it], {"branches/main": above_it.header.id}))


def test_f10_names_that_look_like_paths_are_names(tmp_path: Path) -> None:
    """Nothing is a path but on an export, whose place its caller names."""
    names = sorted(("../../x", "/etc/passwd", "a\0b", "~root", "\u202etxt.exe"), key=str.encode)
    leaf = tree(TreeNode(entries=tuple((name, tensor(1024, CHUNK.header.id)) for name in names)))
    items = {name: TreeId(leaf.header.id) for name in (*names, "", "model")}
    commit = commit_object(Commit(items, branch="../../x\n", message="\x1b[2J", metadata={"n": 10**3000}))
    with watched(tmp_path) as repo:
        assert tried(repo, content([CHUNK, leaf, commit], {"branches/main": commit.header.id})) == ""
        tip = repo.refs.read(remote_name("origin", "main"))
        assert tip == commit.header.id
        assert {name for name, _ in repo.tree(repo.commit(tip), "../../x")} == set(names)


def test_a17_a_pickle_is_never_run(tmp_path: Path) -> None:
    """Bytes that would write a file if anybody unpickled them."""
    victim = tmp_path / "outside" / "x"
    pickle = b"cpathlib\nPath.write_bytes\n(cpathlib\nPath\n(V" + str(victim).encode() + b"\ntRVpwned\ntR."
    leaf = tree(
        TreeNode(
            entries=(
                ("", ContainerEntry(0, "dict", Tagged("pickle", pickle))),
                ("a", ValueEntry(0, inline=values.encode(Tagged("pickle", pickle)))),
            )
        )
    )
    with watched(tmp_path) as repo:
        assert tried(repo, remote_of(leaf)) == ""


def test_f10_deltas_against_each_other_or_too_deep_are_not_to_be_had(tmp_path: Path) -> None:
    def delta(raw: bytes, base: bytes) -> Stored:
        header = ObjectHeader(
            Kind.CHUNK, Transform.XOR, False, Element.INT8, len(raw), chunk_id(raw), ObjectId(chunk_id(base))
        )
        difference = bytes(one ^ other for one, other in zip(raw, base, strict=True))
        return Stored(header, (len(raw) << 3 | 1).to_bytes(4, "little") + difference[4:])

    raws = [bytes([number]) * 1024 for number in range(101)]
    cycle = [delta(raws[0], raws[1]), delta(raws[1], raws[0])]
    with watched(tmp_path) as repo:
        assert tried(repo, remote_of(one(tensor(1024, chunk_id(raws[0]))), *cycle))
        chain = [chunk(raws[0]), *(delta(raws[n], raws[n - 1]) for n in range(1, 101))]
        assert tried(repo, remote_of(one(tensor(1024, chunk_id(raws[100]))), *chain))
        assert repo.refs.list() == {}


def test_f10_lengths_that_lie_are_refused(tmp_path: Path) -> None:
    """Frames that say another length than their header, trailing bytes, a frame within a frame."""
    encoded = TreeNode(entries=(("a", tensor(1024, CHUNK.header.id)),) * 1).encode() + bytes(200)
    frame = blob(Kind.TREE, encoded, LEAF.header.id)
    longer = Stored(frame.header._replace(raw_bytes=64 << 20), frame.payload)
    trailing = Stored(LEAF.header._replace(raw_bytes=len(frame.payload) + 300, transform=Transform.ZSTD), frame.payload)
    nested = blob(Kind.TREE, frame.payload + bytes(300), LEAF.header.id)
    with watched(tmp_path) as repo:
        for forged in (longer, trailing, nested):
            made = commit_object(Commit({"model": TreeId(LEAF.header.id)}))
            assert tried(repo, content([CHUNK, forged, made], {"branches/main": made.header.id}))
        assert repo.refs.list() == {}
