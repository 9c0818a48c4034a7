"""Whether two hundred saves need more memory than twenty."""

from collections.abc import Sequence
from statistics import median
from typing import Final

from . import sessions
from .peers import OURS, OVERLAP, PEERS
from .progress import progress
from .report import Bar, Bench

WORKLOAD: Final = "middle"
SAVE_COUNT: Final = 200
DEFAULT: Final = (OURS.name, OVERLAP.name)
LOOK_COUNT: Final = 10

FLAT: Final = 0.2
"""How much of the state's size summed PSS may grow. Allocators make it go up and down by some megabytes."""
ENDS: Final = 3
"""Looks of which the median counts, at the beginning and at the end."""
MB: Final = 1_000_000


def measure(peers: Sequence[str], save_count: int = SAVE_COUNT, workload: str = WORKLOAD) -> Bench:
    """Save again and again, and look at the summed PSS of the process tree after every so many saves."""
    sessions.run(OURS, "warm", workload=workload)
    looks: dict[str, list[int]] = {}
    state_bytes = 0
    with progress(len(peers)) as shown:
        for name in peers:
            shown.begin(f"{save_count} saves: {PEERS[name].label}")
            job = {"library": name, "workload": workload, "count": save_count, "every": save_count // LOOK_COUNT}
            with sessions.store_root() as root:
                events = sessions.run(PEERS[name], "last", root=str(root), **job)
            state_bytes = next(event["bytes"] for event in events if event["event"] == "state")
            looks[name] = [event["pss_bytes"] for event in events if event["event"] == "memory"]
            shown.end()
    return _bench(state_bytes, save_count, looks)


def _bench(state_bytes: int, save_count: int, looks: dict[str, list[int]]) -> Bench:
    every = save_count // LOOK_COUNT
    return Bench(
        name="memory",
        title=f"Summed PSS over {save_count} saves of {state_bytes / MB:.0f} MB of state, MB, all saves being durable",
        columns=("after saves", *(f"{every * (position + 1)}" for position in range(LOOK_COUNT))),
        rows=[[PEERS[name].label, *(f"{look / MB:.0f}" for look in found)] for name, found in looks.items()],
        bars=[
            Bar(f"{PEERS[name].label}: growth, over the state", _growth_bytes(found) / state_bytes, FLAT)
            for name, found in looks.items()
            if PEERS[name].label.startswith(OURS.label)
        ],
        figures={"state_bytes": state_bytes, "pss_bytes": looks},
    )


def _growth_bytes(looks: Sequence[int]) -> float:
    return median(looks[-ENDS:]) - median(looks[:ENDS])
