"""How many bytes a base and its fine-tunes take, and how fast they go in and come out, beside copies of the files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Final

from store.limits import BALLAST_BYTES
from tools.finetunes import Family

from . import sessions
from .figures import spread
from .keepers import COPY, KEEPERS, OURS
from .peers import Peer
from .progress import Progress, progress
from .report import Bar, Bench

ALL: Final = tuple(KEEPERS)
ROUND_COUNT: Final = 3

BAR_BESIDE_BEST: Final = 0.75
"""Stored bytes, ours over those of the best peer that gives everything back bit for bit."""
BAR_IMPORT: Final = 0.3
BAR_EXPORT: Final = 0.5
"""Speed, ours over that of a copy that waits for the disk."""

MB: Final = 1_000_000

_NOTES: Final = (
    "`python -m tools.finetunes` lists the models. Medians (min–max) of processes that take turns; speeds beside",
    "cp + fsync are medians of those of each round.",
    "Everything is in the page cache, and all wait for the disk. Peak: growth of the resident size over imports.",
    f"Whole directories; ours holds {BALLAST_BYTES / MB:.1f} MB of ballast, which frees space on a full disk.",
    "Ours is not told which model comes from which. zipnn's deltas are against the first file of the same length,",
    "hexz's thin archives against the true base. hexz's one archive takes all models at once, or none.",
    "coral-ml and Rust moonclip keep tensors, no other files: theirs are compared tensor by tensor.",
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One time that a family was stored and given back.

    Attributes:
        bytes: of all its files.
        stored_bytes: size of the directory that they became.
        import_s: until they were stored, durably.
        export_s: until they were written again, durably.
        import_cpu_s: processor time of the former.
        export_cpu_s: processor time of the latter.
        peak_bytes: growth of the resident size, the larger of both.
        changed: what did not come back as it was.
    """

    bytes: int
    stored_bytes: int
    import_s: float
    export_s: float
    import_cpu_s: float
    export_cpu_s: float
    peak_bytes: int
    changed: tuple[str, ...]


@dataclass(slots=True)
class Kept:
    """What a library made of a family.

    Attributes:
        peer: the library.
        turns: one for each round.
        failure: why there is none, or not one for each.
    """

    peer: Peer
    turns: list[Turn] = field(default_factory=list)
    failure: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether all it keeps came back, bit for bit."""
        return not self.failure and not any(turn.changed for turn in self.turns)

    @property
    def stored_bytes(self) -> float:
        """Size of the directory."""
        return median(turn.stored_bytes for turn in self.turns)


def measure(family: Family, peers: Sequence[str] = ALL, round_count: int = ROUND_COUNT) -> Bench:
    """Store a family and write it out again, with one library after the other, there and back in each round."""
    models = [[member.name, str(member.path), member.base] for member in family.members]
    found = {name: Kept(KEEPERS[name]) for name in peers}
    with progress(round_count * len(peers)) as shown:
        for number in range(round_count):
            for name in peers if number % 2 == 0 else reversed(peers):
                _turn(found[name], models, shown)
    return _bench(family, {name: kept for name, kept in found.items() if kept.turns}, found)


def _turn(kept: Kept, models: list[list[str | None]], shown: Progress) -> None:
    shown.begin(kept.peer.label)
    if not kept.failure:
        try:
            kept.turns.append(_there_and_back(kept.peer, models))
        except sessions.PeerFailed as failure:
            kept.failure = str(failure)
    last = kept.turns[-1] if kept.turns else None
    shown.end(f": {last.import_s:.1f} s, and back {last.export_s:.1f} s" if last else "")


def _there_and_back(peer: Peer, models: list[list[str | None]]) -> Turn:
    with sessions.store_root() as root:
        job = {"library": peer.name, "root": str(root), "models": models}
        there = _by_name(sessions.run(peer, "keep", **job))
        back = _by_name(sessions.run(peer, "give back", folder=str(root.with_name("given")), **job))
    moves = there["moved"], back["moved"]
    return Turn(
        bytes=moves[0]["bytes"],
        stored_bytes=there["stored"]["bytes"],
        import_s=moves[0]["seconds"],
        export_s=moves[1]["seconds"],
        import_cpu_s=moves[0]["cpu_s"],
        export_cpu_s=moves[1]["cpu_s"],
        peak_bytes=max(move["peak_bytes"] for move in moves),
        changed=tuple(back["compared"]["changed"]),
    )


def _by_name(events: Sequence[sessions.Event]) -> dict[str, sessions.Event]:
    return {event["event"]: event for event in events}


# --- what is told of it -----------------------------------------------------------------------------------------------


def _bench(family: Family, kept: Mapping[str, Kept], asked: Mapping[str, Kept]) -> Bench:
    size_bytes = max((turn.bytes for each in kept.values() for turn in each.turns), default=0)
    failed = [each for each in asked.values() if each.failure]
    return Bench(
        name="family",
        title=f"A base and {len(family.tuned)} fine-tunes, {size_bytes / MB:,.0f} MB of files",
        columns=(
            "",
            "MB",
            "of the files",
            "of the best peer",
            "import s",
            "beside cp",
            "export s",
            "beside cp",
            "peak MB",
            "bit-exact",
        ),
        rows=[_cells(each, kept, size_bytes) for each in kept.values()],
        bars=list(_bars(kept)),
        figures={name: asdict(each) | {"peer": each.peer.label} for name, each in asked.items()},
        notes=[*_NOTES, *(f"{each.failure.splitlines()[0]} {each.failure.splitlines()[-1]}" for each in failed)],
    )


def _cells(each: Kept, kept: Mapping[str, Kept], size_bytes: int) -> list[str]:
    best = _best(kept)
    return [
        each.peer.label,
        f"{each.stored_bytes / MB:,.1f}",
        f"{each.stored_bytes / size_bytes:.3f}",
        "–" if best is None else f"{each.stored_bytes / best.stored_bytes:.3f}",
        spread([turn.import_s for turn in each.turns]).text(digits=1),
        _speed(each, kept, "import_s"),
        spread([turn.export_s for turn in each.turns]).text(digits=1),
        _speed(each, kept, "export_s"),
        f"{max(turn.peak_bytes for turn in each.turns) / MB:.0f}",
        "yes" if each.is_exact else "no",
    ]


def _speed(each: Kept, kept: Mapping[str, Kept], what: str) -> str:
    ratio = _beside_copy(each, kept, what)
    return "–" if ratio is None else f"{ratio:.2f}"


def _beside_copy(each: Kept, kept: Mapping[str, Kept], what: str) -> float | None:
    """Speed over that of a copy, in the middle of all rounds."""
    if (copy := kept.get(COPY.name)) is None:
        return None
    pairs = zip(copy.turns, each.turns, strict=False)  # a library that failed has fewer
    return median(float(getattr(theirs, what) / getattr(mine, what)) for theirs, mine in pairs)


def _best(kept: Mapping[str, Kept]) -> Kept | None:
    """The peer that takes least, of those that give back what they were given."""
    peers = [each for each in kept.values() if each.peer not in {OURS, COPY} and each.is_exact]
    return min(peers, key=lambda each: each.stored_bytes, default=None)


def _bars(kept: Mapping[str, Kept]) -> Iterator[Bar]:
    if (ours := kept.get(OURS.name)) is None:
        return
    if (best := _best(kept)) is not None:
        what = f"stored bytes, beside {best.peer.label}"
        yield Bar(what, ours.stored_bytes / best.stored_bytes, BAR_BESIDE_BEST)
    for what, seconds, limit in (("import", "import_s", BAR_IMPORT), ("export", "export_s", BAR_EXPORT)):
        if (ratio := _beside_copy(ours, kept, seconds)) is not None:
            yield Bar(f"{what}: speed, beside {COPY.label}", ratio, limit, at_most=False)
    yield Bar("files that came back changed", max(len(turn.changed) for turn in ours.turns), 0)
