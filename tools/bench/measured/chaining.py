"""Makes a store with a save that needs no other, and one at the end of a chain of deltas."""

from pathlib import Path
from typing import Final

from ..peers.libraries import adapter
from ..workloads import warmed_up
from .digests import digest
from .telling import tell

CHAIN_SAVES: Final = 6
"""The first, then enough for chains to be as long as they get."""
_STEPS_BETWEEN: Final = 5


def chain(library: str, root: str, workload: str) -> None:
    """Save again and again; a library that keeps no deltas saves only first and last."""
    run = warmed_up(workload)
    opened = adapter(library)(Path(root))
    for number in range(1, CHAIN_SAVES + 1):
        run.step(_STEPS_BETWEEN)
        if number in {1, CHAIN_SAVES} or opened.keeps_deltas:
            opened.save(number, run.items)()
            tell("saved", step=number, digest=digest(run.items))
    opened.close()
