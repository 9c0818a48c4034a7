"""What torch's distributed checkpointing reads from."""

import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader as TorchReader
from torch.futures import Future

from store.boxes import Box
from store.errors import Conflict, Incompatible, NotFound
from store.format.entries import TensorEntry
from store.format.objects import Commit
from store.ids import CommitId, short
from store.naming.listed import listed
from store.naming.refnames import tag_name
from store.repository import Repository

from ..loading.reading import LocalRead, read_local
from ..sharding.layouts import Part
from ..state.policy import Policy
from ..state.tensors import mark_written, torch_dtype
from .ids import CheckpointId, tag_of
from .leaves import archived
from .shares import require_one_box
from .stored import StoredState, stored_state, whole_leaf

_HEAD = "HEAD"


class _Load:
    """One load of this rank: the commit, as it was when its metadata were read."""

    def __init__(self, repo: Repository, commit: Commit, state: StoredState) -> None:
        self.repo = repo
        self.commit = commit
        self.state = state
        weakref.finalize(self, repo.close)


class StorageReader(TorchReader):
    """Gives torch what it asks of a commit, whoever saved that and on how many ranks. Each rank reads by itself.

    Args:
        root: directory of the store.
        rev: a revision, for loads without a ``checkpoint_id``: a branch, a tag, ``main~2``, ``step:500``, an id. The
            tip of the branch if ``None``.
        branch: branch that ``step:500`` and ``HEAD`` speak of; the store's current one if ``None``.
        allow: dotted names of classes that may be imported, and unpickled.
        allow_pickle: unpickle whatever is found. *Unpickling runs code.*
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        rev: str | None = None,
        *,
        branch: str | None = None,
        allow: str | Sequence[str] = (),
        allow_pickle: bool = False,
    ) -> None:
        self._root = Path(root).absolute()
        self._rev = rev
        self._branch = branch
        self._policy = Policy(allow_pickle=allow_pickle, classes=tuple(listed(allow)))
        self._load: _Load | None = None
        self.checkpoint_id: CheckpointId | None = None

    def reset(self, checkpoint_id: CheckpointId | None = None) -> None:
        """Loads are of this checkpoint from now on.

        Args:
            checkpoint_id: what it was saved under, or any other revision.
        """
        self.checkpoint_id = checkpoint_id
        self._load = None

    def read_metadata(
        self, *_args: Any, **_kwargs: Any
    ) -> Metadata:  # called "kwargs", they would make torch ask twice
        """What is in the commit, without any tensor.

        Raises:
            StoreNotFound: there is no store.
            NotFound: there is no such commit.
            Incompatible: the store needs a newer version, or torch would take two names for one.
            Corrupt: stored bytes are damaged.
        """
        self._load = None
        repo = Repository.open(self._root)  # to be written where what is read has to be fetched first
        try:
            commit = repo.commit(self._commit_id(repo))
            state = stored_state(repo, commit, self._policy)
        except BaseException:
            repo.close()
            raise
        self._load = _Load(repo, commit, state)
        metadata = state.metadata()
        metadata.storage_data = commit.id.hex()
        metadata.storage_meta = StorageMeta(checkpoint_id=self.checkpoint_id)
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: FBT001
        """Nothing is to be done: metadata were read by this object."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The plan, with the commit that it is made for."""
        plan.storage_data = self._begun.commit.id.hex()
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """The same plans.

        Raises:
            Conflict: ranks found different commits.
        """
        commits = sorted({str(plan.storage_data) for plan in plans})
        if len(commits) > 1:
            raise Conflict(
                f"ranks found different commits, {' and '.join(commit[:8] for commit in commits)}: a save ended while"
                " they looked. Load again, or name a commit",
                commits=commits,
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what a plan asks for, into the targets that the planner gives. It is done when this returns.

        Raises:
            Incompatible: a target of another kind of number or of another size, or one that lies otherwise than torch
                tells. Nothing was altered.
            Unsafe: what is asked for is a pickle, or of a class that is not imported. Nothing was altered.
            NotFound: a chunk is missing.
            Corrupt: a chunk is damaged. Targets may be partly written.
        """
        load, self._load = self._begun, None
        wanted = [each for each in plan.items if each.type is LoadItemType.TENSOR]
        others = [each for each in plan.items if each.type is LoadItemType.BYTE_IO]
        found = [whole_leaf(load.repo, load.state, each.storage_index.fqn, self._policy) for each in others]
        leaves = list(map(archived, found))
        targets = [planner.resolve_tensor(each) for each in wanted]
        read_local(load.repo, [_read(load, planner, *pair) for pair in zip(wanted, targets, strict=True)])
        mark_written(*targets)
        for each, target in zip(wanted, targets, strict=True):
            planner.commit_tensor(each, target)
        for each, leaf in zip(others, leaves, strict=True):
            planner.load_bytes(each, leaf)
        load.repo.close()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: CheckpointId) -> bool:
        """Whether an id can be the name of a checkpoint."""
        return bool(os.fspath(checkpoint_id))

    @property
    def _begun(self) -> _Load:
        if self._load is None:
            raise Incompatible("no load has begun: torch calls read_metadata first, on every rank")
        return self._load

    def _commit_id(self, repo: Repository) -> CommitId:
        """The commit to load: of a ``checkpoint_id`` the tag that saving under it makes, else what it says itself."""
        if self.checkpoint_id is None:
            return repo.resolve(self._rev or self._branch or _HEAD, self._branch)
        try:
            tagged = repo.refs.read(tag_name(tag_of(self.checkpoint_id)))
        except Incompatible:
            tagged = None
        if tagged is not None:
            return tagged
        revision = os.fspath(self.checkpoint_id)
        try:
            return repo.resolve(revision, self._branch)
        except Incompatible as error:
            raise NotFound(f"no checkpoint {revision!r} in {self._root}: {error}", revision=revision) from error


def _read(load: _Load, planner: LoadPlanner, item: ReadItem, target: torch.Tensor) -> LocalRead:
    fqn = item.storage_index.fqn
    entry = load.state.entry(fqn)
    if entry is None:
        raise Incompatible(f"{fqn} is no tensor in commit {short(load.commit.id)}", tensor=fqn)
    target = target.detach()
    sizes, begin = tuple(item.lengths), item.storage_index.offset or (0,) * len(item.lengths)
    offsets = tuple(first + within for first, within in zip(begin, item.storage_offsets, strict=True))
    _require_fitting(fqn, entry, sizes, target)
    require_one_box(planner, item.dest_index)
    return LocalRead(entry, target, (Part(Box(offsets, sizes), (0,) * len(sizes)),))


def _require_fitting(fqn: str, entry: TensorEntry, sizes: tuple[int, ...], target: torch.Tensor) -> None:
    if tuple(target.shape) != sizes:
        raise Incompatible(f"{fqn}: {list(sizes)} are to be read into a target of {list(target.shape)}", tensor=fqn)
    stored = torch_dtype(entry.dtype)
    if stored != target.dtype and not torch.can_cast(stored, target.dtype):
        raise Incompatible(
            f"{fqn} is {entry.dtype} in the commit and {str(target.dtype).removeprefix('torch.')} in the target: that"
            " is another kind of number",
            tensor=fqn,
        )
