"""What docs/tutorial.md tells people to do works, and shows them what it says."""

import sys
from pathlib import Path

import pytest

from store.repository import Repository
from tests.docpages import ROOT, play

PAGE = ROOT / "docs" / "tutorial.md"


@pytest.mark.slow  # four processes that train, one after another
def test_it_can_be_followed_from_its_beginning_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "train", raising=False)
    play(PAGE, {})
    monkeypatch.delitem(sys.modules, "train")
    with Repository.open(tmp_path / "checkpoints") as here, Repository.open(tmp_path / "elsewhere") as there:
        assert here.resolve("main") == there.resolve("main")
