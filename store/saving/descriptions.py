"""What the creator of a snapshot tells its ranks, and its encoding. Pure.

Ranks open no index. One that remembers its last save needs none; one that does not, after a resume above all, is told
here where the parent's trees, chunks and their bases lie. Reading the tables of the packs that hold these would tell
the same, but of everything else in them too, and the chunks of one commit may lie in hundreds of packs.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ..format import canonical, fields
from ..format.canonical import Node
from ..ids import TreeId
from .parts import built, sealed, unsealed
from .rankindex import Excerpt, decode_excerpt, encode_excerpt


class Description(NamedTuple):
    """What a snapshot's ranks need.

    Attributes:
        world_size: how many there are.
        ordinal: says which delta chains restart, for ranks that have not counted their own saves.
        is_second: whether the parent is the first of its line: then no chain can be long.
        trees: the parent's items that are here.
        excerpt: where all of that lies; nothing if all ranks remember their last save.
        branch: where it is to be committed, for ranks that nobody tells the snapshot's id.
    """

    world_size: int
    ordinal: int
    is_second: bool
    trees: Mapping[str, TreeId]
    excerpt: Excerpt
    branch: str = ""

    def encode(self) -> bytes:
        """Its file's content."""
        counts = [self.world_size, self.ordinal, self.is_second]
        return sealed(canonical.encode([*counts, dict(self.trees), encode_excerpt(self.excerpt), self.branch]))

    @classmethod
    def decode(cls, data: bytes, what: str) -> "Description":
        """Inverse of :meth:`encode`.

        Raises:
            Corrupt: it is none, or a damaged one.
        """
        node = canonical.parse(unsealed(data, what), what)
        return built(what, lambda: _from(node, what))


def _from(node: Node, what: str) -> Description:
    world_size, ordinal, is_second, trees, excerpt, branch = node
    return Description(
        fields.count(world_size, what),
        fields.count(ordinal, what),
        bool(is_second),
        {fields.text(name, what): TreeId(fields.object_id(tree, what)) for name, tree in trees.items()},
        decode_excerpt(excerpt),
        fields.text(branch, what),
    )
