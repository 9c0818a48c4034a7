"""Taking up at the newest commit that can be loaded, where the tip of a branch is damaged.

Whatever is loaded comes from one commit. Tensors are read straight into their targets, so by the time damage shows some
of them may hold what the damaged commit had: an older commit is taken only if it overwrites all of these.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from store.errors import Corrupt, Incompatible, MoonclipError, NotFound, Pruned, Unsafe
from store.ids import ChunkId, CommitId, short
from store.limits import LAST_GOOD_COMMITS
from store.repository import Repository

from ..state.policy import Policy
from .blaming import telling_what_is_hit
from .load import Wanted, load
from .plans import Plan
from .stored import full_name

_log = logging.getLogger("moonclip")


@dataclass(frozen=True, slots=True)
class Skipped:
    """A commit that could not be loaded.

    Attributes:
        commit: its hex id.
        reason: why, for people.
    """

    commit: str
    reason: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a resume came to.

    Attributes:
        commit: hex id of the commit that was loaded; ``None`` if the branch had none yet.
        skipped: newer commits of the branch, which are damaged.
    """

    commit: str | None = None
    skipped: tuple[Skipped, ...] = ()


def load_newest(
    repo: Repository, branch: str, line: Iterable[CommitId], wanted: Wanted, policy: Policy
) -> tuple[CommitId, list[Skipped]]:
    """Load the newest of some commits that is not damaged, and warn of those that are.

    Args:
        repo: the store.
        branch: the branch they are of, for people.
        line: the commits, newest first.
        wanted: what of them, and where to.
        policy: what decoding may do.

    Returns:
        The commit, and those that were skipped.

    Raises:
        Incompatible: the first does not fit; the message lists it all, and nothing was altered.
        Unsafe: the first holds something that the policy does not allow; likewise.
        Pruned: the first was pruned; likewise.
        Corrupt: all of them are damaged, or the first ``LAST_GOOD_COMMITS`` that were not pruned are. Tensors may be
            partly written, other objects have not been touched.
    """
    falling = _Falling(repo)
    for commit_id in line:
        if len(falling.errors) == LAST_GOOD_COMMITS:
            break
        try:
            commit = repo.commit(commit_id)
            with telling_what_is_hit(repo, commit):
                load(repo, commit, wanted, policy, falling.require)
        except (Corrupt, NotFound, Incompatible, Unsafe) as error:
            if not falling.errors and isinstance(error, Incompatible | Unsafe | Pruned):
                raise
            if isinstance(error, Pruned):
                continue  # on purpose, and there may be thousands between two that a policy keeps
            falling.errors.append(error)
            falling.skipped.append(Skipped(commit_id.hex(), str(error)))
        else:
            _warn(branch, commit_id, falling.skipped)
            return commit_id, falling.skipped
    raise _nothing_left(branch, falling)


class _Falling:
    """What happened so far."""

    def __init__(self, repo: Repository) -> None:
        self.errors: list[MoonclipError] = []
        self.skipped: list[Skipped] = []
        self.overwritten: set[str] = set()
        self._repo = repo

    def require(self, plans: Sequence[Plan]) -> None:
        """See that an older commit can take the place of what was begun, before anything of it is read.

        Raises:
            Incompatible: it lacks a tensor whose target holds what a damaged commit had.
            Corrupt: some of it is known to be damaged: there is no need to read the rest.
        """
        names = {
            full_name(plan.stored.name, name)
            for plan in plans
            for name in (*plan.match.placements, *plan.match.aliases)
        }
        if self.errors:
            left = sorted(self.overwritten - names)
            if left:
                raise Incompatible(f"it has no {left[0]}, which the damaged commit has partly overwritten")
            entries = [one.entry for plan in plans for one in plan.reads()]
            self._repo.bring(entries)
            self._require_known_chains({chunk for entry in entries for chunk in entry.chunks})
        self.overwritten |= names

    def _require_known_chains(self, chunks: set[ChunkId]) -> None:
        lost = chunks - self._repo.reader.chains(chunks).keys()
        if lost:
            raise Corrupt(f"chunk {min(lost).hex()} is damaged or lost", object=min(lost).hex())


def _warn(branch: str, loaded: CommitId, skipped: Sequence[Skipped]) -> None:
    for each in skipped:
        _log.warning("commit %s of branch %r cannot be loaded: %s", each.commit[:8], branch, each.reason)
    if skipped:
        _log.warning(
            "branch %r is taken up at %s, the newest commit of it that is whole; the next save goes on from there, and"
            " %s stays in its reflog. `moonclip fsck` tells what is damaged, and what can be done",
            branch,
            short(loaded),
            skipped[0].commit[:8],
        )


def _nothing_left(branch: str, falling: _Falling) -> MoonclipError:
    first = falling.errors[0]
    if len(falling.errors) == 1:
        return first
    lines = "\n".join(f"  {each.commit[:8]}: {each.reason}" for each in falling.skipped)
    error = Corrupt(
        f"none of the newest {len(falling.errors)} commits of branch {branch!r} can be loaded, and tensors may be"
        f" partly overwritten; `moonclip fsck --repair` may help:\n{lines}",
        **{**first.details, "branch": branch, "skipped": [each.commit for each in falling.skipped]},
    )
    error.__cause__ = first
    return error
