"""What a process has to load before it can answer. Modules are counted, not seconds: a busy machine lies."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "numba", "llvmlite", "boto3")
HISTORY_COMMANDS = (["--help"], ["log"], ["log", "--graph"], ["show"], ["branch"], ["tag"])

_RUN_COMMAND = """
import json, sys
from moonclip.cli import main
sys.argv = ["moonclip", *json.loads(sys.argv[1])]
try:
    main()
except SystemExit as end:
    code = end.code or 0
else:
    code = 0
print("\\n" + json.dumps([code, sorted(name for name in sys.modules if "." not in name)]))
"""

_SAVE = """
import sys
from store.saving.inputs import ItemInput, TensorInput
from store.repository import Repository
from store.saving.saver import SaveRequest, Saver

with Repository.init(sys.argv[1]) as repo:
    saver = Saver(repo.files, repo.layout, repo.index, repo.absences, repo.refs, repo.reader, repo.threads)
    weight = TensorInput(0, "float32", (256,), memoryview(bytes(1024)))
    saver.save(SaveRequest([ItemInput("model", {"": weight})], branch="main", step=1))
"""


def modules_after(statement: str) -> set[str]:
    program = f"{statement}\nimport json, sys\nprint(json.dumps([name for name in sys.modules if '.' not in name]))"
    return set(json.loads(run(program)))


def run(program: str, *arguments: str) -> str:
    finished = subprocess.run([sys.executable, "-c", program, *arguments], check=True, capture_output=True, text=True)
    return finished.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def saved_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    subprocess.run([sys.executable, "-c", _SAVE, str(root)], check=True)
    return root


def test_importing_the_surface_loads_nothing_heavy() -> None:
    assert modules_after("import moonclip").isdisjoint({*HEAVY, "numpy", "rich"})


def test_importing_the_engine_loads_no_surface() -> None:
    assert modules_after("import store.repository, store.fsck").isdisjoint({*HEAVY, "numpy", "rich", "moonclip"})


@pytest.mark.parametrize("command", HISTORY_COMMANDS, ids=" ".join)
def test_commands_that_read_history_load_nothing_heavy(command: list[str], saved_store: Path) -> None:
    code, loaded = json.loads(run(_RUN_COMMAND, json.dumps(["-C", str(saved_store), *command])))
    assert code == 0
    assert set(loaded).isdisjoint(HEAVY)
