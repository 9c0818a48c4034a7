"""The callbacks of a manager on either side of a commit's publication."""

from collections.abc import Callable

from store.ids import CommitId
from store.repository import Repository
from store.saving.publish import Approve

from ..loading.descriptions import Snapshot, snapshots
from ..state.policy import Policy

Callback = Callable[[Snapshot], None]
"""Told of a commit, as listings give it."""


class Gate:
    """What to call on either side of a publication. Called in a thread that saves are waited for in.

    Args:
        repo: the store.
        policy: whether metadata may be decoded.
        before: called once all of a commit is durable, before the branch moves; what it raises fails the save.
        after: called once the branch is on the commit; what it raises fails the save as well, but the commit stays.
    """

    def __init__(
        self, repo: Repository, policy: Policy, before: Callback | None = None, after: Callback | None = None
    ) -> None:
        self._repo = repo
        self._policy = policy
        self.approve: Approve | None = self._told(before)
        self.finalize: Callable[[CommitId], None] | None = self._told(after)

    def _told(self, callback: Callback | None) -> Callable[[CommitId], None] | None:
        if callback is None:
            return None
        return lambda commit: callback(next(snapshots(self._repo, [commit], self._policy)))
