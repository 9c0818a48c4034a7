"""Saves of several ranks without torch.distributed: whoever starts the ranks tells each of them the snapshot's id.

snapshot = mgr.create_snapshot(step, world_size=2)       # in one process, which tells the others
mgr.save_rank(snapshot, rank, {"model": shard})          # in each, by a manager of its own
mgr.finalize_snapshot(snapshot)                          # in the first one again, once all have done so
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from store.errors import Conflict, Corrupt, MoonclipError, SnapshotGone
from store.ids import CommitId, from_hex
from store.naming.refs import NotDurable
from store.repository import Repository
from store.saving.ranks import save_rank
from store.saving.snapshots import Snapshot
from store.saving.underway import saving

from ..capture.staging import Staging
from ..ranks.holdings import Holdings, Terms
from ..ranks.plan import Share
from ..saving.binding import Binding
from ..saving.gates import Gate
from ..saving.precision import Precision
from ..saving.wishes import Wish
from ..specs import Schema
from ..state.policy import Policy

if TYPE_CHECKING:
    from ..ranks.recorder import RankRecorder
    from ..saving.recording import Recorder


class ByRank:
    """Snapshots made rank by rank, as methods of a manager."""

    _repo: Repository
    _binding: Binding
    _policy: Policy
    _per_rank: set[str]
    _precision: Precision
    _schema: Schema
    _gate: Gate
    _recorder: "Recorder | RankRecorder"
    _begun: dict[str, Snapshot]

    def create_snapshot(
        self,
        step: int | None = None,
        *,
        world_size: int,
        metadata: Mapping[str, Any] | None = None,
        message: str = "",
    ) -> str:
        """Begin a save by several ranks on the bound branch. It ends with :meth:`finalize_snapshot`, or :meth:`close`.

        Args:
            step: training step.
            world_size: how many ranks there are.
            metadata: values to keep with the commit.
            message: what a person should know of it.

        Returns:
            Its id, which every rank has to be told.

        Raises:
            Incompatible: there is no rank, or something cannot be stored.
            ReadOnly: the store cannot be written from here.
        """
        with self._recorder.exclusively():
            self._recorder.wait()
            wish = Wish({}, step=step, metadata=metadata, message=message)
            snapshot = self._repo.create_snapshot(wish.request(self._binding, self._policy), world_size)
            self._begun[snapshot.id] = snapshot
            return snapshot.id

    def save_rank(self, snapshot: str, rank: int, items: Mapping[str, Any]) -> None:
        """Store what one rank has, in place of what it may have stored before. Returns when that is durable.

        Args:
            snapshot: what :meth:`create_snapshot` returned, in whichever process.
            rank: which rank, from 0.
            items: items by name, as for :meth:`save`. Of a DTensor this process's shard is stored, and all of any other
                tensor: each element by one rank only. What is no tensor may be given by several, if it is the same.

        Raises:
            SnapshotGone: the snapshot was published or given up.
            Incompatible: something cannot be stored, or there is no such rank.
            OSError: writing failed.
        """
        self._schema.require(items, "the save")
        terms = Terms(self._policy, rank, self._per_rank, self._precision, self._schema.resharders, {})
        holdings = Holdings(items, terms)
        offer = holdings.offer()
        boxes = {name: holding.boxes for name, holding in offer.holdings.items()}
        shared = holdings.share(Share(boxes, frozenset(offer.others)))
        staging = Staging(self._repo.threads)
        try:
            capture = staging.capture(shared.states)
            given = shared.items(capture.items, capture.arena)
            save_rank(self._repo.layout.root, snapshot, rank, given, files=self._repo.files, threads=self._repo.threads)
        finally:
            staging.close()
            staging.guard.close()

    def finalize_snapshot(self, snapshot: str) -> str:
        """Commit what all ranks have stored. Where it fails otherwise than with ``Conflict``, it can be tried again.

        Args:
            snapshot: what this manager's :meth:`create_snapshot` returned.

        Returns:
            The commit's hex id.

        Raises:
            SnapshotGone: it was not begun here, or was published or given up.
            PartsMissing: ranks have not stored theirs; names them.
            PartsOutdated: ranks have to store theirs again; names them.
            Incompatible: what they stored does not fit together.
            Conflict: the branch moved meanwhile; the error names where the commit was kept.
        """
        with self._recorder.exclusively():
            self._recorder.wait()
            begun = self._begun.get(snapshot)
            if begun is None:
                raise SnapshotGone(f"snapshot {snapshot} is not in the making here; create_snapshot begins one")
            try:
                with saving(self._repo.layout.root, self._repo.files, begun.branch, self._gate.approve) as ask:
                    commit = begun.finalize(ask)
            except (Conflict, Corrupt, NotDurable) as error:
                self._follow(begun, error)
                raise
            self._ended(begun, begun.branch, commit)
            if self._gate.finalize is not None:
                self._gate.finalize(commit)
            return commit.hex()

    def _follow(self, begun: Snapshot, error: MoonclipError) -> None:
        """After an error of a commit that has a name all the same: on another branch, or on a disk that failed."""
        branch = begun.branch if isinstance(error, NotDurable) else error.details.get("kept")
        if branch is not None:
            self._ended(begun, branch, CommitId(from_hex(error.details["commit"])))

    def _ended(self, begun: Snapshot, branch: str, commit: CommitId) -> None:
        """The next save comes after it, unless the manager is on another branch by now."""
        del self._begun[begun.id]
        if begun.branch == self._binding.branch:
            self._binding.bind(branch, commit)

    def _give_up_snapshots(self) -> None:
        while self._begun:
            self._begun.popitem()[1].abandon()
