"""Ranks as processes of their own, for tests of what they do together."""

import os
from contextlib import ExitStack
from pathlib import Path

from store.fsck import fsck
from store.repository import Repository
from tests import preloaded

ROOT = Path(__file__).parents[1]


def launch(
    script: str, directory: Path, world_size: int, *arguments: str, **environment: str
) -> tuple[list[int], list[str]]:
    """Run a script of ``tests/distributed`` in all ranks, and wait for them.

    Args:
        script: its name. It is told the directory, its rank, how many there are, and the arguments.
        directory: where they meet.
        world_size: how many ranks.
        arguments: what else it is told.
        environment: what is set beside what is set here.

    Returns:
        Exit codes and output of all ranks.
    """
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    program = ["-W", "ignore", str(ROOT / "tests" / "distributed" / script), str(directory)]
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                preloaded.start(
                    *program,
                    str(rank),
                    str(world_size),
                    *arguments,
                    environment=settings,
                    number=rank,
                    are_errors_told=True,
                )
            )
            for rank in range(world_size)
        ]
        told = [rank.communicate(timeout=300)[0] for rank in ranks]
        return [rank.wait() for rank in ranks], told


def require_done(script: str, directory: Path, world_size: int, *arguments: str) -> None:
    """Run a script as :func:`launch` does, whose last word in every rank has to be ``done``."""
    codes, told = launch(script, directory, world_size, *arguments)
    assert codes == [0] * world_size, "\n".join(told)
    assert all(text.rstrip().endswith("done") for text in told)


def require_whole(root: Path) -> None:
    """A store is sound, and nothing is left in it of saves that ended: no part, and no lease."""
    with Repository.open(root) as repo:
        assert fsck(repo, full=True).findings == []
        leases = [path for path in repo.layout.writers.iterdir() if not path.name.startswith("branches~")]
        assert list(repo.layout.parts.iterdir()) == leases == []
