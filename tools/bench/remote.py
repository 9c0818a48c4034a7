"""How fast a history of a gigabyte goes to a remote and back, beside a file of the same bytes without us.

Push and clone take turns with boto3's ``upload_file`` and ``download_file`` on the same server, and, for a remote in a
directory, with a copy that waits for the disk; each time in a process of its own. And what pushes of little cost.
"""

import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from tools.s3 import Account
from tools.s3.proxy import FaultProxy

from . import sessions
from .figures import spread
from .measured.clocks import descendants_cpu_s
from .peers import OURS
from .progress import Progress, progress
from .report import Bar, Bench, Grid
from .servers import AUTO, BUCKET, empty, environment, fastest, served

WORKLOAD: Final = "dense"
TARGET_BYTES: Final = 900_000_000
"""A state and two deltas take a gigabyte: one save fewer would miss that by a third."""
DISTANCE: Final = 1
"""Steps between saves."""
ROUND_COUNT: Final = 3

BAR_BESIDE_BOTO3: Final = 0.7
BAR_PEAK_MB: Final = 200
BAR_NOTHING_NEW: Final = 4
BAR_FEW_REQUESTS: Final = 12
BAR_REQUEST_BYTES: Final = 8 << 20
"""One request more for each so many bytes."""
BAR_SENT: Final = 1.05

MB: Final = 1_000_000
GB: Final = 1_000_000_000
MIB: Final = 1 << 20

PUSH, UPLOAD, CLONE, DOWNLOAD = "push", "boto3 upload_file", "clone", "boto3 download_file"
PUSH_FILES, COPY, CLONE_FILES, COPY_BACK = "push, directory", "copy + fsync", "clone, directory", "copy + fsync, back"

_BESIDE: Final = {PUSH: UPLOAD, CLONE: DOWNLOAD, PUSH_FILES: COPY, CLONE_FILES: COPY_BACK}
_NOTES: Final = (
    "Medians (min–max); ratios are medians of those of each round. CPU: processor time, ours and the server's.",
    "Peak: growth of the resident size once imports are done. A clone waits for the disk, download_file does not.",
)


@dataclass(frozen=True, slots=True)
class Move:
    """Bytes that were moved, and what that took; CPU is processor time."""

    bytes: int
    seconds: float
    cpu_s: float
    server_cpu_s: float
    peak_bytes: int

    @property
    def speed(self) -> float:
        """Megabytes a second."""
        return self.bytes / self.seconds / MB


@dataclass(frozen=True, slots=True)
class Asked:
    """What a push asked of a server, as that heard it."""

    request_count: int
    sent_bytes: int


Moves = dict[str, list[Move]]


def measure(
    server: str = AUTO,
    round_count: int = ROUND_COUNT,
    workload: str = WORKLOAD,
    target_bytes: int = TARGET_BYTES,
) -> Bench:
    """Move everything there and back, in turn.

    Raises:
        Unavailable: that server cannot be had on this machine.
        Failed: it does not start.
        PeerFailed: something was not moved.
    """
    with progress(round_count) as shown, sessions.store_root() as root:
        name, trials = fastest(shown) if server == AUTO else (server, {})
        place = _Place(root.parent)
        history = _history(place, workload, target_bytes, shown)
        with served(name) as account:
            moves = _rounds(place, account, round_count, shown)
            tuned, nothing = _small_pushes(place, account, round_count - 1)
    return Bench(
        name="remote",
        title=f"{history['save_count']} saves, {history['bytes'] / MB:,.0f} MB, to {name} on this machine and back",
        columns=("", "MB", "seconds", "MB/s", "beside the next", "CPU s/GB", "server's", "peak MB"),
        rows=[_row(what, moves) for what in moves],
        bars=[*_moving_bars(moves), *_asking_bars(tuned, nothing, history["added_bytes"])],
        figures={
            "server": name,
            "trial_seconds": trials,
            "history": history,
            "moves": {what: [asdict(move) for move in found] for what, found in moves.items()},
            "one_step": asdict(tuned),
            "nothing_new": asdict(nothing),
        },
        notes=_NOTES,
        more=[_small_grid(tuned, nothing, history["added_bytes"])],
    )


# --- what is measured -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """Where all of it lies: one file system."""

    folder: Path

    def at(self, name: str) -> str:
        return str((self.folder / name).resolve())

    def clear(self, *names: str) -> None:
        for name in names:
            path = self.folder / name
            path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)


def _history(place: _Place, workload: str, target_bytes: int, shown: Progress) -> dict[str, Any]:
    shown.begin(f"saving {workload!r}")
    sessions.run(OURS, "warm", workload=workload)
    job = {"root": place.at("store"), "file": place.at("file"), "workload": workload}
    events = sessions.run(OURS, "history", **job, target_bytes=target_bytes, distance=DISTANCE)
    shown.end()
    return next(event for event in events if event["event"] == "history")


def _rounds(place: _Place, account: Account, round_count: int, shown: Progress) -> Moves:
    found: Moves = {what: [] for pair in _BESIDE.items() for what in pair}
    for number in range(round_count):
        shown.begin(f"round {number + 1}")
        empty(account)
        jobs = _jobs(place, number)
        for ours, theirs in _BESIDE.items():
            for what in (ours, theirs) if number % 2 == 0 else (theirs, ours):
                found[what].append(_moved(account, *jobs[what]))
        place.clear("directory", "cloned", "downloaded", "cloned from directory", "copied", "copied back")
        shown.end()
    return found


def _jobs(place: _Place, number: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """What a process is told to do, by what it is called; those that write come before those that read it."""
    store, file, directory = place.at("store"), place.at("file"), place.at("directory")
    Path(directory).mkdir()
    key = {"bucket": BUCKET, "key": f"{number}/file"}
    return {
        PUSH: ("push", {"root": store, **_remote(number)}),
        UPLOAD: ("upload", {"file": file, **key}),
        CLONE: ("clone", {"url": _remote(number)["url"], "root": place.at("cloned")}),
        DOWNLOAD: ("download", {**key, "file": place.at("downloaded")}),
        PUSH_FILES: ("push", {"root": store, "remote": f"directory{number}", "url": directory}),
        COPY: ("copy", {"source": file, "target": place.at("copied")}),
        CLONE_FILES: ("clone", {"url": directory, "root": place.at("cloned from directory")}),
        COPY_BACK: ("copy", {"source": place.at("copied"), "target": place.at("copied back")}),
    }


def _remote(number: int) -> dict[str, str]:
    """The remote of a round: another one each time, so that nothing is known of it."""
    return {"remote": f"round{number}", "url": f"s3://{BUCKET}/{number}/store"}


def _moved(account: Account, do: str, facts: dict[str, Any]) -> Move:
    before_s = descendants_cpu_s()
    events = sessions.run(OURS, do, environment(account), **facts)
    (moved,) = (event for event in events if event["event"] == "moved")
    server_cpu_s = descendants_cpu_s() - before_s
    return Move(moved["bytes"], moved["seconds"], moved["cpu_s"], server_cpu_s, moved["peak_bytes"])


def _small_pushes(place: _Place, account: Account, last_round: int) -> tuple[Asked, Asked]:
    """Push one step more to what the last round left on the server, and then nothing new."""
    job = {"root": place.at("store"), **_remote(last_round), "tuned": True}
    with FaultProxy(account) as proxy:
        return _asked(proxy, job), _asked(proxy, job)


def _asked(proxy: FaultProxy, job: dict[str, Any]) -> Asked:
    proxy.forget()
    sessions.run(OURS, "push", environment(proxy.account), **job)
    return Asked(len(proxy.requests), sum(request.received_bytes for request in proxy.requests))


# --- what is told of it -----------------------------------------------------------------------------------------------


def _row(what: str, moves: Moves) -> list[str]:
    found = moves[what]
    return [
        what,
        f"{median(move.bytes for move in found) / MB:,.0f}",
        spread([move.seconds for move in found]).text(digits=1),
        spread([move.speed for move in found]).text(digits=0),
        spread(_ratios(what, moves)).text() if what in _BESIDE else "",
        f"{median(move.cpu_s / move.bytes for move in found) * GB:.1f}",
        f"{median(move.server_cpu_s / move.bytes for move in found) * GB:.1f}",
        f"{max(move.peak_bytes for move in found) / MB:.0f}",
    ]


def _ratios(ours: str, moves: Moves) -> list[float]:
    """Our speed over theirs in each round."""
    pairs = zip(moves[ours], moves[_BESIDE[ours]], strict=True)
    return [mine.speed / theirs.speed for mine, theirs in pairs]


def _moving_bars(moves: Moves) -> Iterator[Bar]:
    for ours in (PUSH, CLONE):
        yield Bar(
            f"{ours}: speed, beside {_BESIDE[ours]}", median(_ratios(ours, moves)), BAR_BESIDE_BOTO3, at_most=False
        )
    for ours in (PUSH, CLONE):
        yield Bar(f"{ours}: peak memory, MB", max(move.peak_bytes for move in moves[ours]) / MB, BAR_PEAK_MB)


def _asking_bars(tuned: Asked, nothing: Asked, added_bytes: int) -> Iterator[Bar]:
    most = BAR_FEW_REQUESTS + added_bytes // BAR_REQUEST_BYTES
    yield Bar("push of one step more: requests", tuned.request_count, most)
    yield Bar("push of one step more: bytes, over what it added here", tuned.sent_bytes / added_bytes, BAR_SENT)
    yield Bar("push of nothing new: requests", nothing.request_count, BAR_NOTHING_NEW)


def _small_grid(tuned: Asked, nothing: Asked, added_bytes: int) -> Grid:
    rows = [
        ["one step more", f"{added_bytes / MB:,.1f}", f"{tuned.sent_bytes / MB:,.1f}", f"{tuned.request_count}"],
        ["nothing new", "0", f"{nothing.sent_bytes / MB:,.1f}", f"{nothing.request_count}"],
    ]
    return Grid("Pushes to a remote that has the rest", ("", "MB added here", "MB sent", "requests"), rows)
