"""Who of the ranks writes what: told by each rank, chosen by rank 0, kept for as long as nothing changes. Pure."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from store.boxes import Box
from store.errors import Incompatible
from store.format.canonical import Node, encode

from ..sharding.writers import Holding, Name, share_out


class Offer(NamedTuple):
    """What a rank has.

    Attributes:
        holdings: of tensors.
        others: values and containers.
        parameters: for each optimizer what its parameters are called, in order; ranks have to agree, as their state is
            stored under numbers.
    """

    holdings: Mapping[Name, Holding]
    others: Sequence[Name]
    parameters: Mapping[str, Sequence[str]]

    def encode(self) -> Node:
        """As a message."""
        return {
            "held": [
                [*name, each.dtype, list(each.shape), _boxes_told(each.boxes)] for name, each in self.holdings.items()
            ],
            "others": [list(name) for name in self.others],
            "parameters": {item: list(names) for item, names in self.parameters.items()},
        }

    @classmethod
    def decode(cls, node: Node) -> "Offer":
        """Inverse of :meth:`encode`."""
        holdings = {
            Name(item, entry): Holding(dtype, tuple(shape), _boxes(boxes))
            for item, entry, dtype, shape, boxes in node["held"]
        }
        return cls(holdings, tuple(Name(*name) for name in node["others"]), node["parameters"])


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
        Incompatible: ranks disagree about a tensor or about an optimizer's parameters, or what they hold does not tile
            a tensor.
    """
    _require_same_parameters(offers)
    others: list[set[Name]] = [set() for _ in offers]
    seen: set[Name] = set()
    for rank, offer in enumerate(offers):
        others[rank] = set(offer.others) - seen
        seen |= others[rank]
    boxes = share_out([offer.holdings for offer in offers])
    return [Share(own, frozenset(names)) for own, names in zip(boxes, others, strict=True)]


def _require_same_parameters(offers: Sequence[Offer]) -> None:
    first: dict[str, tuple[int, Sequence[str]]] = {}
    for rank, offer in enumerate(offers):
        for item, names in offer.parameters.items():
            known_rank, known = first.setdefault(item, (rank, names))
            if known != names:
                raise Incompatible(
                    f"{item}: ranks {known_rank} and {rank} have different parameters in it, as pipeline stages do,"
                    " whose state would get the same numbers; give each stage's optimizer an item of its own",
                    item=item,
                    ranks=[known_rank, rank],
                )


def _boxes_told(boxes: Sequence[Box]) -> Node:
    return [[list(box.offsets), list(box.sizes)] for box in boxes]


def _boxes(told: Node) -> tuple[Box, ...]:
    return tuple(Box(tuple(offsets), tuple(sizes)) for offsets, sizes in told)
