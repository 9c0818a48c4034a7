"""Whether the pages of LMDB's file make up its trees. Pure.

LMDB believes what pages say of each other: a page of the wrong type fails an assertion, a length that leads out of
the file is a SIGBUS, and either ends the process. A page that is both free and in use is written over. So all pages are
walked once, before LMDB walks them. What they *hold* is not looked at: records have a check of their own, and within a
leaf LMDB itself checks that keys and values do not lead out of it.
"""

import struct
from collections.abc import Iterator
from itertools import repeat
from typing import Final, Protocol

from .metapages import Meta, Root

_PAGE: Final = struct.Struct("=QHHHH")
_NODE: Final = struct.Struct("=HHHH")
_NUMBER: Final = struct.Struct("=Q")
_BRANCH, _LEAF, _OVERFLOW = 0x01, 0x02, 0x04
_IS_BIG: Final = 0x01

Node = tuple[int, ...]
"""Four fields: of a leaf's the size of the value, in two halves, flags, and the size of the key."""


class Unsound(Exception):
    """The pages contradict each other. Internal."""


class File(Protocol):
    """The bytes of LMDB's file, in memory or read as they are asked for."""

    def __getitem__(self, part: slice, /) -> memoryview:
        """Some of them."""
        ...


def check_pages(file: File, meta: Meta) -> None:
    """Walk the trees of a transaction.

    Args:
        file: the whole file. The transaction is kept open meanwhile, so that its pages stay.
        meta: the transaction's.

    Raises:
        Unsound: LMDB must not be let near it.

    Cost: 4 µs a page, and reading the file.
    """
    pages = _Pages(file, meta)
    for number in pages.leaves(meta.records):
        pages.check_offsets(number)
    for number in pages.leaves(meta.free):
        for values in pages.values(number):
            pages.take_all(values)


def records(file: File, meta: Meta) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a transaction's records, in key order within each leaf.

    Raises:
        Unsound: as :func:`check_pages`.

    Cost: 1 µs a record, and as much as :func:`check_pages`.
    """
    pages = _Pages(file, meta)
    for number in pages.leaves(meta.records):
        yield from pages.items(number)


class _Pages:
    """The pages of a file, each of which has one use."""

    def __init__(self, file: File, meta: Meta) -> None:
        self._file = file
        self._page_bytes = meta.page_bytes
        self._is_taken = bytearray(meta.page_count)
        self._is_taken[:2] = b"\1\1"  # the meta pages

    def leaves(self, root: Root) -> Iterator[int]:
        """Take the branches and leaves of a tree; gives the numbers of its leaves, unchecked."""
        waiting = [] if root.page is None else [(root.page, root.depth)]
        while waiting:
            number, level = waiting.pop()
            self._take(number, 1)
            if level > 1:
                _, nodes = self._nodes(number, _BRANCH)
                waiting += [(low | high << 16 | top << 32, level - 1) for low, high, top, _ in nodes]
            else:
                yield number

    def check_offsets(self, number: int) -> None:
        """Check a leaf as far as LMDB does not: that it is one, and that its nodes begin within it."""
        self._offsets(number, _LEAF)

    def values(self, number: int) -> list[memoryview]:
        """The values of a leaf; those that are on pages of their own take these."""
        page = self._page(number)
        offsets, nodes = self._nodes(number, _LEAF)
        return [self._value(page, *each) for each in zip(offsets, nodes, strict=True)]

    def items(self, number: int) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of a leaf."""
        page = self._page(number)
        offsets, nodes = self._nodes(number, _LEAF)
        for offset, node in zip(offsets, nodes, strict=True):
            start = offset + _NODE.size
            yield bytes(page[start : start + node[3]]), bytes(self._value(page, offset, node))

    def take_all(self, listed: memoryview) -> None:
        """Take the pages of a list of free pages: their count, then their numbers."""
        if len(listed) % _NUMBER.size or not listed:
            raise Unsound("a list of free pages has an odd length")
        count, *numbers = struct.unpack(f"={len(listed) // _NUMBER.size}Q", listed)
        if count != len(numbers):
            raise Unsound("a list of free pages has another length than it says")
        for number in numbers:
            self._take(number, 1)

    def _take(self, number: int, count: int) -> None:
        uses = self._is_taken[number : number + count]
        if len(uses) != count or any(uses):
            raise Unsound(f"page {number} is outside of the file, or has two uses")
        self._is_taken[number : number + count] = b"\1" * count

    def _page(self, number: int) -> memoryview:
        return self._file[number * self._page_bytes : (number + 1) * self._page_bytes]

    def _offsets(self, number: int, kind: int) -> list[int]:
        page = self._page(number)
        own_number, _, own_kind, lower, upper = _PAGE.unpack_from(page)
        if own_number != number or own_kind != kind or not _PAGE.size < lower <= upper <= len(page) or lower % 2:
            raise Unsound(f"page {number} is not what the page above it says")
        offsets = page[_PAGE.size : lower].cast("H").tolist()
        if min(offsets) < upper or max(offsets) > len(page) - _NODE.size:
            raise Unsound(f"page {number} leads out of itself")
        return offsets

    def _nodes(self, number: int, kind: int) -> tuple[list[int], list[Node]]:
        """Offsets and heads of the nodes of a page, whose keys are within it."""
        page, offsets = self._page(number), self._offsets(number, kind)
        nodes = list(map(_NODE.unpack_from, repeat(page), offsets))
        if any(offset + node[3] > len(page) - _NODE.size for offset, node in zip(offsets, nodes, strict=True)):
            raise Unsound(f"a key of page {number} leads out of it")
        return offsets, nodes

    def _value(self, page: memoryview, offset: int, node: Node) -> memoryview:
        low, high, flags, key_bytes = node
        start, size = offset + _NODE.size + key_bytes, low | high << 16
        if flags == _IS_BIG:
            return self._big_value(page, start, size)
        if flags or start + size > len(page):
            raise Unsound("a value leads out of its page, or is of an unknown kind")
        return page[start : start + size]

    def _big_value(self, page: memoryview, start: int, size: int) -> memoryview:
        """A value on pages of its own, whose number lies where it would."""
        if start + _NUMBER.size > len(page):
            raise Unsound("a value leads out of its page")
        (number,) = _NUMBER.unpack_from(page, start)
        count = -(-(_PAGE.size + size) // self._page_bytes)
        self._take(number, count)
        pages = self._file[number * self._page_bytes : (number + count) * self._page_bytes]
        own_number, _, kind, low, high = _PAGE.unpack_from(pages)
        if own_number != number or kind != _OVERFLOW or (low | high << 16) < count:
            raise Unsound(f"page {number} is not what the page above it says")
        return pages[_PAGE.size : _PAGE.size + size]
