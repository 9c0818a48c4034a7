"""What tests of pruning share."""

from collections.abc import Iterable

from store.ids import CommitId
from store.repository import Repository
from store.upkeep.prune import Pruner
from store.upkeep.retention import Keep


def prune(repo: Repository, keep: Keep, *branches: str) -> list[CommitId]:
    """Apply a policy; what it dropped, the earliest arrival first."""
    pruner = Pruner(repo)
    return [drop.row.id for drop in pruner.apply(pruner.by_policy(keep, branches))]


def is_pruned(repo: Repository, commits: Iterable[CommitId]) -> list[bool]:
    """Which commits were dropped as a whole."""
    return [repo.absences.reason(commit) is not None for commit in commits]


def age_reflogs(repo: Repository, age_ns: int) -> None:
    """Make all lines of all reflogs older."""
    for path in (repo.layout.root / "logs").rglob("*"):
        if path.is_file():
            lines = [line.split(b" ", 3) for line in path.read_bytes().splitlines(keepends=True)]
            path.write_bytes(b"".join(b" ".join([*ids, b"%d" % (int(at) - age_ns), said]) for *ids, at, said in lines))
