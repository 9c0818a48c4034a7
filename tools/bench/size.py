"""How many bytes a library keeps for the same states, with its default settings and nothing lost."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from store.limits import BALLAST_BYTES

from .peers import OURS, RUST
from .progress import Progress, progress
from .report import Bar, Bench
from .storing import Stored, grow, store
from .workloads.recorded import DISTANCES, SAVE_COUNT, Series, fine_tune, raw_bytes, spaced
from .workloads.run import WHOLE

MB: Final = 1_000_000

LIVE: Final = ("bf16", "frozen", "lora", "embedding")
"""Runs that are trained live, because dozens of their states would not fit on a disk."""
LIVE_DISTANCE: Final = 10

SPACED: Final = "spaced"
"""A recorded run, at several distances from save to save."""
TUNED: Final = "fine-tune"
ALL: Final = (SPACED, TUNED, *LIVE)

BAR_BESIDE_RUST: Final = {1: 0.95, 10: 0.95, 50: 0.93, 100: 0.93}
"""Stored bytes, ours over theirs, by the distance between saves."""

BAR_FINE_TUNE: Final = 0.28
"""Stored over raw bytes of a bfloat16 fine-tune whose base is in the store."""
BAR_FINE_TUNE_BESIDE_RUST: Final = 0.75
"""Its stored bytes, ours over theirs."""

BAR_UNCHANGED: Final = 1.05
"""New bytes of a run most of which is frozen, over those of a store that is given what changes alone."""

BAR_EMBEDDING: Final = 0.03
"""New bytes over raw ones where one row of a hundred was touched."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same saves by both.

    Attributes:
        name: what was saved.
        raw_bytes: of each save.
        ours: what we made of it.
        rust: what the peer made of it.
    """

    name: str
    raw_bytes: tuple[int, ...]
    ours: Stored
    rust: Stored

    @property
    def beside_rust(self) -> float:
        """Stored bytes, ours over theirs."""
        return self.ours.total_bytes / self.rust.total_bytes

    @property
    def new_bytes(self) -> int:
        """What all saves but the first one added to our store."""
        return sum(self.ours.growth_bytes[1:])

    def row(self) -> list[str]:
        """Cells of the table."""
        raw = sum(self.raw_bytes)
        cells = [self.name, f"{raw / MB:,.0f} MB"]
        for stored in (self.ours, self.rust):
            cells += [f"{stored.total_bytes / MB:,.0f} MB", f"{raw / stored.total_bytes:.3f}"]
        return [*cells, f"{self.beside_rust:.3f}"]


def measure(names: Sequence[str] = ALL) -> Bench:
    """Run both libraries on what is named.

    Args:
        names: of :data:`ALL`.
    """
    distances = DISTANCES if SPACED in names else ()
    with progress(len(distances) + len(set(names) - {SPACED})) as shown:
        spacings = {distance: _recorded(spaced(distance), shown) for distance in distances}
        tuned = [_recorded(fine_tune(), shown)] if TUNED in names else []
        live = {name: _live(name, shown) for name in LIVE if name in names}
    comparisons = [*spacings.values(), *tuned, *(one for parts in live.values() for one in parts.values())]
    return Bench(
        name="size",
        title="Bytes in the store after all saves, default settings, lossless",
        columns=("saved", "raw", OURS.label, "raw/stored", RUST.label, "raw/stored", "ours/theirs"),
        rows=[comparison.row() for comparison in comparisons],
        bars=[*_dense_bars(spacings), *(bar for one in tuned for bar in _tuned_bars(one)), *_live_bars(live)],
        figures={comparison.name: asdict(comparison) for comparison in comparisons},
        notes=_notes(comparisons),
    )


def _recorded(series: Series, shown: Progress) -> Comparison:
    shown.begin(series.name)
    raw = tuple(raw_bytes(path) for path in series.paths)
    comparison = Comparison(series.name, raw, store(OURS, series), store(RUST, series))
    shown.end()
    return comparison


def _live(workload: str, shown: Progress) -> dict[str, Comparison]:
    """By part of the run."""
    shown.begin(workload)
    ours, rust = (grow(peer, workload, SAVE_COUNT, LIVE_DISTANCE) for peer in (OURS, RUST))
    shown.end()
    return {
        part: Comparison(f"{workload}: {part}", grown.raw_bytes, grown.stored, rust[part].stored)
        for part, grown in ours.items()
    }


def _dense_bars(spacings: dict[int, Comparison]) -> Iterator[Bar]:
    for distance, comparison in spacings.items():
        what = f"stored bytes beside the peer's, {comparison.name}"
        yield Bar(what, comparison.beside_rust, BAR_BESIDE_RUST[distance])


def _tuned_bars(tuned: Comparison) -> Iterator[Bar]:
    ours, theirs = (stored.growth_bytes[1] for stored in (tuned.ours, tuned.rust))
    yield Bar("fine-tune on its base, stored over raw", ours / tuned.raw_bytes[1], BAR_FINE_TUNE)
    yield Bar("fine-tune on its base, beside the peer's", ours / theirs, BAR_FINE_TUNE_BESIDE_RUST)


def _live_bars(live: dict[str, dict[str, Comparison]]) -> Iterator[Bar]:
    for name in ("frozen", "lora"):
        if name not in live:
            continue
        whole, changing = live[name].values()
        beside = whole.new_bytes / changing.new_bytes
        yield Bar(f"{name}: new bytes, beside what changes saved alone", beside, BAR_UNCHANGED)
    if "embedding" in live:
        whole = live["embedding"][WHOLE]
        yield Bar("embedding: new bytes over raw", whole.new_bytes / sum(whole.raw_bytes[1:]), BAR_EMBEDDING)


def _notes(comparisons: list[Comparison]) -> list[str]:
    """What the sizes hold; and twelve saves that are kept are not to be compared with twelve of which some are gone."""
    notes = [
        "Whole directories. Each was reopened and gave back all it lists, bit for bit; of a named run, the last.",
        f"Named runs are trained live, {LIVE_DISTANCE} steps from save to save; their parts have stores of their own.",
        f"Ours holds {BALLAST_BYTES / MB:.1f} MB of ballast, which frees space on a full disk.",
    ]
    for comparison in comparisons:
        for label, stored in ((OURS.label, comparison.ours), (RUST.label, comparison.rust)):
            gone = len(comparison.raw_bytes) - len(stored.steps)
            if gone:
                notes.append(f"{label} no longer has {gone} of the saves of {comparison.name!r}.")
    return notes
