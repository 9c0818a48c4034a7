"""What it costs several ranks to save together, beside one process that saves the same state."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Final

from store import kernels

from . import sessions
from .figures import spread
from .peers import OURS
from .progress import Progress, progress
from .report import Bar, Bench

WORLD_SIZE: Final = 4
STATE_BYTES: Final = 800_000_000
SAVE_COUNT: Final = 5
ROUND_COUNT: Final = 2

_FIRST_COUNT: Final = 2
"""Saves that are not counted: they get memory, and the first is stored in full."""

BAR_WALL: Final = 1.15
BAR_BLOCKED: Final = 1.25
MB: Final = 1_000_000
MS: Final = 0.001

_NOTES: Final = (
    "Medians (min–max) of saves from the third on, one step apart. Ranks begin together; the slowest one counts.",
    "bare copy: the same bytes by one thread of each rank, all at once, into warm memory.",
)


@dataclass(slots=True)
class Saves:
    """Seconds, a figure a save, of the slowest rank."""

    blocked_s: list[float]
    committed_s: list[float]
    copied_s: list[float]


def measure(
    round_count: int = ROUND_COUNT,
    world_size: int = WORLD_SIZE,
    state_bytes: int = STATE_BYTES,
    save_count: int = SAVE_COUNT,
) -> Bench:
    """Save by one process and by ranks, in turns.

    Raises:
        PeerFailed: a process ended with an error.
    """
    kernels.warm()
    found = {count: Saves([], [], []) for count in (1, world_size)}
    with progress(round_count * len(found)) as shown:
        for _ in range(round_count):
            for count, saves in found.items():
                _session(count, saves, state_bytes, save_count, shown)
    alone, together = found[1], found[world_size]
    return Bench(
        name="ranks",
        title=f"Saving {state_bytes / MB:,.0f} MB, by one process and by ranks that hold a part each",
        columns=("ranks", "blocked ms", "bare copy ms", "committed s"),
        rows=[_row(count, saves) for count, saves in found.items()],
        bars=[
            Bar("until committed, beside one process", _beside(together.committed_s, alone.committed_s), BAR_WALL),
            Bar("blocked, beside a bare copy", _beside(together.blocked_s, together.copied_s), BAR_BLOCKED),
        ],
        figures={str(count): asdict(saves) for count, saves in found.items()},
        notes=_NOTES,
    )


def _session(count: int, saves: Saves, state_bytes: int, save_count: int, shown: Progress) -> None:
    shown.begin(f"{count} rank{'s' if count > 1 else ''}")
    with sessions.store_root() as root:
        events = sessions.run(
            OURS, "ranks", root=str(root), world_size=count, state_bytes=state_bytes, save_count=save_count
        )
    for number in range(_FIRST_COUNT, save_count):
        saves.blocked_s.append(_slowest(events, "saved", number, "blocked_s"))
        saves.committed_s.append(_slowest(events, "saved", number, "committed_s"))
        saves.copied_s.append(_slowest(events, "copied", number, "seconds"))
    shown.end(f": committed in {saves.committed_s[-1]:.2f} s")


def _slowest(events: Sequence[sessions.Event], what: str, number: int, figure: str) -> float:
    found: list[float] = [event[figure] for event in events if event["event"] == what and event["number"] == number]
    return max(found)


def _beside(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return median(ours) / median(theirs)


def _row(count: int, saves: Saves) -> list[str]:
    return [
        f"{count}",
        spread(saves.blocked_s).text(MS, 0),
        spread(saves.copied_s).text(MS, 0),
        spread(saves.committed_s).text(),
    ]
