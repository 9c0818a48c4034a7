"""What saves cost a training run: blocked time, time until durable, slower steps, processor time, memory and bytes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from store import kernels

from . import sessions
from .figures import percentile, spread
from .peers import (
    COPY,
    DCP,
    OURS,
    OURS_BF16,
    OURS_DCP,
    OVERLAP,
    PEERS,
    RUST,
    RUST_BF16,
    SAFETENSORS,
    TORCH,
    TORCH_CHECKPOINTING,
)
from .plots import Panel
from .progress import Progress, progress
from .report import Bar, Bench, Grid
from .rows import Row
from .savebars import dense_bars, tiny_bars

ALL: Final = tuple(
    peer.name
    for peer in (
        COPY,
        OURS,
        OVERLAP,
        OURS_BF16,
        OURS_DCP,
        RUST,
        RUST_BF16,
        TORCH,
        SAFETENSORS,
        TORCH_CHECKPOINTING,
        DCP,
    )
)

FEW: Final = tuple(peer.name for peer in (COPY, OURS, OVERLAP, RUST, TORCH))
"""Those that bars name."""

_CAPTURED_COUNT: Final = 3
"""Saves beside which nothing is stored, so that capturing shows by itself."""

GB: Final = 1_000_000_000
MB: Final = 1_000_000
MS: Final = 0.001

_NOTES: Final = (
    "Medians (min–max). Each library works in processes of its own, by turns, beside the same run from the same state.",
    "blocked: until save() returned, from the third save on; the first two of each process apart.",
    "held: how long its locks and hooks kept the next optimizer step waiting, milliseconds as well.",
    "extra: time of all steps until a save was durable, blocked time included, less as many undisturbed steps.",
    "durable: save, then wait, nothing else running. CPU: for such a save, of the process and all that it started.",
    "peak: growth of the process's peak resident size over training alone, in units of the state. PSS: the same of all",
    "that its process tree has together, where pages that several share count once.",
    "load: into live tensors in another process, all files in the page cache; first: with opening and importing.",
)


def measure(workload: str, peers: Sequence[str], round_count: int) -> Bench:
    """Measure libraries by turns.

    Args:
        workload: name of the run.
        peers: names of the libraries.
        round_count: sessions of each.
    """
    rows = by_turns(workload, peers, round_count)
    return _bench(workload, rows, is_complete=workload == "dense" and set(peers) >= set(ALL))


def by_turns(workload: str, peers: Sequence[str], round_count: int, *, is_cold: bool = False) -> dict[str, Row]:
    """All sessions of all libraries: A B C A B C …; with ``is_cold``, none of them finds compiled kernels."""
    kernels.warm()
    sessions.run(OURS, "warm", workload=workload)
    rows = {name: Row(PEERS[name]) for name in peers}
    with progress(round_count * len(rows)) as shown:
        for _ in range(round_count):
            for row in rows.values():
                _session(row, workload, shown, is_cold=is_cold)
    return rows


def _session(row: Row, workload: str, shown: Progress, *, is_cold: bool) -> None:
    """One process that saves, and another that loads what it saved last."""
    shown.begin(f"{workload}: {row.peer.label}")
    job = {"library": row.peer.name, "workload": workload}
    captured_count = _CAPTURED_COUNT if row.peer is OVERLAP else 0  # others may wait for what they started
    try:
        with sessions.store_root() as root, TemporaryDirectory() as cache:
            environment = {"MOONCLIP_CACHE": cache} if is_cold else {}
            events = sessions.run(row.peer, "save", environment, root=str(root), captured=captured_count, **job)
            if row.peer is not COPY:
                step = next(event["step"] for event in events if event["event"] == "last")
                events += sessions.run(row.peer, "load", root=str(root), step=step, again=2, **job)
        row.take(events)
    except sessions.PeerFailed as failure:
        row.failure = str(failure)
    shown.end(f": blocked {row.blocked_s[-1] / MS:.0f} ms, durable {row.durable_s[-1]:.2f} s" if row.blocked_s else "")


def _bench(workload: str, rows: Mapping[str, Row], *, is_complete: bool) -> Bench:
    found = [row for row in rows.values() if row.blocked_s]
    failed = [row for row in rows.values() if row.failure]
    bars = tiny_bars(rows) if workload == "tiny" else dense_bars(rows)
    return Bench(
        name=f"save-{workload}",
        title=f"Saving {workload!r}, {max((row.state_bytes for row in found), default=0) / MB:,.0f} MB of state",
        columns=(
            "",
            "blocked ms",
            "first two",
            "then held",
            "extra s",
            "durable s",
            "step ms, p50/p99",
            "beside a save",
        ),
        rows=[_time_cells(row) for row in found],
        more=[_other(found)],
        bars=[*bars, Bar("libraries that failed", len(failed), 0)],
        figures={row.peer.name: asdict(row) | {"peer": row.peer.label} for row in rows.values()},
        notes=[*_NOTES, *(f"{row.failure.splitlines()[0]} {row.failure.splitlines()[-1]}" for row in failed)],
        panels=_panels(found) if is_complete else (),
    )


def _time_cells(row: Row) -> list[str]:
    return [
        row.peer.label,
        spread(row.blocked_s).text(MS, 0),
        spread(row.first_blocked_s).text(MS, 0),
        spread(row.held_s).text(MS, 0),
        spread(row.extra_s).text(),
        spread(row.durable_s).text(),
        _steps(row.steps_s),
        _steps(row.beside_s),
    ]


def _steps(steps_s: Sequence[float]) -> str:
    return f"{median(steps_s) / MS:.0f} / {percentile(steps_s, 0.99) / MS:.0f}"


def _other(rows: Iterable[Row]) -> Grid:
    columns = ("", "CPU s/GB", "peak +", "PSS +", "MB a save", "load s", "first", "bit-exact")
    return Grid("", columns, [_other_cells(row) for row in rows])


def _other_cells(row: Row) -> list[str]:
    return [
        row.peer.label,
        spread(row.cpu_s).text(row.state_bytes / GB),
        f"{median(row.peak_bytes) / row.state_bytes:.2f} ×",
        f"{median(row.pss_bytes) / row.state_bytes:.2f} ×",
        spread(row.stored_bytes).text(MB, 0),
        spread(row.load_s).text() if row.load_s else "–",
        spread(row.first_load_s).text() if row.first_load_s else "–",
        "–" if not row.is_same else "yes" if all(row.is_same) else "no",
    ]


def _panels(rows: Sequence[Row]) -> list[Panel]:
    """What the documentation shows."""
    return [
        Panel("training blocked, s", {row.peer.label: spread(row.blocked_s) for row in rows}),
        Panel("extra training time a save, s", {row.peer.label: spread(row.extra_s) for row in rows}),
        Panel("until durable on idle cores, s", {row.peer.label: spread(row.durable_s) for row in rows}),
        Panel("processor time a save, s", {row.peer.label: spread(row.cpu_s) for row in rows}),
    ]
