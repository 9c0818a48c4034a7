"""How many bytes a library keeps for the same states, with its default settings and nothing lost."""

from dataclasses import dataclass
from typing import Any, Final

from store.limits import BALLAST_BYTES

from .peers import OURS, RUST, Stored, store
from .report import Bar, Bench
from .workloads import DISTANCES, Series, fine_tune, raw_bytes, spaced

MB: Final = 1_000_000

BAR_BESIDE_RUST: Final = {1: 0.95, 10: 0.95, 50: 0.93, 100: 0.93}
"""Stored bytes, ours over theirs, by the distance between saves."""

BAR_FINE_TUNE: Final = 0.28
"""Stored over raw bytes of a bfloat16 fine-tune whose base is in the store."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One series, saved by both.

    Attributes:
        series: what was saved.
        raw_bytes: of each save.
        ours: what we made of it.
        rust: what the peer made of it.
    """

    series: Series
    raw_bytes: tuple[int, ...]
    ours: Stored
    rust: Stored

    @property
    def beside_rust(self) -> float:
        """Stored bytes, ours over theirs."""
        return self.ours.total_bytes / self.rust.total_bytes

    def row(self) -> list[str]:
        """Cells of the table."""
        raw = sum(self.raw_bytes)
        cells = [self.series.name, f"{raw / MB:,.0f} MB"]
        for stored in (self.ours, self.rust):
            cells += [f"{stored.total_bytes / MB:,.0f} MB", f"{raw / stored.total_bytes:.3f}"]
        return [*cells, f"{self.beside_rust:.3f}"]

    def figures(self) -> dict[str, Any]:
        """For the JSON file."""
        return {
            "raw_bytes": self.raw_bytes,
            "ours_growth_bytes": self.ours.growth_bytes,
            "rust_growth_bytes": self.rust.growth_bytes,
            "ours_steps": self.ours.steps,
            "rust_steps": self.rust.steps,
        }


def measure() -> Bench:
    """Run both libraries on all series."""
    spacings = {distance: _compare(spaced(distance)) for distance in DISTANCES}
    tuned = _compare(fine_tune())
    tuned_ratio = tuned.ours.growth_bytes[1] / tuned.raw_bytes[1]
    bars = [
        Bar(f"stored bytes beside the peer's, {comparison.series.name}", comparison.beside_rust, limit)
        for (distance, limit) in BAR_BESIDE_RUST.items()
        for comparison in (spacings[distance],)
    ]
    comparisons = [*spacings.values(), tuned]
    return Bench(
        name="size",
        title="Bytes in the store after all saves of a series, default settings, lossless",
        columns=("saved", "raw", OURS.label, "raw/stored", RUST.label, "raw/stored", "ours/theirs"),
        rows=[comparison.row() for comparison in comparisons],
        bars=[*bars, Bar("fine-tune on its base, stored over raw", tuned_ratio, BAR_FINE_TUNE)],
        figures={comparison.series.name: comparison.figures() for comparison in comparisons},
        notes=_notes(comparisons),
    )


def _compare(series: Series) -> Comparison:
    raw = tuple(raw_bytes(path) for path in series.paths)
    return Comparison(series, raw, store(OURS, series), store(RUST, series))


def _notes(comparisons: list[Comparison]) -> list[str]:
    """What the sizes hold; and twelve saves that are kept are not to be compared with twelve of which some are gone."""
    notes = [
        "Whole directories. Each library was reopened and gave back every save that it listed, bit for bit.",
        f"Ours holds {BALLAST_BYTES / MB:.1f} MB of ballast, which frees space on a full disk.",
    ]
    for comparison in comparisons:
        for label, stored in ((OURS.label, comparison.ours), (RUST.label, comparison.rust)):
            gone = len(comparison.series.paths) - len(stored.steps)
            if gone:
                notes.append(f"{label} no longer has {gone} of the saves of {comparison.series.name!r}.")
    return notes
