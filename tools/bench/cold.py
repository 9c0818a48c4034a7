"""The first saves of a process on a machine where the kernels were never compiled."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Final

from .figures import percentile, spread
from .peers import OURS, PREWARMED, RUST
from .report import Bar, Bench
from .rows import Row
from .save import MS, by_turns
from .savebars import STEP_BESIDE_RUST

DEFAULT: Final = (OURS.name, PREWARMED.name, RUST.name)

FIRST_OVER_LATER_S: Final = 0.050
NEW_MEMORY_BYTES_PER_S: Final = 2_000_000_000
"""How fast memory has to be got that was not got ready."""

_NOTES: Final = (
    "Medians (min–max). Compiling goes on for long after the first save, so all steps of a session count.",
    "prewarmed: memory was got ready before the first step, as resuming from a commit does by itself.",
)


def measure(workload: str, peers: Sequence[str], round_count: int) -> Bench:
    """As ``save.measure``, each session with a kernel cache of its own that is empty; nothing was compiled before."""
    rows = {name: row for name, row in by_turns(workload, peers, round_count, is_cold=True).items() if row.blocked_s}
    return Bench(
        name=f"cold-{workload}",
        title=f"Saving {workload!r} with nothing compiled, milliseconds",
        columns=("", "first blocked", "second", "later", "all steps, p50/p99", "beside the first two"),
        rows=[_cells(row) for row in rows.values()],
        bars=list(_bars(rows)),
        figures={name: asdict(row) | {"peer": row.peer.label} for name, row in rows.items()},
        notes=_NOTES,
    )


def _cells(row: Row) -> list[str]:
    steps_s = _all_steps(row)
    return [
        row.peer.label,
        spread(row.first_blocked_s[::2]).text(MS, 0),
        spread(row.first_blocked_s[1::2]).text(MS, 0),
        spread(row.blocked_s).text(MS, 0),
        f"{median(steps_s) / MS:.0f} / {percentile(steps_s, 0.99) / MS:.0f}",
        f"{median(row.first_beside_s) / MS:.0f} / {percentile(row.first_beside_s, 0.99) / MS:.0f}",
    ]


def _bars(rows: Mapping[str, Row]) -> Iterator[Bar]:
    for name in (OURS.name, PREWARMED.name):
        if (ours := rows.get(name)) is None:
            continue
        new_memory_s = ours.state_bytes / NEW_MEMORY_BYTES_PER_S if name == OURS.name else 0.0
        over_s = median(ours.first_blocked_s[::2]) - median(ours.blocked_s)
        yield Bar(f"{ours.peer.label}: first save over later ones, s", over_s, FIRST_OVER_LATER_S + new_memory_s)
        if (rust := rows.get(RUST.name)) is not None:
            beside = percentile(_all_steps(ours), 0.99) / percentile(rust.first_beside_s + rust.beside_s, 0.99)
            yield Bar(f"{ours.peer.label}: p99 of all steps, beside Rust's beside a save", beside, STEP_BESIDE_RUST)


def _all_steps(row: Row) -> list[float]:
    return row.steps_s + row.first_beside_s + row.beside_s
