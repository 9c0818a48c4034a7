"""What docs/integrations.md shows of Lightning runs."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.docpages import ROOT

TEXT = (ROOT / "docs" / "integrations.md").read_text()


@pytest.mark.filterwarnings("ignore")  # Lightning warns of its own ways
def test_lightning_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    section = TEXT.partition("\n## Lightning\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "docs/integrations.md", "exec"), names)
    assert names["found"]["global_step"] in {4, 8}


def test_blocks_for_libraries_that_are_not_here_compile() -> None:
    blocks = re.findall(r"^```python \w+_on_store\.py\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        compile(block, "docs/integrations.md", "exec")
