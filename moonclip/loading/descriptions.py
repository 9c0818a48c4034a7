"""What the store says of a commit without reading any tensor."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from store.errors import Corrupt, MoonclipError
from store.format.entries import TensorEntry
from store.format.objects import Commit
from store.format.values import Plain
from store.ids import CommitId
from store.repository import Repository
from store.sizes import Sizes

from ..state.policy import Policy
from ..state.values import from_plain
from .stored import full_name


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit, as listings give it.

    Attributes:
        id: full id, hex.
        step: training step, or ``None``.
        branch: branch it was committed on.
        message: what a person said of it.
        metadata: what was saved with it.
        time_ns: when it was made, nanoseconds since the epoch.
        parents: full ids, hex.
        items: names of its items.
        tags: names of tags that point at it.
        absent: names of the items whose content is not here, all of them if the commit was pruned.
    """

    id: str
    step: int | None
    branch: str
    message: str
    metadata: Mapping[str, Any]
    time_ns: int
    parents: tuple[str, ...]
    items: tuple[str, ...]
    tags: tuple[str, ...]
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """One tensor of a commit.

    Attributes:
        dtype: dtype name, ``"bfloat16"``.
        shape: its shape.
        raw_bytes: its size.
        stored_bytes: what its chunks take in packs. Chunks that other tensors or commits share count in full for
            each, the bases of delta objects count for none.
        stored_dtype: what it was cast to when it was stored, with loss; ``None`` if it is exact.
    """

    dtype: str
    shape: tuple[int, ...]
    raw_bytes: int
    stored_bytes: int
    stored_dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """A commit and its tensors.

    Attributes:
        snapshot: the commit.
        tensors: by full name, ``item::name``.
        raw_bytes: sum over the tensors.
        stored_bytes: sum over the tensors, each chunk counted once.
    """

    snapshot: Snapshot
    tensors: Mapping[str, TensorDescription]
    raw_bytes: int
    stored_bytes: int


def snapshots(repo: Repository, ids: Iterable[CommitId], policy: Policy) -> Iterator[Snapshot]:
    """Commits as listings give them, in the order of ``ids``, each read when it is asked for."""
    tags = _tags_by_commit(repo)
    for commit_id in ids:
        yield _snapshot(repo, commit_id, repo.commit(commit_id), tags, policy)


def _snapshot(
    repo: Repository, commit_id: CommitId, commit: Commit, tags: Mapping[CommitId, tuple[str, ...]], policy: Policy
) -> Snapshot:
    return Snapshot(
        id=commit_id.hex(),
        step=commit.step,
        branch=commit.branch,
        message=commit.message,
        metadata={key: readable(value, policy) for key, value in commit.metadata.items()},
        time_ns=commit.time_ns,
        parents=tuple(parent.hex() for parent in commit.parents),
        items=tuple(commit.items),
        tags=tags.get(commit_id, ()),
        absent=tuple(item for item in commit.items if repo.absences.lacks(commit_id, item)),
    )


def readable(value: Plain, policy: Policy) -> Any:
    """The value, or its stored form where the policy or a lost class forbids more: a listing must not fail for it."""
    try:
        return from_plain(value, policy)
    except MoonclipError:
        return value


def _tags_by_commit(repo: Repository) -> dict[CommitId, tuple[str, ...]]:
    """Short names of the store's tags, by the commit they point at. A listing must not fail for a damaged one."""
    tags: dict[CommitId, tuple[str, ...]] = {}
    for name in repo.refs.names("tags/"):
        with suppress(Corrupt):
            commit = repo.refs.read(name)
            if commit is not None:
                tags[commit] = (*tags.get(commit, ()), name.removeprefix("tags/"))
    return tags


def describe(repo: Repository, commit: Commit, policy: Policy) -> Description:
    """Sizes of all tensors of a commit that can be read. Reads trees and the index, no tensor.

    Raises:
        NotFound: a chunk is missing.
        Corrupt: a tree is damaged.
    """
    sizes = Sizes(repo.reader, repo.is_awaited)
    entries = {full_name(item, name): entry for item, name, entry in _tensors(repo, commit)}
    tensors = {
        name: TensorDescription(entry.dtype, entry.shape, entry.size_bytes, sizes.of(entry).stored_bytes, entry.stored)
        for name, entry in entries.items()
    }
    return Description(
        _snapshot(repo, commit.id, commit, _tags_by_commit(repo), policy),
        tensors,
        raw_bytes=sum(tensor.raw_bytes for tensor in tensors.values()),
        stored_bytes=sizes.total_bytes(entries.values()),
    )


def _tensors(repo: Repository, commit: Commit) -> Iterator[tuple[str, str, TensorEntry]]:
    for item in repo.items(commit):
        for name, entry in repo.tree(commit, item):
            if isinstance(entry, TensorEntry):
                yield item, name, entry
