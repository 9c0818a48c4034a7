"""What models are expected to take, in bytes. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Sum(NamedTuple):
    """Bytes of something.

    Attributes:
        raw_bytes: what it holds. Of that
        shared_bytes: is there already: in the store, in a model before it, or elsewhere in it.
        added_bytes: what the rest is expected to take.
    """

    raw_bytes: int
    shared_bytes: int
    added_bytes: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a model would take.

    Attributes:
        name: the model.
        base: what it would be stored against: a commit in hex, or the name of a model before it; ``None`` if nothing.
        bytes: of all of it.
    """

    name: str
    base: str | None
    bytes: Sum


def total(forecasts: Sequence[Forecast]) -> Sum:
    """Bytes of several models."""
    return Sum(*map(sum, zip(Sum(0, 0, 0), *(each.bytes for each in forecasts), strict=True)))
