"""Entries by name, as people ask for them: ``item::name``, or a name in any item; globs on either side. Pure."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from store.errors import NotFound

from .stored import SEPARATOR


def is_called(item: str, name: str, pattern: str) -> bool:
    """Whether a pattern asks for an entry: by its name, that of a container it is in, or its item's."""
    of_item, separator, wanted = pattern.rpartition(SEPARATOR)
    if separator and not fnmatchcase(item, of_item):
        return False
    is_item = not separator and item == pattern
    return is_item or name == wanted or fnmatchcase(name, wanted) or name.startswith(f"{wanted}/")


class Selection:
    """Entries that any of some patterns asks for; all if there are none. Remembers which patterns found something.

    Args:
        patterns: see :func:`is_called`.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = patterns
        self._unmet = set(patterns)

    def __call__(self, item: str, name: str) -> bool:
        """Whether an entry is asked for."""
        hits = {pattern for pattern in self._patterns if is_called(item, name, pattern)}
        self._unmet -= hits
        return bool(hits) or not self._patterns

    def require_met(self) -> None:
        """See that each pattern has found something.

        Raises:
            NotFound: one has not.
        """
        for pattern in self._patterns:
            if pattern in self._unmet:
                raise NotFound(
                    f"no tensor or value is named {pattern!r}; list the names with `moonclip ls`", name=pattern
                )
