"""What several ranks are told of a resume that asks for less than there is."""

from pathlib import Path

import pytest

from tests.launching import require_done


@pytest.mark.slow
def test_3_ranks_are_told_once_of_what_none_of_them_asked_for(tmp_path: Path) -> None:
    require_done("first_steps_rank.py", tmp_path, 2)
