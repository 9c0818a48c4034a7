"""What tensors of several ranks are divided by that are to be stored as floats of one byte.

A tensor has one scale, or one for each row, and no rank sees all of it. So each tells the largest magnitudes among what
it stores, somebody puts these together, and all cast by what comes of that.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import starmap
from math import prod
from typing import Final, NamedTuple

from ..boxes import Box
from ..codec import largest_of, scale_of
from ..errors import Incompatible
from ..format.canonical import Node
from ..format.casts import SCALED, has_row_scales
from ..parallel import Threads
from .phases import Laps, Phases
from .scales import Scales, require_narrower
from .shards import RankItem, ShardsInput

_WORD_BYTES: Final = 8


class _Rows(NamedTuple):
    """The largest magnitudes of some rows of a tensor; of all that a box has, as row 0, where rows have no scales."""

    first: int
    most: tuple[int, ...]


class Largest(NamedTuple):
    """What a rank knows of a tensor's largest numbers.

    Attributes:
        item: the item.
        name: the tensor's name.
        dtype: its dtype.
        stored: what it is to be stored as.
        scale_count: how many scales it has.
        rows: of each box.
    """

    item: str
    name: str
    dtype: str
    stored: str
    scale_count: int
    rows: tuple[_Rows, ...]


def largest(items: Sequence[RankItem], threads: Threads, phases: Phases) -> list[Largest]:
    """Look for the largest numbers of all tensors that need a scale.

    Raises:
        Incompatible: a tensor is to be cast to something that is no narrower float.

    Cost: reads these tensors once.
    """
    given = list(_scaled(items))
    found: list[tuple[_Rows, ...]] = [()] * len(given)

    def look(number: int) -> None:
        laps = Laps()
        each = given[number][2]
        found[number] = tuple(_rows(each, box.box, box.data) for box in each.boxes if box.data)
        laps.end("scale")
        phases.add(laps.seconds)

    threads.run(look, range(len(given)))
    return [
        Largest(item, name, each.dtype, each.stored or "", each.shape[0] if _by_row(each) else 1, rows)
        for (item, name, each), rows in zip(given, found, strict=True)
    ]


def joined(told: Sequence[Sequence[Largest]]) -> Scales:
    """The scales that come of what all ranks know; ``None`` for a tensor that has no elements or cannot be cast."""
    known: dict[tuple[str, str], list[Largest]] = {}
    for each in (each for own in told for each in own):
        known.setdefault((each.item, each.name), []).append(each)
    return {key: _scale(of_ranks) for key, of_ranks in known.items()}


def _scale(of_ranks: Sequence[Largest]) -> bytes | None:
    most = [0] * of_ranks[0].scale_count
    rows = [rows for each in of_ranks for rows in each.rows]
    for first, own in rows:
        for number, word in enumerate(own, first):
            most[number] = max(most[number], word)
    return scale_of(most, of_ranks[0].dtype, of_ranks[0].stored) if rows else None


def scales_of_one(items: Sequence[RankItem], threads: Threads, phases: Phases) -> Scales:
    """The scales, where a rank has all of each tensor that needs one.

    Raises:
        Incompatible: it has a part only.
    """
    for item, name, given in _scaled(items):
        if sum(each.box.volume for each in given.boxes) != prod(given.shape):
            raise Incompatible(
                f"{item}::{name}: {given.stored} takes the largest number of the whole tensor, and this rank has a part"
                " of it; store it as bfloat16 or float16, or let ranks talk by torch.distributed",
                tensor=f"{item}::{name}",
            )
    return joined([largest(items, threads, phases)])


def encode_largest(found: Sequence[Largest]) -> Node:
    """As a message."""
    return [[*each[:5], [[rows.first, struct.pack(f"<{len(rows.most)}Q", *rows.most)] for rows in each.rows]]
            for each in found]  # fmt: skip


def decode_largest(node: Node) -> list[Largest]:
    """Inverse of :func:`encode_largest`. What is malformed may raise what Python raises."""
    return [
        Largest(item, name, dtype, stored, scale_count, tuple(starmap(_unpacked, rows)))
        for item, name, dtype, stored, scale_count, rows in node
    ]


def _unpacked(first: int, data: bytes) -> _Rows:
    return _Rows(first, struct.unpack(f"<{len(data) // _WORD_BYTES}Q", data))


def encode_scales(scales: Scales) -> Node:
    """As a message."""
    return [[*key, scale] for key, scale in scales.items()]


def decode_scales(node: Node) -> Scales:
    """Inverse of :func:`encode_scales`."""
    return {(item, name): scale for item, name, scale in node}


def _scaled(items: Sequence[RankItem]) -> Iterator[tuple[str, str, ShardsInput]]:
    for item in items:
        for name, given in item.entries.items():
            if isinstance(given, ShardsInput) and given.stored in SCALED:
                require_narrower(item.name, name, given.dtype, given.stored)
                if any(each.data is None for each in given.boxes):
                    raise Incompatible(f"{item.name}::{name}: nothing tells a scale of what is said to be unchanged")
                yield item.name, name, given


def _by_row(given: ShardsInput) -> bool:
    return given.by_row and has_row_scales(given.shape)


def _rows(given: ShardsInput, box: Box, data: memoryview) -> _Rows:
    if not _by_row(given):
        return _Rows(0, tuple(largest_of(data, given.dtype, None)))
    return _Rows(box.offsets[0], tuple(largest_of(data, given.dtype, prod(box.sizes[1:]))))
