"""Who of the ranks writes what: told by each rank, chosen by rank 0, kept for as long as nothing changes. Pure."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from store.boxes import Box
from store.format.canonical import Node, encode
from store.format.casts import SCALED

from ..sharding.writers import Holding, Name, share_out
from .stages import Groups, Joined, ParameterGroup, joined


class Offer(NamedTuple):
    """What a rank has.

    Attributes:
        holdings: of tensors.
        others: values and containers.
        groups: of each optimizer.
        together: parameters of all ranks that it was made with, see ``stages``.
    """

    holdings: Mapping[Name, Holding]
    others: Sequence[Name]
    groups: Mapping[str, Groups]
    together: Joined

    def encode(self) -> Node:
        """As a message."""
        return {
            "held": [
                [*name, each.dtype, list(each.shape), _boxes_told(each.boxes), each.stored, each.by_row]
                for name, each in self.holdings.items()
            ],
            "others": [list(name) for name in self.others],
            "groups": {item: [group.encode() for group in groups] for item, groups in self.groups.items()},
            "together": joined_told(self.together),
        }

    @classmethod
    def decode(cls, node: Node) -> "Offer":
        """Inverse of :meth:`encode`."""
        holdings = {
            Name(item, entry): Holding(dtype, tuple(shape), _boxes(boxes), stored, by_row)
            for item, entry, dtype, shape, boxes, stored, by_row in node["held"]
        }
        groups = {item: tuple(map(ParameterGroup.decode, given)) for item, given in node["groups"].items()}
        return cls(holdings, tuple(Name(*name) for name in node["others"]), groups, node["together"])

    @property
    def needs_scales(self) -> bool:
        """Whether something of it is to be stored as floats of one byte."""
        return any(each.stored in SCALED for each in self.holdings.values())


class Share(NamedTuple):
    """What a rank writes.

    Attributes:
        boxes: of each tensor.
        others: values and containers.
    """

    boxes: Mapping[Name, tuple[Box, ...]]
    others: frozenset[Name]

    def encode(self) -> Node:
        """As a message."""
        return {
            "boxes": [[*name, _boxes_told(boxes)] for name, boxes in self.boxes.items()],
            "others": sorted(list(name) for name in self.others),
        }

    @classmethod
    def decode(cls, node: Node) -> "Share":
        """Inverse of :meth:`encode`."""
        boxes = {Name(item, entry): _boxes(told) for item, entry, told in node["boxes"]}
        return cls(boxes, frozenset(Name(*name) for name in node["others"]))


def digest(offer: Node) -> bytes:
    """Equal for what is equal."""
    return blake2b(encode(offer), digest_size=16).digest()


def shares(offers: Sequence[Offer]) -> list[Share]:
    """Choose who writes what. A value is written by the first rank that has it.

    Args:
        offers: by rank.

    Raises:
        Incompatible: ranks disagree about a tensor, or what they hold does not tile it.
    """
    others: list[set[Name]] = [set() for _ in offers]
    seen: set[Name] = set()
    for rank, offer in enumerate(offers):
        others[rank] = set(offer.others) - seen
        seen |= others[rank]
    boxes = share_out([offer.holdings for offer in offers])
    return [Share(own, frozenset(names)) for own, names in zip(boxes, others, strict=True)]


def to_put_together(offers: Sequence[Offer]) -> Joined | None:
    """What all ranks have to make their offers with, once more; ``None`` if these were made so.

    Raises:
        Incompatible: ranks have different parameters in an optimizer, and cannot put them together.
    """
    wanted = joined([offer.groups for offer in offers])
    is_known = all(joined_told(offer.together) == joined_told(wanted) for offer in offers)
    return None if is_known else wanted


def joined_told(together: Joined) -> Node:
    """As a message, which is what it was."""
    return {item: [list(names) for names in groups] for item, groups in together.items()}


def _boxes_told(boxes: Sequence[Box]) -> Node:
    return [[list(box.offsets), list(box.sizes)] for box in boxes]


def _boxes(told: Node) -> tuple[Box, ...]:
    return tuple(Box(tuple(offsets), tuple(sizes)) for offsets, sizes in told)
