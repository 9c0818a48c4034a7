"""From a source to commits: those that are not in the store yet, one after the other, each read back.

What was migrated is told by the commits themselves, so that a run that was cut off goes on where it was.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from store.beside.files import ITEM
from store.errors import Incompatible
from store.format.values import Plain
from store.history.walks import first_parents
from store.ids import CommitId
from store.repository import Repository

from ..saving.binding import open_or_make
from ..saving.branches import tip_of
from ..state.policy import SAFE
from ..state.values import plain_metadata
from .committing import commit
from .source import Found, Loaded, Source

KEY: Final = "migrated"
"""Of the metadata that tells where a commit came from."""


@dataclass(frozen=True, slots=True)
class Step:
    """One checkpoint of the source.

    Attributes:
        found: the checkpoint.
        commit: what it became; ``None`` if it is yet to be migrated.
    """

    found: Found
    commit: CommitId | None


def plan(source: Source, place: Path, repo: Repository | None, branch: str) -> list[Step]:
    """The checkpoints of a source, and which of them a branch has already.

    Args:
        source: where they are.
        place: its path, which commits tell of.
        repo: the store, if there is one.
        branch: short name.
    """
    done = {} if repo is None else dict(_migrated(repo, branch, str(place.resolve())))
    return [Step(found, done.get(found.name)) for found in source.found()]


def migrate(source: Source, place: Path, root: Path, branch: str, steps: Sequence[Step]) -> Iterator[Step]:
    """Commit what a plan says is yet to be migrated, and give each once it is committed: it was read back by then.

    Args:
        source: where the checkpoints are.
        place: its path.
        root: the store's directory; made if there is none.
        branch: short name of the branch, made if there is none.
        steps: the plan.

    Raises:
        Unsafe: reading a checkpoint would run code.
        Incompatible: one is of a form that cannot be migrated.
        Corrupt: one is damaged, or what was read back differs.
        Conflict: the branch was moved meanwhile.
        ReadOnly: the store cannot be written from here.
        OSError: the source cannot be read, or the store not written.

    Memory: the largest checkpoint, and its largest tensor twice.
    """
    with open_or_make(root, branch, None) as repo:
        for step in steps:
            if step.commit is None:
                loaded = source.load(step.found)
                metadata = plain_metadata({**loaded.metadata, KEY: _origin(source, place, step.found)}, SAFE)
                yield Step(step.found, commit(repo, branch, _items(loaded), step.found.step, metadata))


def _migrated(repo: Repository, branch: str, place: str) -> Iterator[tuple[str, CommitId]]:
    """Names of the checkpoints of a place that a branch has."""
    tip = tip_of(repo, branch)
    for row in first_parents(repo.lookup, tip) if tip is not None else ():
        origin: Plain = repo.commit(row.id).metadata.get(KEY)
        if isinstance(origin, dict) and origin.get("source") == place and isinstance(name := origin.get("name"), str):
            yield name, row.id


def _items(loaded: Loaded) -> dict[str, Any]:
    if not loaded.files:
        return loaded.items
    if ITEM in loaded.items:
        raise Incompatible(f"an item {ITEM!r} and files beside it cannot both be kept", item=ITEM)
    return {**loaded.items, ITEM: {path: source.read_bytes() for path, source in loaded.files.items()}}


def _origin(source: Source, place: Path, found: Found) -> dict[str, Plain]:
    return {"kind": source.kind, "source": str(place.resolve()), "name": found.name, "time_ns": found.time_ns}
