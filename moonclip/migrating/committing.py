"""One checkpoint as a commit that nobody sees before it was read back."""

from collections.abc import Mapping
from typing import Any

from store.format.values import Plain
from store.ids import CommitId
from store.repository import Repository
from store.saving.saver import SaveRequest
from store.saving.underway import saving

from ..exchange.tensorinputs import input_of_state
from ..saving.branches import settled_tip
from ..state.items import flattened
from ..state.policy import SAFE
from .verifying import verify


def commit(
    repo: Repository, branch: str, items: Mapping[str, Any], step: int | None, metadata: Mapping[str, Plain]
) -> CommitId:
    """Store items, read them back, and commit them to a branch if they are the same.

    Raises:
        Incompatible: something cannot be stored; the message names it.
        Corrupt: what was read back differs. The branch is where it was.
        Conflict: the branch was moved meanwhile; the error names where the commit was kept.
        ReadOnly: the store cannot be written from here.
        OSError: writing failed. Refs are as before.
    """
    states = flattened(items, SAFE)
    inputs = [input_of_state(item, state) for item, state in states.items()]
    tip = settled_tip(repo, branch)
    with saving(repo.layout.root, repo.files, branch):
        request = SaveRequest(inputs, branch, tip, step, metadata=metadata)
        return repo.save(request, lambda commit_id: verify(repo, commit_id, states)).commit
