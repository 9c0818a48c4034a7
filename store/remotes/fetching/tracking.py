"""Moving the refs here that tell what a remote has: remote-tracking branches, and tags, which never move."""

from dataclasses import replace

from ...errors import Conflict, Pruned
from ...ids import CommitId, short
from ...naming.refnames import BRANCHES, REMOTES, RefName
from ...repository import Repository
from ..refchanges import RefChange
from ..refmerge import Merged, tracking_name
from ..remote import Remote
from .lineage import Lineage

_ACTION = "fetch"


class Tracking:
    """Moves refs after a fetch. For one thread.

    Args:
        repo: the store.
        remote: the remote.
        lineage: what its commits are made of.

    Attributes:
        changes: what became of each ref.
        damaged: branches and tags of the remote whose commits cannot be had, by full name there, and why.
    """

    def __init__(self, repo: Repository, remote: Remote, lineage: Lineage) -> None:
        self.changes: list[RefChange] = []
        self.damaged: dict[RefName, str] = {}
        self._repo = repo
        self._remote = remote
        self._lineage = lineage

    def move(self, merged: Merged, *, dry_run: bool) -> None:
        """Move branches to where they are on the remote, and make tags that are not here.

        Raises:
            Corrupt: a ref here is damaged, or something was swept that a commit needs.
            OSError: the disk failed; the ref holds what it held.
        """
        for target, (store, name, tip) in self._targets(merged).items():
            if tip in self._lineage.broken:
                self.damaged[name] = self._lineage.broken[tip]
            elif store is not None and not name.startswith(f"{BRANCHES}/"):
                what = f"store {store} has that tag on {short(tip)}; tags do not move"
                self.changes.append(RefChange(target, self._repo.refs.read(target), tip, "rejected", what))
            else:
                self._move(target, tip, dry_run=dry_run)

    def prune(self, merged: Merged, *, is_all: bool, dry_run: bool) -> None:
        """Remove remote-tracking branches of what is not there any more.

        Args:
            merged: what is there.
            is_all: whether that is all there is.
            dry_run: only tell.

        Raises:
            Conflict: one moves at this moment.
            OSError: the disk failed.
        """
        gone = {tracking_name(self._remote.name, name) for name in merged.gone}
        if is_all:
            gone |= set(self._repo.refs.names(f"{REMOTES}/{self._remote.name}/"))
        for name in sorted(each for each in gone - self._targets(merged).keys() if each is not None):
            held = self._repo.refs.read(name)
            if held is not None:
                self.changes.append(RefChange(name, held, None, "deleted"))
                if not dry_run:
                    self._repo.refs.update(name, held, None, _ACTION, f"gone from {self._remote.name}")

    # --- how --------------------------------------------------------------------------------------------------------

    def _targets(self, merged: Merged) -> dict[RefName, tuple[str | None, RefName, CommitId]]:
        """Refs here, and for each the store that has it so, if that is one alone, its name there, and its commit."""
        wanted: dict[tuple[str | None, RefName], CommitId] = {(None, name): tip for name, tip in merged.tips.items()}
        wanted |= {(store, name): tip for (store, name), tip in merged.others.items()}
        targets: dict[RefName, tuple[str | None, RefName, CommitId]] = {}
        for (store, name), tip in sorted(wanted.items(), key=lambda each: (each[0][1], each[0][0] or "")):
            is_branch = name.startswith(f"{BRANCHES}/")
            target = tracking_name(self._remote.name, name, store) if is_branch else name
            if target is not None:
                targets.setdefault(target, (store, name, tip))
        return targets

    def _move(self, name: RefName, tip: CommitId, *, dry_run: bool) -> None:
        change = self._change(name, tip)
        if change.is_move and not dry_run:
            try:
                self._put(change)
            except (Conflict, Pruned) as error:
                again = self._change(name, tip)
                change = again if again.why == "current" else change.rejected(error.message)
        self.changes.append(change)

    def _put(self, change: RefChange) -> None:
        assert change.new is not None
        self._repo.set_ref(change.name, change.old, change.new, _ACTION, f"{change.why} from {self._remote.name}")

    def _change(self, name: RefName, tip: CommitId) -> RefChange:
        held = self._repo.refs.read(name)
        change = RefChange(name, held, tip, "new")
        if held is None:
            return change
        if held == tip:
            return replace(change, why="current")
        if not name.startswith(f"{REMOTES}/"):
            return change.rejected(
                f"{self._remote.name} has it on {short(tip)}, and tags do not move; delete the one here to get that"
            )
        return replace(change, why="fast-forward" if self._lineage.contains(tip, held) else "forced")
