"""How long the delta chains are that a remote has: from the idx files that are known here, without asking.

A store may encode anew what it has, and its chains become short again; those of what it pushed before stay as they are.
A delta against such an object is deeper there than here, and more so with each time, until nobody can read it. So
whoever is about to rely on a base that is there has to know how deep it lies there.
"""

import struct
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from ...format.pack import ENTRY_BYTES
from ...ids import ID_BYTES, ObjectId
from ..cache import Cache

_HEAD_BYTES: Final = 16
_LINK: Final = struct.Struct(f"<20x{ID_BYTES}s{ID_BYTES}s16x")
_NO_BASE: Final = bytes(ID_BYTES)


def depths_there(cache: Cache, object_ids: Collection[ObjectId]) -> dict[ObjectId, int]:
    """How many objects have to be decoded before each of some objects, as a remote has them.

    Of what the idx files that are known here do not tell, nothing is said.

    Args:
        cache: what is known of the remote.
        object_ids: the objects.

    Cost: 0.2 µs an object of the packs that are newer than what is sought.
    """
    links = _links(cache.idx_files(), object_ids)
    depths: dict[ObjectId, int] = {}
    for object_id in object_ids:
        depth, following = 0, object_id
        while (base := links.get(following, following)) not in (_NO_BASE, following) and depth <= len(links):
            depth, following = depth + 1, base
        if links.get(following) == _NO_BASE:
            depths[object_id] = depth
    return depths


def _links(idx_files: Iterable[bytes], object_ids: Collection[ObjectId]) -> dict[ObjectId, ObjectId]:
    """What each of some objects is stored against, and what that is, and so on.

    Bases come before deltas in a pack, and in packs that are no newer: from the end, each is met after it is sought.
    """
    links: dict[ObjectId, ObjectId] = {}
    sought = set(object_ids)
    for data in idx_files if sought else ():
        for object_id, base in reversed(list(_records(data))):
            if object_id in sought:
                sought.discard(object_id)
                links[object_id] = base
                if base != _NO_BASE and base not in links:
                    sought.add(base)
        if not sought:
            break
    return links


def _records(data: bytes) -> Iterator[tuple[ObjectId, ObjectId]]:
    count = int.from_bytes(data[_HEAD_BYTES - 4 : _HEAD_BYTES], "little")
    table = memoryview(data)[_HEAD_BYTES : _HEAD_BYTES + count * ENTRY_BYTES]
    return _LINK.iter_unpack(table[: len(table) // ENTRY_BYTES * ENTRY_BYTES])
