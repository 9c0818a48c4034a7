"""What libraries make of recorded series, and of runs that are trained live."""

from dataclasses import dataclass

from . import sessions
from .peers import OURS, Peer
from .workloads.recorded import Series


@dataclass(frozen=True, slots=True)
class Stored:
    """What a library made of a series.

    Attributes:
        growth_bytes: how much its directory grew with each save.
        steps: what it lists and, after reopening, loaded bit for bit.
    """

    growth_bytes: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def total_bytes(self) -> int:
        """Size of the directory in the end."""
        return sum(self.growth_bytes)


def store(peer: Peer, series: Series) -> Stored:
    """Save a series with a library's settings into a new store, reopen it and load everything back.

    Raises:
        PeerFailed: the library failed, or gave back something else than was saved.
    """
    paths = [str(path) for path in series.paths]
    with sessions.store_root() as root:
        events = sessions.run(peer, "series", library=peer.name, root=str(root), paths=paths)
    (said,) = (event for event in events if event["event"] == "stored")
    return Stored(tuple(said["growth_bytes"]), tuple(said["steps"]))


@dataclass(frozen=True, slots=True)
class Grown:
    """What a library made of a run that was trained live.

    Attributes:
        raw_bytes: of each save.
        stored: what it took.
    """

    raw_bytes: tuple[int, ...]
    stored: Stored


def grow(peer: Peer, workload: str, save_count: int, distance: int) -> dict[str, Grown]:
    """Save a run live.

    Args:
        peer: the library.
        workload: name of the run.
        save_count: how often.
        distance: steps between saves.

    Returns:
        By part of the run, each in a store of its own; the whole first, as ``workloads.run.WHOLE``.

    Raises:
        PeerFailed: the library failed, or the last save came back changed.
    """
    sessions.run(OURS, "warm", workload=workload)
    job = {"library": peer.name, "workload": workload, "count": save_count, "distance": distance}
    with sessions.store_root() as root:
        events = sessions.run(peer, "grow", root=str(root), **job)
    if not all(event["is_same"] for event in events if event["event"] == "last"):
        raise sessions.PeerFailed(f"{peer.label} gave back something else than was saved of {workload!r}")
    return {
        event["what"]: Grown(tuple(event["raw_bytes"]), Stored(tuple(event["growth_bytes"]), tuple(event["steps"])))
        for event in events
        if event["event"] == "grown"
    }
