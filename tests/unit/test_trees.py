"""Trees split by name range, so that a change rewrites the leaf it is in and no other."""

from collections.abc import Mapping

import pytest

from store.errors import Corrupt, Incompatible, NotFound
from store.format.entries import Entry, TensorEntry
from store.format.objects import SubTree, TreeNode
from store.format.trees import Tree, TreeObject, build
from store.ids import TreeId


def many(count: int, **changed: bytes) -> dict[str, Entry]:
    names = [f"layer.{number}.weight" for number in range(count)]
    return {name: TensorEntry(0, "int8", (8,), inline=changed.get(name, name.encode()[-8:].ljust(8))) for name in names}


def opened(objects: list[TreeObject]) -> tuple[Tree, list[TreeId]]:
    """The tree, and a list to which every fetched sub-tree is added."""
    by_id: Mapping[TreeId, TreeNode] = {tree.id: tree.node for tree in objects}
    fetched: list[TreeId] = []

    def load(tree: TreeId) -> TreeNode:
        fetched.append(tree)
        return by_id[tree]

    return Tree(objects[-1].node, load), fetched


def test_small_item_is_one_object() -> None:
    objects = build(many(10), ties=(("a", "b"),))
    assert len(objects) == 1
    tree, _ = opened(objects)
    assert dict(tree) == many(10)
    assert tree.ties == (("a", "b"),)


def test_empty_item() -> None:
    tree, _ = opened(build({}))
    assert len(tree) == 0
    assert list(tree) == []


def test_large_item_is_split_and_reads_back_in_name_order() -> None:
    entries = many(5000)
    objects = build(entries)
    tree, _ = opened(objects)
    assert len(objects) > 4
    assert all(len(tree_object.encoded) < 200_000 for tree_object in objects)
    assert list(tree) == sorted(entries.items())
    assert len(tree) == 5000


def test_lookup_fetches_one_leaf() -> None:
    tree, fetched = opened(build(many(5000)))
    assert isinstance(tree["layer.777.weight"], TensorEntry)
    assert len(fetched) == 1
    with pytest.raises(NotFound, match="nowhere"):
        tree["nowhere"]
    assert "layer.1.weight" in tree
    assert "" not in tree


def test_matching() -> None:
    tree, _ = opened(build(many(300)))
    assert [name for name, _ in tree.matching("layer.1?.weight")] == [f"layer.1{digit}.weight" for digit in range(10)]


def test_one_changed_entry_rewrites_one_leaf() -> None:
    before = {tree.id for tree in build(many(5000))}
    after = {tree.id for tree in build(many(5000, **{"layer.2500.weight": b"changed!"}))}
    assert len(after - before) == 2  # the leaf and the root


def test_one_added_entry_moves_no_far_boundary() -> None:
    entries = many(5000)
    before = {tree.id for tree in build(entries)}
    after = {tree.id for tree in build({**entries, "layer.10.bias": TensorEntry(0, "int8", (0,), inline=b"")})}
    assert len(after - before) <= 4


def test_subtree_that_does_not_hold_what_its_parent_says_is_refused() -> None:
    *_, leaf, root = build(many(5000))
    lying = TreeNode(subtrees=(SubTree(leaf.node.entries[0][0], 1, leaf.id),))
    with pytest.raises(Corrupt, match="parent"):
        list(Tree(lying, lambda _: leaf.node))
    with pytest.raises(Corrupt, match="parent"):
        list(Tree(TreeNode(subtrees=(SubTree("x", 0, leaf.id),)), lambda _: TreeNode()))
    assert root.node.subtrees


def test_name_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(Incompatible, match="UTF-8"):
        build({"\ud800": TensorEntry(0, "int8", (0,), inline=b"")})
