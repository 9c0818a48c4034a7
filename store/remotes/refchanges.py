"""Which refs of a remote a push is to move, and which it must not: decided from what both sides hold.

A branch moves forward only: what others pushed has to be in what is pushed. With force it also moves elsewhere, but
only from where it was when it was last fetched: what is newer than that is somebody's work that nobody here has seen.
Tags stay where they are unless forced.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ..history.walks import reached_among
from ..ids import CommitId, short
from ..naming.refnames import BRANCHES, RefName, describe
from ..repository import Repository
from .refmerge import tracking_name

Why = Literal["new", "fast-forward", "forced", "deleted", "current", "rejected"]


@dataclass(frozen=True, slots=True)
class RefChange:
    """What is done to a ref.

    Attributes:
        name: full name.
        old: what it held, ``None`` if it was not there.
        new: what it holds, or would hold if that was not refused; ``None`` if it is deleted.
        why: what kind of change this is.
        reason: why it was rejected, and what to do; else empty.
    """

    name: RefName
    old: CommitId | None
    new: CommitId | None
    why: Why
    reason: str = ""

    @property
    def is_move(self) -> bool:
        """Whether the ref moves."""
        return self.why not in ("current", "rejected")

    def rejected(self, reason: str) -> "RefChange":
        """The same, refused."""
        return replace(self, why="rejected", reason=reason)


def decide(
    repo: Repository,
    remote: str,
    wanted: Mapping[RefName, CommitId | None],
    held: Mapping[RefName, CommitId],
    *,
    others: Collection[RefName] = (),
    force_with_lease: bool,
) -> list[RefChange]:
    """Say of each ref what is done to it.

    Args:
        repo: the store.
        remote: the remote's name.
        wanted: what refs are to hold, ``None`` if they are to be deleted.
        held: what they hold there.
        others: other refs that there are there.
        force_with_lease: whether to move what does not move forward.
    """
    made = [name for name, new in wanted.items() if new is not None and name not in held]
    deciding = _Deciding(repo, remote, force_with_lease, frozenset([*held, *others, *made]))
    return [deciding.change(name, held.get(name), new) for name, new in wanted.items()]


@dataclass(frozen=True, slots=True)
class _Deciding:
    repo: Repository
    remote: str
    force: bool
    names: frozenset[RefName]

    def change(self, name: RefName, old: CommitId | None, new: CommitId | None) -> RefChange:
        change = RefChange(name, old, new, "new")
        if old is None:
            return self._made(change) if new is not None else change.rejected(f"{self.remote} has no {describe(name)}")
        if old == new:
            return replace(change, why="current")
        if not name.startswith(f"{BRANCHES}/"):
            return self._tag(change)
        if new is not None and reached_among(self.repo.lookup, [new], [old]):
            return replace(change, why="fast-forward")
        why: Why = "forced" if new is not None else "deleted"
        if new is not None and not self.force:
            return change.rejected(
                f"{self.remote} has {short(old)} there, which is not in {short(new)}: `moonclip fetch {self.remote}`,"
                " then merge it or branch off; `--force-with-lease` drops it"
            )
        if self._seen(name) != old:
            return change.rejected(
                f"{self.remote} has {short(old)} there, which was not seen here: somebody pushed it;"
                f" `moonclip fetch {self.remote}` first"
            )
        return replace(change, why=why)

    def _made(self, change: RefChange) -> RefChange:
        """A new ref, unless no store could have it beside another that is there."""
        name = change.name
        taken = [each for each in self.names if each.startswith(f"{name}/") or name.startswith(f"{each}/")]
        if not taken:
            return change
        return change.rejected(f"{self.remote} has {describe(min(taken))}, and neither can be a directory of the other")

    def _tag(self, change: RefChange) -> RefChange:
        if change.new is None:
            return replace(change, why="deleted")
        if self.force:
            return replace(change, why="forced")
        return change.rejected(f"{self.remote} has that tag on another commit; tags do not move without force")

    def _seen(self, name: RefName) -> CommitId | None:
        tracking = tracking_name(self.remote, name)
        return None if tracking is None else self.repo.refs.read(tracking)
