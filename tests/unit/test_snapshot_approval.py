"""A save by several ranks that is not approved."""

from pathlib import Path

import pytest

from store.errors import Conflict, Corrupt
from store.ids import CommitId
from store.repository import Repository
from tests.arrays import State, noise, require_whole
from tools.crash.ranks import request, save_ranks

STATE: State = {"w": noise("w", 512, 600), "scalar": noise("s")}


def test_whatever_approval_fails_with_the_snapshot_may_be_finalized_again(tmp_path: Path) -> None:
    def refuse(_: CommitId) -> None:
        raise refusal

    with (
        Repository.init(tmp_path / "store", thread_count=1) as repo,
        repo.create_snapshot(request(repo), 2) as snapshot,
    ):
        save_ranks(repo.layout.root, snapshot, STATE)
        for refusal in (Conflict("a callback's own save"), Corrupt("what it read"), LookupError("else")):
            with pytest.raises(type(refusal)) as refused:
                snapshot.finalize(refuse)
            assert refused.value is refusal
            assert repo.refs.list() == {}
        commit = snapshot.finalize()
        require_whole(repo, {commit: STATE})
