"""The work of the rank that coordinates: one commit of what all ranks have stored.

Its own part of that is the structure, and all that is no tensor. Ranks send the latter, and where they have stored
their tensors, with what they return from storing: that is what torch always carries anew, while it uses plans again.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import WriteResult

from store.errors import PartsOutdated
from store.naming import tags
from store.repository import Repository
from store.saving.rankbases import RankMemory
from store.saving.ranks import save_rank
from store.saving.saver import SaveRequest
from store.saving.snapshots import Snapshot
from store.saving.underway import saving

from ..saving.binding import Binding, bound
from ..state.policy import Policy
from .ids import step_of
from .kept import Kept, Published
from .layout import Layout
from .structure import structure


class Returned(NamedTuple):
    """What a rank returns for each entry of its plan, beside a size.

    Attributes:
        apart: id of the place where it has stored its tensors, if it has any.
        leaf: the object, if the entry is no tensor.
    """

    apart: str | None
    leaf: Any = None


class Publication:
    """One save, on the rank that coordinates. It holds the store open, and what was stored leased, until it ends.

    Args:
        root: the store's directory; made if there is none.
        branch: short name of the branch; the store's current one if ``None``.
        tag: a tag to put on the commit.
        overwrite: move the tag if it exists.
        policy: whether unknown objects may be pickled.
        kept: what this process remembers of the store.

    Raises:
        Conflict: the tag exists.
        Incompatible: the store needs a newer version, or a name is none.
        ReadOnly: the store cannot be written from here.
        OSError: there is no store and none could be made.
    """

    def __init__(
        self, root: Path, branch: str | None, tag: str | None, kept: Kept, policy: Policy, *, overwrite: bool
    ) -> None:
        self._tag = tag
        self._overwrite = overwrite
        self._policy = policy
        self._kept = kept
        self._last: Published | None = None
        self._snapshot: Snapshot | None = None
        self._repo: Repository
        self._binding: Binding
        self._repo, self._binding = bound(root, branch, None)
        try:
            self._repo.require_writable()
            if tag is not None and not overwrite:
                tags.require_free_tag(self._repo, tag)
        except BaseException:
            self._repo.close()
            raise

    def begin(self, world_size: int) -> None:
        """Begin the snapshot, so that ranks that remember nothing find out what the branch holds.

        Args:
            world_size: how many ranks store.

        Raises:
            OSError: writing failed.
        """
        self._last, self._kept.published = self._kept.published, None
        tip, last = self._binding.tip, self._last
        request = SaveRequest(
            (),
            branch=self._binding.branch,
            parent=tip,
            step=None if self._tag is None else step_of(self._tag),
            last=last.last if last is not None and last.last.commit == tip else None,
        )
        self._snapshot = self._repo.create_snapshot(request, world_size + 1, ranks_remember=last is not None)

    def publish(self, metadata: Metadata, results: Sequence[Sequence[WriteResult]]) -> str:
        """Commit what the ranks have stored, and tag it.

        Args:
            metadata: what torch says of it.
            results: what each rank returned.

        Returns:
            The commit's hex id.

        Raises:
            Incompatible: something cannot be stored, or does not fit together.
            PartsOutdated: what ranks counted on was removed meanwhile.
            Conflict: the branch moved meanwhile, and the error names where the commit was kept; or the tag was made.
            OSError: writing failed.
        """
        assert self._snapshot is not None
        layout, snapshot = Layout(metadata.planner_data), self._snapshot
        snapshot.describe(layout.metadata, first=len(results))
        with saving(self._repo.layout.root, self._repo.files, self._binding.branch):
            values = self._store_structure(metadata, layout, results)
            for rank, result in enumerate(results):
                snapshot.take_over(rank, next((each.storage_data.apart for each in result), None))
            try:
                commit = snapshot.finalize()
            except PartsOutdated as error:
                raise PartsOutdated(
                    "what this save had in common with earlier ones was removed while it was made; nothing was"
                    " published. Save again: then all is stored in full",
                    **error.details,
                ) from error
            if snapshot.last is not None:
                self._kept.published = Published(snapshot.last, values)
            if self._tag is not None:
                tags.set_tag(self._repo, self._tag, commit, overwrite=self._overwrite)
        return commit.hex()

    def end(self) -> None:
        """Give up what was not published, and close the store; again does nothing."""
        snapshot, self._snapshot = self._snapshot, None
        try:
            if snapshot is not None:
                snapshot.abandon()
        finally:
            self._repo.close()

    def _store_structure(
        self, metadata: Metadata, layout: Layout, results: Sequence[Sequence[WriteResult]]
    ) -> RankMemory:
        """Store what is the coordinator's own, as a rank behind all others."""
        assert self._snapshot is not None
        leaves = {each.index.fqn: each.storage_data.leaf for result in results for each in result}
        items = structure(metadata, layout, leaves, self._policy)
        last = None if self._last is None else self._last.values
        where = (self._repo.layout.root, self._snapshot.id, len(results))
        return save_rank(*where, items, last=last, files=self._kept.files, threads=self._kept.threads).memory
