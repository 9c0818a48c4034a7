"""What says that a save on a branch is under way."""

from pathlib import Path

import pytest

from store.disk.files import Files
from store.errors import Busy
from store.ids import CommitId, ObjectId
from store.saving.underway import saving
from tests import workers

COMMIT = CommitId(ObjectId(bytes(32)))


def is_under_way(root: Path) -> bool:
    try:
        workers.require_no_save(root)
    except Busy:
        return True
    return False


def test_a_save_is_under_way_but_for_as_long_as_somebody_is_asked_whether_to_publish_it(tmp_path: Path) -> None:
    asked: list[tuple[CommitId, bool]] = []
    with saving(tmp_path, Files(), "main", lambda commit: asked.append((commit, is_under_way(tmp_path)))) as ask:
        assert is_under_way(tmp_path)
        assert ask is not None
        ask(COMMIT)
        assert asked == [(COMMIT, False)]
        assert is_under_way(tmp_path)
    assert not is_under_way(tmp_path)
    with saving(tmp_path, Files(), "main") as ask:
        assert ask is None
        assert is_under_way(tmp_path)


def test_a_save_that_is_not_approved_is_not_under_way_any_more(tmp_path: Path) -> None:
    def refuse(_: CommitId) -> None:
        raise LookupError

    with pytest.raises(LookupError), saving(tmp_path, Files(), "main", refuse) as ask:
        assert ask is not None
        ask(COMMIT)
    assert not is_under_way(tmp_path)
