"""What other ranks take of a commit: a pipeline stage is not short of what another one has. Pure."""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple


class Elsewhere(NamedTuple):
    """What is passed over without a word, strict or not.

    Attributes:
        entries: names of entries, by item.
        parameters: names of optimizers' parameters without wrappers, by item.
    """

    entries: Mapping[str, Collection[str]]
    parameters: Mapping[str, Collection[str]]


NOWHERE: Final = Elsewhere({}, {})
"""There is no other rank, or each of them takes the same."""
