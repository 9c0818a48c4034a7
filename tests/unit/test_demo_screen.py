"""What the demo shows stays below its titles."""

from pathlib import Path

import pytest

from tools.demo.act import Outcome
from tools.demo.job import Dying
from tools.demo.screen import Screen


def test_lines_that_are_too_long_go_on_where_they_began(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    screen = Screen(Path("checkpoints"))
    screen.death(Outcome(exit_code=-9, dying=Dying(60, 12_345_678)))
    one = Outcome(losses={1: 1.0}, digests={"weight": "abc"})
    assert screen.proof(one, one, one)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert all(line.startswith("   ") and line[3] != " " for line in lines)
