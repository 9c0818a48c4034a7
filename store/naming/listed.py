"""Lists of names, as people give them."""

from collections.abc import Iterable
from typing import overload


@overload
def listed(names: str | Iterable[str]) -> list[str]: ...
@overload
def listed(names: None) -> None: ...
@overload
def listed(names: str | Iterable[str] | None) -> list[str] | None: ...
def listed(names: str | Iterable[str] | None) -> list[str] | None:
    """Names as a list: one by itself is a list of one, for taken as an iterable it would be read letter by letter.

    Args:
        names: one, or several; ``None`` stays ``None``.
    """
    if names is None:
        return None
    return [names] if isinstance(names, str) else list(names)
