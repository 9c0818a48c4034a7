"""What torch's distributed checkpointing writes to."""

import os
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter as TorchWriter
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from store.errors import Incompatible
from store.naming.listed import listed
from store.naming.refnames import branch_name
from store.saving.apart import Apart

from ..state.flattening import flatten
from ..state.policy import Policy
from .ids import CheckpointId, tag_of
from .kept import Kept, forget, kept_for
from .layout import Layout, together
from .leaves import leaf_of
from .publishing import Publication, Returned
from .shares import Share, share_of


class _Save:
    """One save of this rank. What it holds is let go of once it is over, at the latest when nobody has it any more."""

    def __init__(self, publication: Publication | None) -> None:
        self.publication = publication
        if publication is not None:
            weakref.finalize(self, publication.end)


def _let_go(apart: Apart) -> None:
    """End a rank's lease if it has done its work. No rank but the one that publishes is told when that is."""
    if apart.is_published:
        apart.release()


class StorageWriter(TorchWriter):
    """Saves what torch hands over as a commit of a store. Ranks store their shares themselves; the first publishes.

    One object may be used for many saves, or a new one made for each: the process keeps, by branch, what makes the next
    save cheap. It takes one at a time. It pickles as its arguments.

    Args:
        root: directory of the store; made if there is none.
        branch: branch to save on, made by its first save; the store's current one (``HEAD``) if ``None``.
        overwrite: whether a ``checkpoint_id`` that exists is given to the new commit. If not, that is refused.
        allow: dotted names of classes (``"package.module.Class"``) that may be pickled for want of a better way.
        allow_pickle: pickle unknown objects, and *unpickle* what a planner of one's own hands over.

    Raises:
        Incompatible: ``branch`` is no legal name.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        branch: str | None = None,
        overwrite: bool = False,
        allow: str | Sequence[str] = (),
        allow_pickle: bool = False,
    ) -> None:
        if branch is not None:
            branch_name(branch)
        self._root = Path(root).absolute()  # a script may change its working directory
        self._branch = branch
        self._overwrite = overwrite
        self._policy = Policy(allow_pickle=allow_pickle, classes=tuple(listed(allow)))
        self._next_id: CheckpointId | None = None
        self._save: _Save | None = None
        self.checkpoint_id: CheckpointId | None = None

    def __getstate__(self) -> Mapping[str, Any]:
        return {**vars(self), "_save": None}

    def reset(self, checkpoint_id: CheckpointId | None = None) -> None:
        """The next save gets this id. Without one it is a commit on the branch, and no tag.

        Args:
            checkpoint_id: becomes a tag: of a path, all but what only says where it begins. If it ends in ``step-100``,
                ``step_100`` or the like, that is the commit's step.
        """
        self._next_id = self.checkpoint_id = checkpoint_id

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002, FBT001
        """Begin a save.

        Raises:
            Conflict: there is a checkpoint of this id. Nothing was written.
            Incompatible: the id is no legal name for a tag, or ranks are not to talk to each other.
            ReadOnly: the store cannot be written from here.
            OSError: there is no store and none can be made.
        """
        self._save = None  # that of a save that failed is let go of
        given, self._next_id = self._next_id, None
        if not kwargs.get("use_collectives", True) and dist.is_initialized() and dist.get_world_size() > 1:
            raise Incompatible("use_collectives=False: ranks that do not talk to each other cannot make one commit")
        if not is_coordinator:
            self._save = _Save(None)
            return
        tag = None if given is None else tag_of(given)
        where = (self._root, self._branch, tag)
        self._save = _Save(Publication(*where, self._kept, self._policy, overwrite=self._overwrite))

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """The same plan."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """The same plans, in which all ranks find the paths of all: names depend on what others have.

        Nothing of a save may be in them, since torch uses them again for the next.

        Raises:
            OSError: writing failed.
        """
        publication = self._begun.publication
        assert publication is not None
        publication.begin(len(plans))
        return together(plans)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Copy and store what a plan asks of this rank. It is done when this returns.

        Raises:
            Incompatible: something cannot be stored; the message names it.
            Unsafe: a planner hands over a pickle.
            MemoryError: there is no room for a copy.
            OSError: writing failed.
        """
        layout = Layout(plan.planner_data)
        leaves = {id(item): self._leaf(planner, item) for item in plan.items if item.type is WriteItemType.BYTE_IO}
        shares = {id(item): share_of(planner, item, layout) for item in plan.items if id(item) not in leaves}
        apart = self._stored(list(shares.values()))

        def result(item: WriteItem) -> WriteResult:
            size_bytes = shares[id(item)].source.size_bytes if id(item) in shares else 0
            return WriteResult(item.index, size_bytes, Returned(apart.id if apart else None, leaves.get(id(item))))

        results = list(map(result, plan.items))
        if apart is not None:  # torch has results at hand until all ranks have heard how the save ended
            weakref.finalize(results[-1], _let_go, apart)
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Publish what all ranks have stored as one commit. ``metadata.storage_data`` gets its id.

        Raises:
            Incompatible: what ranks stored does not fit together.
            PartsOutdated: what ranks counted on was removed meanwhile; save again.
            Conflict: the branch moved meanwhile, and the error names where the commit was kept; or the tag was made.
            OSError: writing failed.
        """
        save, self._save = self._begun, None
        publication = save.publication
        assert publication is not None
        try:
            metadata.storage_data = publication.publish(metadata, results)
            metadata.storage_meta = self.storage_meta()
        finally:
            publication.end()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: CheckpointId) -> bool:
        """Whether an id can be the name of a checkpoint."""
        try:
            tag_of(checkpoint_id)
        except Incompatible:
            return False
        return True

    def storage_meta(self) -> StorageMeta:
        """What the planner is told of this save."""
        return StorageMeta(checkpoint_id=self.checkpoint_id)

    def close(self) -> None:
        """Give back the memory in which this process keeps what it last saved to this branch.

        A save that is made all the same compares with what the branch holds, as the first one of a process does.
        """
        self._save = None
        forget(self._root, self._branch)

    @property
    def _kept(self) -> Kept:
        return kept_for(self._root, self._branch)

    @property
    def _begun(self) -> _Save:
        if self._save is None:
            raise Incompatible("no save has begun: torch calls set_up_storage_writer first, on every rank")
        return self._save

    def _stored(self, shares: Sequence[Share]) -> Apart | None:
        """The place where this rank's boxes are stored, if it has any. That ends with the save."""
        if not shares:
            return None
        apart = self._kept.store(shares)
        weakref.finalize(self._begun, apart.release)
        return apart

    def _leaf(self, planner: SavePlanner, item: WriteItem) -> Any:
        """What is no tensor, once it is known that it can be kept: the rank that publishes meets it last of all."""
        leaf = leaf_of(planner, item, self._policy)
        flatten(leaf, self._policy, item.index.fqn)
        return leaf
