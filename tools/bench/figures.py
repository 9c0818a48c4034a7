"""Many measurements in few numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, and what it lies between."""

    median: float
    least: float
    most: float

    def text(self, unit: float = 1.0, digits: int = 2) -> str:
        """For a table: the median, and the ends in brackets if they look different."""
        middle, least, most = (f"{figure / unit:.{digits}f}" for figure in (self.median, self.least, self.most))
        return middle if least == most else f"{middle} ({least}–{most})"


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    return Spread(median(values), min(values), max(values))


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of all are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
