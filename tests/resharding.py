"""Commits as several ranks would have made them: an ordinary one, with each tensor written by the ranks of a layout."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from moonclip.sharding.layouts import Layout
from store.codec import encode_blob
from store.format import pack, trees
from store.format.dtypes import Element
from store.format.entries import Entry, TensorEntry
from store.format.objects import Kind
from store.format.pack import ObjectHeader, Sealed
from store.ids import ObjectId, TreeId
from store.naming.refnames import branch_name
from store.reading.packs import pack_path
from store.repository import Repository
from store.saving.publish import add_to_index
from tests import packing
from tests.sharding import Chunks, written
from tools.crash.states import Array

LayoutOf = Callable[[str, TensorEntry], Layout | None]
"""How a tensor was laid out, by its full name; ``None`` if it was not sharded."""


def reshard(root: Path, layout_of: LayoutOf, branch: str = "main") -> None:
    """Put a commit with the same content on a branch, in which tensors lie as ranks wrote them."""
    with Repository.open(root) as repo:
        tip = repo.resolve(branch)
        commit = repo.commit(tip)
        chunks: Chunks = {}
        built: list[trees.TreeObject] = []
        roots: dict[str, TreeId] = {}
        for item in commit.items:
            tree = repo.tree(commit, item)
            entries: dict[str, Entry] = {}
            for name, entry in dict(tree).items():
                entries[name] = entry
                if isinstance(entry, TensorEntry) and (layout := layout_of(f"{item}::{name}", entry)) is not None:
                    entries[name] = _resharded(repo, entry, layout, chunks)
            objects = trees.build(entries, tree.ties)
            built += objects
            roots[item] = objects[-1].id
        made = replace(commit, items=roots, parents=(tip,), time_ns=commit.time_ns + 1)
        sealed = [packing.chunk(raw) for raw in chunks.values()]
        sealed += [_small(Kind.TREE, tree.id, tree.encoded) for tree in {tree.id: tree for tree in built}.values()]
        sealed.append(_small(Kind.COMMIT, made.id, made.encode()))
        table = packing.write(repo.layout.packs, sealed)
        nodes = {tree.id: tree.node for tree in built}
        there = pack_path(repo.layout.packs, table.id).exists
        add_to_index(repo.index, [table], lambda _: there(), made, nodes.__getitem__, tuple)
        repo.set_ref(branch_name(branch), tip, made.id, "save", "as ranks would have made it")


def _resharded(repo: Repository, entry: TensorEntry, layout: Layout, chunks: Chunks) -> TensorEntry:
    array = Array(entry.dtype, entry.shape, bytes(repo.read_tensor(entry)))
    return replace(written(array, layout, chunks), position=entry.position)


def _small(kind: Kind, object_id: ObjectId, raw: bytes) -> Sealed:
    encoded = encode_blob(raw)
    header = ObjectHeader(kind, encoded.transform, False, Element.INT8, len(raw), object_id)
    return pack.seal(header, encoded.payload)
