"""What a manager does to its store beside saving and loading: checking it, and dropping what is not needed any more."""

import operator
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, SupportsIndex

from store.errors import Incompatible, NotFound
from store.format.objects import Commit
from store.fsck import Report, fsck
from store.gc import Collected, collect
from store.ids import CommitId
from store.naming.listed import listed
from store.repack import Goal, Repacked, repack
from store.repository import Repository
from store.upkeep.prune import Drop, Pruner
from store.upkeep.prunesizes import measured
from store.upkeep.retention import Keep

from ..saving.binding import Binding
from ..saving.jobs import SaveFuture
from ..saving.recording import Recorder

if TYPE_CHECKING:
    from ..ranks.recorder import RankRecorder

Revision = str | SupportsIndex | SaveFuture
"""What names a commit: text as people write it, a step (``"step:300"`` in short), or what a save returned."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A commit whose content, or a part of it, was dropped, or would be.

    Attributes:
        id: full id, hex.
        step: training step, or ``None``.
        branch: branch it was committed on.
        items: names of the items that were dropped; ``None`` if all.
        freed_bytes: what they take in packs that nothing else needs; it is free after gc.
    """

    id: str
    step: int | None
    branch: str
    items: tuple[str, ...] | None
    freed_bytes: int


class Upkeep:
    """Upkeep of a store, as methods of its manager."""

    _repo: Repository
    _binding: Binding
    _recorder: "Recorder | RankRecorder"

    def prune(
        self,
        keep: Keep | None = None,
        *,
        items: str | Sequence[str] = (),
        older_than: timedelta | int | None = None,
        branches: str | Sequence[str] = (),
        dry_run: bool = False,
    ) -> list[Dropped]:
        """Drop the content of commits that a policy does not keep, or items of older commits. History stays.

            mgr.prune(Keep(last=3, best=("loss", "min", 1)), dry_run=True)
            mgr.prune(items=["optimizer"], older_than=timedelta(days=30))

        Tips of branches, tags, pins, and what only a reflog still names are never dropped. Space is free after gc.

        Args:
            keep: the policy.
            items: name or names of the items to drop, instead of whole commits.
            older_than: of commits older than that, or of all but so many newest of each branch.
            branches: name or names of the branches that lose something; all if there are none.
            dry_run: only say what would be dropped.

        Returns:
            What was dropped, the earliest arrival first.

        Raises:
            Incompatible: it takes either a policy, or items and how old.
            NotFound: there is no such branch or item.
            ReadOnly: the store cannot be written from here.
        """
        require_policy(keep)
        if (keep is None) != bool(items) or (older_than is not None) != bool(items):
            raise Incompatible("prune takes either a policy, as in prune(Keep(last=3)), or items and older_than")
        self._recorder.wait()
        pruner = Pruner(self._repo)
        on = listed(branches)
        drops = pruner.by_policy(keep, on) if keep else pruner.items(listed(items), older_than or 0, on)
        drops = measured(self._repo, drops)
        return [_told(drop) for drop in (drops if dry_run else pruner.apply(drops))]

    def pin(self, rev: Revision | None = None, message: str = "") -> str:
        """Keep a commit whatever policies say, until it is unpinned.

        Args:
            rev: the commit; the bound branch's tip if ``None``.
            message: why.

        Returns:
            Hex id of the commit.

        Raises:
            NotFound: ``rev`` names nothing. Pruned: its content is gone.
            ReadOnly: the store cannot be written from here.
        """
        self._recorder.wait()
        commit = self._resolved(rev)
        self._repo.pin(commit, message)
        return commit.hex()

    def unpin(self, rev: Revision) -> None:
        """Let a commit be pruned again.

        Raises:
            NotFound: ``rev`` names nothing, or it is not pinned.
            ReadOnly: the store cannot be written from here.
        """
        self._recorder.wait()
        self._repo.unpin(self._resolved(rev))

    def pins(self) -> dict[str, str]:
        """Why each commit is pinned, by hex id."""
        return {commit.hex(): pin.message for commit, pin in self._repo.pins.all().items()}

    def pinned_steps(self) -> list[int]:
        """Steps of the commits that are pinned, lowest first."""
        steps = (self._repo.commit(commit).step for commit in self._repo.pins.all())
        return sorted(step for step in steps if step is not None)

    def fsck(self, *, full: bool = False) -> Report:
        """Check the store; damage is reported, not raised.

        Args:
            full: also decode everything and compare its BLAKE3.
        """
        self._recorder.wait()
        return fsck(self._repo, full=full)

    def gc(self, *, dry_run: bool = False) -> Collected:
        """Remove what nothing leads to any more, and give its space back.

        Kept is what branches, tags, pins and the last 90 days of reflogs lead to, but for what was pruned. Whoever
        saves or loads meanwhile notices nothing. It may be interrupted at any time; another run completes it.

        Args:
            dry_run: only say what would be removed.

        Returns:
            What was removed.

        Raises:
            Busy: gc, repack or a check is at work already.
            ReadOnly: the store cannot be written from here.
            Corrupt: damage hides what is needed. Nothing was removed.
            OSError: the disk failed, or is too full even to remove something.
        """
        self._recorder.wait()
        return collect(self._repo, dry_run=dry_run)

    def repack(self, goal: Goal = "consolidate", *, dry_run: bool = False) -> Repacked:
        """Store what is there in another way. Ids stay, and whoever reads or saves meanwhile notices nothing.

            mgr.repack()             # many small packs become few
            mgr.repack("restore")    # tips of branches and tags load as fast as can be
            mgr.repack("size")       # what is old or alike takes as little as can be

        It may be interrupted at any time; what is done by then counts.

        Args:
            goal: what for.
            dry_run: only say what would be done.

        Returns:
            What was done.

        Raises:
            Incompatible: there is no such goal.
            Busy: gc or repack is at work already; not with ``dry_run``.
            ReadOnly: the store cannot be written from here; not with ``dry_run`` either.
            OSError: the disk is full or failed. Whatever was there is there.
        """
        self._recorder.wait()
        return repack(self._repo, goal, dry_run=dry_run)

    def merge_now(self) -> Repacked:
        """Put small packs together: :meth:`repack`, in other words. Deltas need no merging; every step stays."""
        return self.repack()

    def _resolved(self, rev: Revision | None) -> CommitId:
        if rev is not None:
            return self._repo.resolve(text_of(rev), self._binding.branch)
        tip = self._binding.current()
        if tip is None:
            raise NotFound(f"branch {self._binding.branch!r} has no commit yet", branch=self._binding.branch)
        return tip

    def _commit_at(self, rev: Revision | None) -> Commit:
        return self._repo.commit(self._resolved(rev))


def require_policy(keep: object) -> None:
    """Refuse what is no policy before anything is kept by it.

    Raises:
        Incompatible: it is something else, as a number of commits.
    """
    if keep is not None and not isinstance(keep, Keep):
        raise Incompatible(f"keep is a policy, as in keep=Keep(last=3), not {keep!r}")


def text_of(rev: Revision) -> str:
    """A revision as people write it; waits for the save that a Future is of.

    Raises:
        Incompatible: it is none. SaveFailed: that save failed.
    """
    if isinstance(rev, SaveFuture):
        return rev.result()
    if isinstance(rev, str):
        return rev
    with suppress(TypeError):
        if not isinstance(rev, bool) and (step := operator.index(rev)) >= 0:
            return f"step:{step}"
    raise Incompatible(f"a commit is named by text, a step, or what save returned, not by {rev!r:.80}")


def _told(drop: Drop) -> Dropped:
    row = drop.row
    return Dropped(row.id.hex(), row.step, row.branch, drop.items, drop.freed_bytes or 0)
