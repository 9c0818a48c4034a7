"""Numbers and bytes drawn from a fuzzer's input: zeros once it is used up."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Drawn:
    """Draws from an input.

    Args:
        data: the input.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, width_bytes: int = 1) -> int:
        """A number of so many bytes."""
        return int.from_bytes(self.some(width_bytes), "little")

    def one_of(self, choices: Sequence[T]) -> T:
        """One of some things."""
        return choices[self.number(2) % len(choices)]

    def some(self, size_bytes: int) -> bytes:
        """So many bytes, or fewer at the end."""
        start, self._at = self._at, self._at + size_bytes
        return self._data[start : self._at]

    def rest(self) -> bytes:
        """All that was not drawn yet."""
        return self.some(len(self._data))
