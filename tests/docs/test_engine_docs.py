"""The code in docs/engine.md runs, in the order in which it stands, and so do the examples."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import store
from store.repository import Repository
from tests.docpages import ROOT, play

MANUAL = ROOT / "docs" / "engine.md"
LOG = b"step 100 loss 2.31\n"


def test_the_manual_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.txt").write_bytes(LOG)
    (tmp_path / "remote").mkdir()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.txt").write_bytes(b"a")
    play(MANUAL, {})
    assert (tmp_path / "copy.json").read_bytes() == b'{"lr": 0.1}'
    assert (tmp_path / "catted.txt").read_bytes() == LOG
    assert (tmp_path / "remote" / "files" / "run-7" / "logs" / "a.txt").read_bytes() == b"a"
    with Repository.open(tmp_path / "checkpoints") as repo:
        assert [row.step for row in repo.log([repo.resolve("main")])] == [102, 100, 100]
        assert repo.at("main").read(["model::w"])["model::w"].sum() == sum(range(600 * 64))


def test_the_manual_of_migrating_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "old").mkdir(parents=True)
    torch.save({"model": {"w": torch.ones(3)}}, tmp_path / "runs" / "old" / "step_7.pt")
    play(ROOT / "docs" / "migrate.md", {})
    with Repository.open(tmp_path / "checkpoints") as repo:
        assert repo.refs.list().keys() == {"branches/main", "branches/old"}


def test_all_that_is_public_is_in_the_manual() -> None:
    public = [
        name
        for name in store.__all__
        if name not in {"CommitId", "StoredArray", "StoredCommit", "StoredFile", "Synced"}
    ]
    assert [name for name in public if not re.search(rf"\b{name}\b", MANUAL.read_text())] == []
    assert all(getattr(store, name) is not None for name in dir(store))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = store.nothing


def test_looking_the_engine_up_loads_neither_torch_nor_numpy() -> None:
    program = (
        "import sys, store; from store import Repository;"
        " print(sorted({'torch', 'numpy', 'numba', 'boto3', 'moonclip'} & set(sys.modules)))"
    )
    finished = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert finished.stdout == "[]\n"


@pytest.mark.parametrize(
    ("example", "says"),
    [("engine_numpy.py", "step  49  loss 0.0023  22 B"), ("pytrees.py", "equal: True same form: True")],
)
def test_examples_run_without_torch(example: str, says: str, tmp_path: Path) -> None:
    program = (
        "import runpy, sys; sys.modules['torch'] = None; sys.argv = sys.argv[1:];"
        " runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-c", program, str(ROOT / "examples" / example), str(tmp_path / "store")]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert says in finished.stdout
