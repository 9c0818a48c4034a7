"""What somebody may have meant who gave a name that there is not."""

from collections.abc import Iterable


def did_you_mean(near: Iterable[str]) -> str:
    """The question whether one of these was meant; there is at least one."""
    return f"did you mean {' or '.join(map(repr, near))}?"
