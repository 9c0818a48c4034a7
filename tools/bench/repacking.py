"""What repacking makes of a base model, ten fine-tunes of it and three branches of twenty commits.

Fine-tunes are saved as runs of their own, as by people who got the base from elsewhere: the store is not told that they
have anything to do with it. Branches begin at the base's commit.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

from moonclip import CheckpointManager

from . import sessions
from .measured.series import directory_bytes
from .progress import Progress, progress
from .report import Bar, Bench
from .workloads.forest import Forest, forest
from .workloads.recorded import load
from .workloads.run import Held, tensors

BAR_SIZE: Final = 0.9
BAR_RESTORE: Final = 1.1
LOAD_COUNT: Final = 15
"""Loads of each kind, by turns."""
MB: Final = 1_000_000
MS: Final = 0.001

DTYPES: Final = {"bf16 weights": torch.bfloat16, "fp32 weights": torch.float32}


@dataclass(frozen=True, slots=True)
class Repacked:
    """What was measured.

    Attributes:
        raw_bytes: of all commits.
        saved_bytes: all packs, as saving left them.
        small_bytes: the same after repacking for size.
        chain_s: how long loading a branch's tip took then.
        tip_s: and after repacking to restore.
        full_s: and from a store that has nothing else.
    """

    raw_bytes: int
    saved_bytes: int
    small_bytes: int
    chain_s: float
    tip_s: float
    full_s: float


def measure() -> Bench:
    """Save, repack for size, repack to restore, for each dtype."""
    recorded = forest()
    with progress(len(DTYPES)) as shown:
        found = {name: _measured(recorded, name, dtype, shown) for name, dtype in DTYPES.items()}
    return Bench(
        name="repack",
        title="A base, 10 fine-tunes and 3 branches of 20 commits, before and after `repack`",
        columns=(
            "saved",
            "raw MB",
            "stored MB",
            "for size MB",
            "of before",
            "tip then ms",
            "to restore ms",
            "full save ms",
        ),
        rows=[_row(name, one) for name, one in found.items()],
        bars=[bar for name, one in found.items() for bar in _bars(name, one)],
        figures={name: asdict(one) for name, one in found.items()},
        notes=("Loads: medians, into live tensors, by turns, everything in the page cache.",),
    )


def _measured(recorded: Forest, name: str, dtype: torch.dtype, shown: Progress) -> Repacked:
    shown.begin(name)
    with sessions.store_root() as root, sessions.store_root() as alone:
        raw_bytes = sum(_save(root, recorded, dtype))
        saved_bytes = directory_bytes(root / "packs")
        _repack(root, "size")
        small_bytes = directory_bytes(root / "packs")
        tip = _weights(recorded.branches[0][-1], dtype)
        with CheckpointManager(alone) as manager:
            manager.save(step=0, model=Held(tip)).result()
        chain_s, _ = _loads(root, alone, tip)
        _repack(root, "restore")
        tip_s, full_s = _loads(root, alone, tip)
    shown.end()
    return Repacked(raw_bytes, saved_bytes, small_bytes, chain_s, tip_s, full_s)


def _save(root: Path, recorded: Forest, dtype: torch.dtype) -> Iterator[int]:
    """Save all of it, and tell how many bytes each commit has."""
    yield _saved(root, "main", 0, recorded.base, dtype)
    for number, path in enumerate(recorded.tunes):
        yield _saved(root, f"tune-{number}", 1, path, dtype)
    for number, paths in enumerate(recorded.branches):
        with CheckpointManager(root) as manager:
            manager.branch(f"branch-{number}", "main")
        for step, path in enumerate(paths, start=1):
            yield _saved(root, f"branch-{number}", step, path, dtype)


def _saved(root: Path, branch: str, step: int, path: Path, dtype: torch.dtype) -> int:
    weights = _weights(path, dtype)
    with CheckpointManager(root, branch=branch) as manager:
        manager.save(step=step, model=Held(weights)).result()
    return sum(tensor.nbytes for tensor in tensors(weights))


def _weights(path: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {name: tensor.to(dtype) for name, tensor in load(path).items()}


def _repack(root: Path, goal: Any) -> None:
    with CheckpointManager(root) as manager:
        manager.repack(goal)
        if faults := manager.fsck(full=True).findings:
            raise RuntimeError(f"after repacking for {goal}: {faults}")


def _loads(root: Path, alone: Path, tip: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Seconds to load the first branch's tip, and the same from a store of its own."""
    target = {name: torch.empty_like(tensor) for name, tensor in tip.items()}
    taken: dict[Path, list[float]] = {root: [], alone: []}
    with CheckpointManager(root) as among, CheckpointManager(alone) as single:
        for _ in range(LOAD_COUNT):
            for place, manager, revision in ((root, among, "branch-0"), (alone, single, "main")):
                began = time.perf_counter()
                manager.load(revision, model=target)
                taken[place].append(time.perf_counter() - began)
                if not all(torch.equal(target[name], tensor) for name, tensor in tip.items()):
                    raise RuntimeError(f"{place}: not what was saved")
    return median(taken[root]), median(taken[alone])


def _row(name: str, one: Repacked) -> list[str]:
    sizes = [f"{size_bytes / MB:,.0f}" for size_bytes in (one.raw_bytes, one.saved_bytes, one.small_bytes)]
    times = [f"{seconds / MS:.0f}" for seconds in (one.chain_s, one.tip_s, one.full_s)]
    return [name, *sizes, f"{one.small_bytes / one.saved_bytes:.3f}", *times]


def _bars(name: str, one: Repacked) -> Iterator[Bar]:
    yield Bar(f"{name}: repacked for size, beside the size before", one.small_bytes / one.saved_bytes, BAR_SIZE)
    yield Bar(f"{name}: a tip repacked to restore, beside a full save's load", one.tip_s / one.full_s, BAR_RESTORE)
