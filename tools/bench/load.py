"""How long loads into live tensors take: of a save that needs no other, and of one at the end of a chain of deltas."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from store import kernels

from . import sessions
from .figures import spread
from .peers import DCP, OURS, PEERS, RUST, RUST_BF16, SAFETENSORS, TORCH, TORCH_CHECKPOINTING, Peer
from .plots import Panel
from .progress import Progress, progress
from .report import Bar, Bench

ALL: Final = tuple(peer.name for peer in (OURS, RUST, RUST_BF16, TORCH, SAFETENSORS, TORCH_CHECKPOINTING, DCP))

FULL_BESIDE_RUST: Final = 0.2
FULL_BESIDE_TORCH: Final = 1.2
CHAINED_BESIDE_RUST: Final = 0.45

AGAIN: Final = 3
"""Loads after the first, in each process."""


@dataclass(slots=True)
class Loads:
    """Loads of one save by one library.

    Attributes:
        step: the save.
        digest: of what was saved.
        first_s: seconds in a fresh process, opening and importing included.
        again_s: seconds in the same process later.
        cpu_s: processor seconds of the latter.
        is_same: whether what came was what was saved, bit for bit.
    """

    step: int
    digest: str
    first_s: list[float] = field(default_factory=list)
    again_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    is_same: list[bool] = field(default_factory=list)

    def take(self, events: Iterable[sessions.Event]) -> None:
        """Add what one process told."""
        for event in events:
            if event["event"] == "loaded":
                self.is_same.append(event["digest"] == self.digest)
                if event["first"]:
                    self.first_s.append(event["seconds"])
                else:
                    self.again_s.append(event["seconds"])
                    self.cpu_s.append(event["cpu_s"])


@dataclass(slots=True)
class Store:
    """A library's saves: the one that needs no other, and the last of a chain."""

    peer: Peer
    root: Path
    full: Loads
    chained: Loads


def measure(workload: str, peers: Sequence[str], round_count: int) -> Bench:
    """Load by turns; see ``save.measure`` for the arguments."""
    kernels.warm()
    sessions.run(OURS, "warm", workload=workload)
    with ExitStack() as stack, progress(len(peers) * (1 + 2 * round_count)) as shown:
        roots = {name: stack.enter_context(sessions.store_root()) for name in peers}
        stores = [_stored(PEERS[name], root, workload, shown) for name, root in roots.items()]
        for _ in range(round_count):
            for store in stores:
                _load(store, workload, shown)
    return _bench(workload, stores, is_complete=workload == "dense" and set(peers) >= set(ALL))


def _stored(peer: Peer, root: Path, workload: str, shown: Progress) -> Store:
    shown.begin(f"storing: {peer.label}")
    events = sessions.run(peer, "chain", library=peer.name, root=str(root), workload=workload)
    saves = [Loads(event["step"], event["digest"]) for event in events]
    shown.end()
    return Store(peer, root, saves[0], saves[-1])


def _load(store: Store, workload: str, shown: Progress) -> None:
    """Both saves, each in a process of its own."""
    job = {"library": store.peer.name, "root": str(store.root), "workload": workload, "again": AGAIN}
    for loads in (store.full, store.chained):
        shown.begin(f"loading: {store.peer.label}")
        loads.take(sessions.run(store.peer, "load", step=loads.step, **job))
        shown.end(f": {loads.again_s[-1]:.2f} s")


def _bench(workload: str, stores: Sequence[Store], *, is_complete: bool) -> Bench:
    return Bench(
        name=f"load-{workload}",
        title=f"Loading {workload!r} into live tensors, seconds",
        columns=("", "full", "first", "CPU s", "end of a chain", "first", "CPU s", "bit-exact"),
        rows=[_cells(store) for store in stores],
        bars=list(_bars({store.peer.name: store for store in stores})),
        figures={
            store.peer.name: {"peer": store.peer.label, "full": asdict(store.full), "chained": asdict(store.chained)}
            for store in stores
        },
        notes=NOTES,
        panels=_panels(stores) if is_complete else (),
    )


def _panels(stores: Sequence[Store]) -> list[Panel]:
    """What the documentation shows."""
    return [
        Panel("loading a full save, s", {store.peer.label: spread(store.full.again_s) for store in stores}),
        Panel("loading the end of a chain, s", {store.peer.label: spread(store.chained.again_s) for store in stores}),
    ]


NOTES: Final = (
    "Medians (min–max). Everything is in the page cache. first: in a fresh process, with opening and importing.",
    "CPU: of the process and all it started, for a load that is not the first.",
    "full: a save that needs no other. end of a chain: the last of six saves, five steps apart, deltas or not.",
)


def _cells(store: Store) -> list[str]:
    cells = [store.peer.label]
    for loads in (store.full, store.chained):
        cells += [spread(loads.again_s).text(), spread(loads.first_s).text(), f"{median(loads.cpu_s):.2f}"]
    return [*cells, "yes" if all(store.full.is_same + store.chained.is_same) else "no"]


def _bars(stores: dict[str, Store]) -> Iterable[Bar]:
    ours, rust, torch = (stores.get(peer.name) for peer in (OURS, RUST, TORCH))
    if ours is None:
        return
    if rust is not None:
        beside = median(ours.full.again_s) / median(rust.full.again_s)
        yield Bar("full, beside Rust", beside, FULL_BESIDE_RUST)
        beside = median(ours.chained.again_s) / median(rust.chained.again_s)
        yield Bar("end of a chain, beside Rust", beside, CHAINED_BESIDE_RUST)
    if torch is not None:
        beside = median(ours.full.again_s) / median(torch.full.again_s)
        yield Bar("full, beside torch.load + load_state_dict", beside, FULL_BESIDE_TORCH)
    changed = sum(not same for same in ours.full.is_same + ours.chained.is_same)
    yield Bar("loads of something else than was saved", changed, 0)
