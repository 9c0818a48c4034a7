"""What a commit says of the model that it comes from: metadata that an import writes and a listing reads. Pure."""

from enum import StrEnum
from typing import Final, NamedTuple

from store.format.objects import Commit
from store.format.values import Plain
from store.ids import CommitId, from_hex

FROM: Final = "derived-from"
"""Key of the base's id, in hex and in full."""

BY: Final = "derived-by"
"""Key of how it was found, see :class:`How`."""

ESTIMATE: Final = "derived-estimate"
"""Key of what sampling promised: what the model would take against its base, as a share of what it would alone."""


class How(StrEnum):
    """How a base was found."""

    NAMED = "name"
    """A person named it."""
    SEARCHED = "search"
    """It was the nearest of all."""
    NONE = "none"
    """There is none."""


class Derived(NamedTuple):
    """What a commit says of its base.

    Attributes:
        base: its base.
        how: how that was found, as it is written.
        estimate: what sampling promised; ``None`` if that is not said.
    """

    base: CommitId
    how: str
    estimate: float | None


def metadata(base: CommitId, how: How, estimate: float) -> dict[str, Plain]:
    """What to keep with a commit that has a base."""
    return {FROM: base.hex(), BY: str(how), ESTIMATE: round(estimate, 4)}


def derived(commit: Commit) -> Derived | None:
    """What a commit says of its base; ``None`` if it says nothing that can be understood."""
    base, how, estimate = (commit.metadata.get(key) for key in (FROM, BY, ESTIMATE))
    try:
        found = CommitId(from_hex(base)) if isinstance(base, str) else None
    except ValueError:
        found = None
    if found is None:
        return None
    return Derived(found, how if isinstance(how, str) else "", estimate if isinstance(estimate, float) else None)
