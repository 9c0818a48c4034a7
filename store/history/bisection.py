"""Finding the first commit of a line that is bad, by trying as few as can be. Pure.

Source: the binary search of ``git bisect``. A commit that cannot be tried is left out, and its nearest neighbour tried
instead.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Bisection(Generic[T]):
    """A search under way.

    Args:
        line: what was made after the last known good one, oldest first; the last is known to be bad.
    """

    def __init__(self, line: Sequence[T]) -> None:
        self._line = line
        self._good_end = 0
        self._bad = len(line) - 1
        self._untried: set[int] = set()

    @property
    def tries_left(self) -> int:
        """How many more it takes about."""
        return (self._bad - self._good_end).bit_length()

    @property
    def suspects(self) -> Sequence[T]:
        """What may be the first bad one, oldest first; one alone once it is found. The last is bad for sure."""
        return self._line[self._good_end : self._bad + 1]

    def next(self) -> T | None:
        """What to try next; ``None`` if it is found, or nothing is left that can be tried."""
        number = self._middle()
        return None if number is None else self._line[number]

    def good(self) -> None:
        """The one of :meth:`next` is good."""
        self._good_end = self._asked() + 1

    def bad(self) -> None:
        """It is bad."""
        self._bad = self._asked()

    def skip(self) -> None:
        """It cannot be tried."""
        self._untried.add(self._asked())

    def _asked(self) -> int:
        number = self._middle()
        assert number is not None, "nothing was asked"
        return number

    def _middle(self) -> int | None:
        """Nearest to the middle of what may be the first bad one, but for the last, which is known to be bad."""
        middle = (self._good_end + self._bad - 1) // 2
        open_numbers = [number for number in range(self._good_end, self._bad) if number not in self._untried]
        return min(open_numbers, key=lambda number: abs(number - middle), default=None)
