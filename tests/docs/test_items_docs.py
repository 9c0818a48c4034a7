"""The code in docs/items.md runs as it stands, from top to bottom, and does what is said of it."""

import re
from pathlib import Path
from typing import Any

import pytest

from moonclip import CheckpointManager

TEXT = (Path(__file__).parents[2] / "docs" / "items.md").read_text()


def test_all_of_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/items.md", "exec"), names)
    names["mgr"].close()
    assert names["into"]["epoch"] == 7
    assert names["note"] == b"\x00\x01"
    files = {str(path.relative_to("exported")) for path in Path("exported").rglob("*") if path.is_file()}
    assert files == {"weights/model.safetensors", "optimizer.pt", "config.json"}
    assert [event.kind for event in names["events"]] == ["save", "load"]
    told = capsys.readouterr().out
    assert "model: required, and missing in the save" in told
    assert "confg: in the save, and not among the manager's items" in told
    with CheckpointManager("checkpoints") as mgr:
        assert {"main", "specified", "padded", "checked", "watched"} <= set(mgr.branches())
        assert mgr.load("padded")["model"]["embedding"].shape == (50, 8)
        assert f"step 1 is {mgr.describe('checked').snapshot.id}" in told
