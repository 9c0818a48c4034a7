"""Whether what several ranks have copies of is the same on all of them: compared by hash, if somebody asks for it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from xxhash import xxh3_128_digest

from store.boxes import Box
from store.errors import Incompatible
from store.format import values
from store.format.canonical import Node
from store.format.values import Plain

from ..sharding.writers import Holding, Name
from ..state.names import METADATA, last_segment
from ..state.tensors import TensorSource, words_of

_TOLD: Final = 10
"""How many differences an error lists."""

Copies = Mapping[Name, tuple[Box, ...]]
"""Boxes of tensors that several ranks hold; of a value or container, none."""


def copies_of(holdings: Sequence[Mapping[Name, Holding]], others: Sequence[Sequence[Name]]) -> list[Copies]:
    """What of each rank's others have as well. Boxes of which one holds a part only are not compared.

    Nor is what torch notes of modules beside their state: stages of a pipeline have other modules.

    Args:
        holdings: what each rank has of tensors.
        others: names of its values and containers.
    """
    boxes: dict[tuple[Name, Box], int] = {}
    names: dict[Name, int] = {}
    for held, named in zip(holdings, others, strict=True):
        for name, holding in held.items():
            for box in holding.boxes:
                boxes[name, box] = boxes.get((name, box), 0) + 1
        for name in named:
            names[name] = names.get(name, 0) + 1
    return [
        {
            **{name: tuple(box for box in holding.boxes if boxes[name, box] > 1) for name, holding in held.items()},
            **{name: () for name in named if names[name] > 1 and last_segment(name.entry) != METADATA},
        }
        for held, named in zip(holdings, others, strict=True)
    ]


def encode_copies(copies: Copies) -> Node:
    """As a message."""
    return [[*name, [[list(box.offsets), list(box.sizes)] for box in boxes]] for name, boxes in copies.items()]


def decode_copies(node: Node) -> Copies:
    """Inverse of :func:`encode_copies`."""
    return {
        Name(item, entry): tuple(Box(tuple(offsets), tuple(sizes)) for offsets, sizes in boxes)
        for item, entry, boxes in node
    }


def digest_of_box(view: TensorSource) -> bytes:
    """Equal for equal bits. Cost: a pass over it; what lies on a device is copied from there."""
    words: Any = words_of(view.tensor).contiguous().cpu().numpy()
    return xxh3_128_digest(words)


def digest_of_value(value: Plain) -> bytes:
    """Equal for what is stored alike."""
    return xxh3_128_digest(values.encode(value))


def require_same(said: Sequence[Node]) -> None:
    """See that all ranks told the same of what they have copies of.

    Args:
        said: by rank: item, entry, place, and digest of each.

    Raises:
        Incompatible: they did not; the message names what differs, and the ranks.
    """
    found: dict[tuple[str, str, str], dict[int, bytes]] = {}
    for rank, told in enumerate(said):
        for item, entry, place, digest in told:
            found.setdefault((item, entry, place), {})[rank] = digest
    problems, names = [], []
    for (item, entry, place), digests in found.items():
        groups: dict[bytes, list[int]] = {}
        for rank, digest in digests.items():
            groups.setdefault(digest, []).append(rank)
        if len(groups) > 1:
            name = str(Name(item, entry))
            names.append(name)
            ranks = " and ".join(", ".join(map(str, group)) for group in groups.values())
            problems.append(f"{name}{place and f' {place}'} is not the same on ranks {ranks}")
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems[:_TOLD])
        more = f"\n  and {len(problems) - _TOLD} more" if len(problems) > _TOLD else ""
        raise Incompatible(
            f"ranks hold copies that differ; nothing was saved:\n{lines}{more}\n"
            "Save what each rank has of its own under per_rank, or make the copies equal",
            tensors=names,
        )
