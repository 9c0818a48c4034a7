"""What the head of LMDB's file says, read before LMDB maps it. Pure.

LMDB believes its two meta pages: with a page size or length that is not so, its first look at the map is a SIGBUS, and
no Python catches that. So they are parsed here first.
"""

import struct
from dataclasses import dataclass
from typing import Final

HEAD_BYTES: Final = 2 * 65536
"""As much of the file as holds both meta pages, whatever the page size."""

_PAGE: Final = struct.Struct("=QHHHH")
_META: Final = struct.Struct("=IIQQ48s48sQQ")
_TREE: Final = struct.Struct("=IHHQQQQQ")
_MAGIC, _VERSION, _IS_META = 0xBEEFC0DE, 1, 0x08
_NO_ROOT: Final = 2**64 - 1
_PAGE_SIZES: Final = frozenset(1 << bits for bits in range(9, 17))
_MAX_DEPTH: Final = 32
_MAX_MAP_BYTES: Final = 1 << 46
_FREE_FLAGS, _RECORD_FLAGS = 0x08, 0  # integers for keys, and plain


@dataclass(frozen=True, slots=True)
class Root:
    """A tree of pages.

    Attributes:
        page: number of its root page, or ``None`` if it is empty.
        depth: its levels.
    """

    page: int | None
    depth: int


@dataclass(frozen=True, slots=True)
class Meta:
    """One meta page.

    Attributes:
        page_bytes: size of a page.
        page_count: pages that the file holds, these two among them.
        map_bytes: size of the map, as the last that grew it left it.
        transaction: number of the transaction that wrote it.
        free: lists of free pages.
        records: keys and values.
    """

    page_bytes: int
    page_count: int
    map_bytes: int
    transaction: int
    free: Root
    records: Root

    @property
    def needed_bytes(self) -> int:
        """Least length of the file."""
        return self.page_bytes * self.page_count


def meta_pages(head: bytes) -> tuple[Meta, Meta] | None:
    """Both meta pages, if they are such as LMDB writes.

    Args:
        head: the first ``HEAD_BYTES`` of the file, or all of it.
    """
    first = _parse(head, 0)
    second = _parse(head, first.page_bytes) if first else None
    if first is None or second is None or first.page_bytes != second.page_bytes:
        return None
    if first.transaction % 2 != 0 or second.transaction % 2 != (second.transaction != 0):
        return None  # transactions alternate between the pages
    return first, second


def _parse(head: bytes, offset: int) -> Meta | None:
    if len(head) < offset + _PAGE.size + _META.size:
        return None
    flags = _PAGE.unpack_from(head, offset)[2]
    magic, version, _, map_bytes, free, records, last_page, transaction = _META.unpack_from(head, offset + _PAGE.size)
    page_bytes = _TREE.unpack(free)[0]
    if not flags & _IS_META or (magic, version) != (_MAGIC, _VERSION) or page_bytes not in _PAGE_SIZES:
        return None
    if (_TREE.unpack(free)[1], _TREE.unpack(records)[1]) != (_FREE_FLAGS, _RECORD_FLAGS):
        return None
    meta = Meta(page_bytes, last_page + 1, map_bytes, transaction, _root(free), _root(records))
    return meta if _is_sane(meta) else None


def _root(tree: bytes) -> Root:
    _, _, depth, _, _, _, _, page = _TREE.unpack(tree)
    return Root(None if page == _NO_ROOT else page, depth)


def _is_sane(meta: Meta) -> bool:
    trees = all(
        root.depth == 0 if root.page is None else 1 < root.page < meta.page_count and 0 < root.depth <= _MAX_DEPTH
        for root in (meta.free, meta.records)
    )
    return trees and meta.page_count > 1 and meta.needed_bytes <= meta.map_bytes <= _MAX_MAP_BYTES
