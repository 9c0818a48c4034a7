"""``moonclip import``."""

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import Result
from safetensors.torch import load_file, save_file

from moonclip.cli import importing
from tests.modeldirs import digests
from tests.stores import History

Out = Callable[..., str]
Document = Callable[..., Any]
Run = Callable[..., Result]


def test_a_file_of_torch(output: Out, document: Document, past: History, tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.ones(500)}, "epoch": 3}, tmp_path / "run.pt")
    said = output("import", "run.pt")
    assert said.endswith(" on branch main: model, epoch (1.95 KiB of tensors)\n")
    newest = document("log", "-n", "1")[0]
    assert newest["message"] == "Import of run.pt"
    assert newest["parents"] == [past.main[-1].hex()]
    output("export", "HEAD", "-o", "again.pt")
    again = torch.load(tmp_path / "again.pt", weights_only=True)
    assert torch.equal(again["model"]["w"], torch.ones(500))
    assert again["epoch"] == 3


def test_onto_a_branch_with_what_is_said_of_it(document: Document, past: History, tmp_path: Path) -> None:
    save_file({"w": torch.ones(300)}, tmp_path / "m.safetensors")
    told = document(
        "import", "ema=m.safetensors", "m.safetensors", "--branch", "base", "-m", "from afar", "--step", "7"
    )
    commit = told.pop("commit")
    assert {key: told[key] for key in ("branch", "step", "items", "bytes")} == {
        "branch": "base",
        "step": 7,
        "items": ["ema", "model"],
        "bytes": 2400,
    }
    assert (told["base"], told["base_found_by"], told["files"]) == (None, "none", 0)
    (newest,) = document("log", "base")
    assert (newest["id"], newest["step"], newest["message"]) == (commit, 7, "from afar")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_directories(document: Document, output: Out, past: History, tmp_path: Path) -> None:
    state = {"model": {"w": torch.randn(50)}, "optim": {"lr": 0.5}}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "dcp"), no_dist=True)
    assert document("import", "dcp")["items"] == ["model", "optim"]
    output("export", "HEAD", "--format", "hf", "-o", "hf")
    assert document("import", "hf/")["items"] == ["model", "files"]
    alone = document("import", "ema=hf/", "--branch", "alone")
    assert (alone["items"], alone["files"]) == (["ema"], 0)
    output("export", "HEAD", "-o", "again.safetensors", "--item", "model")
    assert torch.equal(load_file(tmp_path / "again.safetensors")["w"], state["model"]["w"])  # type: ignore[arg-type]


def test_the_store_is_made_if_there_is_none(run: Run, tmp_path: Path) -> None:
    save_file({"w": torch.ones(300)}, tmp_path / "m.safetensors")
    done = run("import", "m.safetensors", "--branch", "llama")
    assert (done.exit_code, done.stderr) == (0, "made a store at checkpoints\n")
    assert "llama" in run("log").stdout  # HEAD is on it


def test_a_folder_of_several_models_is_not_one(failure: Callable[..., str], past: History, tmp_path: Path) -> None:
    for name in ("base", "chat"):
        (tmp_path / "models" / name).mkdir(parents=True)
        save_file({"w": torch.ones(300)}, tmp_path / "models" / name / "model.safetensors")
    said = failure("import", "models")
    assert "models holds 2 models (base, chat); import each" in said
    assert "`moonclip import models/base --branch base`" in said


def test_a_directory_is_not_made_where_a_file_is_named(run: Run, output: Out, past: History, tmp_path: Path) -> None:
    (tmp_path / "llama-3.1").mkdir()
    save_file({"w": torch.ones(300)}, tmp_path / "llama-3.1" / "model.safetensors")
    output("import", "llama-3.1", "--branch", "llama")
    assert "x.gguf is called as one file" in run("export", "llama", "-o", "x.gguf").stderr
    assert not (tmp_path / "x.gguf").exists()
    output("export", "llama", "-o", "again-3.1")
    assert digests(tmp_path / "again-3.1") == digests(tmp_path / "llama-3.1")


def test_a_diff_tells_what_files_there_are_instead_of_how_they_are_made(
    output: Out, past: History, tmp_path: Path
) -> None:
    for name, value in (("base", 1.0), ("chat", 2.0)):
        (tmp_path / name).mkdir()
        save_file({"w": torch.full((30_000,), value)}, tmp_path / name / "model.safetensors")
        output("import", name, "--branch", name)
    assert re.search(
        r"files::model.safetensors\S*: file\(117 KiB, sha256 [0-9a-f]{16}…\) -> file\(117 KiB, sha256 ",
        output("diff", "base", "chat"),
    )


def test_a_file_whose_name_looks_like_an_item(document: Document, past: History, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(3)}, tmp_path / "lr=3.pt")
    assert document("import", "lr=3.pt")["items"] == ["model"]
    assert document("import", "ema=lr=3.pt")["items"] == ["ema"]


def test_what_is_not_there(run: Run, past: History) -> None:
    for arguments in (("nothing.pt",), ("a=nothing.pt",), ()):
        result = run("import", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
    assert "nothing.pt does not exist" in run("import", "nothing.pt").stderr


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def test_a17_what_would_run_something_is_refused(
    failure: Out, document: Document, past: History, tmp_path: Path
) -> None:
    torch.save({"model": Evil()}, tmp_path / "evil.pt")
    assert "nothing was run" in failure("import", "evil.pt")
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(Evil()))
    assert "asks for posix.mkdir" in failure("import", "dcp")
    assert not (tmp_path / "ran").exists()
    assert document("log", "-n", "1")[0]["id"] == past.main[-1].hex()


def test_a_directory_that_is_here_has_a_name(
    run: Run, document: Document, past: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine" / "below").mkdir(parents=True)
    save_file({"w": torch.ones(300)}, tmp_path / "mine" / "model.safetensors")
    for here, there in (("mine", "."), ("mine/below", "..")):
        monkeypatch.chdir(tmp_path / here)
        assert run("-C", str(past.root), "import", there).exit_code == 0
        assert document("-C", str(past.root), "log", "-n", "1")[0]["message"] == "Import of mine"


def test_a_pipe_is_not_waited_for(failure: Out, past: History, tmp_path: Path) -> None:
    for name in ("pipe.bin", "pipe.safetensors"):
        os.mkfifo(tmp_path / name)
        assert f"{name} is no file, but a pipe" in failure("import", name)
        assert f"{name} is no file, but a pipe" in failure("import", f"model={name}")
        assert f"{name} is no file, but a pipe" in failure("dedup", "--dry-run", name)


@pytest.mark.parametrize("name", ["model.safetensors.index.json", ".metadata", "model.safetensors", "a.safetensors"])
def test_a_pipe_in_a_directory_is_not_waited_for_whatever_its_name(
    run: Run, past: History, tmp_path: Path, name: str
) -> None:
    (tmp_path / "model").mkdir()
    save_file({"w": torch.ones(300)}, tmp_path / "model" / "other.safetensors")
    os.mkfifo(tmp_path / "model" / name)
    for source in ("model", "ema=model"):
        imported = run("-C", str(past.root), "import", source)
        assert imported.exit_code == 0, imported.output
    assert run("dedup", "--dry-run", "model").exit_code == 0


def test_a_pipe_is_no_file_that_an_index_may_name(failure: Out, past: History, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    save_file({"w": torch.ones(300)}, tmp_path / "model" / "one.safetensors")
    index = {"weight_map": {"w": "one.safetensors", "v": "two.safetensors"}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    os.mkfifo(tmp_path / "model" / "two.safetensors")
    assert "has no two.safetensors" in failure("-C", str(past.root), "import", "model")
    assert "two.safetensors" in failure("-C", str(past.root), "import", "ema=model")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")  # by torch
def test_why_a_pickle_is_refused_is_said(failure: Out, past: History, tmp_path: Path) -> None:
    (tmp_path / "old.bin").write_bytes(pickle.dumps(Path("x")))
    assert "values (Unsupported operand 149)" in failure("import", "old.bin")


def test_names_of_several_lines_stay_on_one(output: Out, run: Run, past: History, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    save_file({"a\nb::w": torch.ones(300)}, tmp_path / "m" / "model.safetensors")
    (tmp_path / "m" / "x\ny.bin").write_bytes(b"none")
    result = run("import", "m")
    assert ": a\\nb, files (" in result.stdout.splitlines()[0]
    assert result.stderr.startswith("kept x\\ny.bin as it is: ")


def test_progress_is_told_in_bytes(run: Run, past: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a terminal would be told: the bar itself is another module's. Files are read for their hash, and stored."""
    told: list[tuple[str, int, int]] = []
    monkeypatch.setattr(importing, "progress_bar", lambda **_: nullcontext(lambda *each: told.append(each)))
    (tmp_path / "m").mkdir()
    save_file({"w": torch.rand(50_000), "b": torch.rand(10)}, tmp_path / "m" / "model.safetensors")
    assert run("import", "m").exit_code == 0
    file_bytes = (tmp_path / "m" / "model.safetensors").stat().st_size
    total_bytes = file_bytes + 50_010 * 4
    assert {what for what, _, _ in told} == {"reading"}
    assert told[-1][1:] == (total_bytes, total_bytes)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_no_more_is_told_than_there_is() -> None:
    """A save that has to be repeated reads more."""
    told: list[tuple[str, int, int]] = []
    counter = importing._Counter(lambda *each: told.append(each), 60)
    counter.expect(40)
    for size_bytes in (30, 60, 60):
        counter.add(size_bytes)
    assert told == [("reading", 30, 100), ("reading", 90, 100), ("reading", 100, 100)]


def without_torch(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that has no torch."""
    program = "import sys; sys.modules['torch'] = None\nfrom moonclip.cli import main\nmain()"
    command = [sys.executable, "-c", program, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def test_safetensors_need_no_torch(past: History, tmp_path: Path) -> None:
    assert without_torch(tmp_path, "export", "best", "--format", "hf", "-o", "hf").returncode == 0
    assert without_torch(tmp_path, "import", "base=hf", "--branch", "base").returncode == 0
    assert without_torch(tmp_path, "export", "base", "-o", "m.safetensors", "--item", "base").returncode == 0
    out, back = load_file(tmp_path / "hf" / "model.safetensors"), load_file(tmp_path / "m.safetensors")
    assert out.keys() == back.keys()
    assert all(torch.equal(out[name].view(torch.uint8), back[name].view(torch.uint8)) for name in out)  # NaNs too


@pytest.mark.parametrize(
    "arguments",
    [
        ("export", "best", "-o", "m.pt"),
        ("export", "best", "-o", "m", "--format", "dcp"),
        ("export", "best", "-o", "m", "--format", "dir"),
        ("import", "x.pt"),
    ],
)
def test_what_needs_torch_says_so(past: History, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "x.pt").touch()
    ended = without_torch(tmp_path, *arguments)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "takes torch, which is not installed" in ended.stderr
    assert not (tmp_path / "m").exists()


def test_help_of_it_needs_no_torch() -> None:
    program = "import sys; sys.argv = ['moonclip', 'import', '--help']\nfrom moonclip.cli import main\n"
    program += "try: main()\nexcept SystemExit: print('torch' in sys.modules, 'numpy' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1] == "False False"
    assert "ITEM" in said.stdout


def test_a_branch_without_a_name_is_refused(failure: Out, past: History, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "step_1.pt")
    assert "a name must not be empty" in failure("import", "step_1.pt", "--branch", "")
    assert "a name must not be empty" in failure("migrate", str(tmp_path), "--branch", "")


# --- model directories ----------------------------------------------------------------------------------------------


def made(directory: Path, seed: int = 0, change: float = 0.0) -> Path:
    directory.mkdir()
    base = torch.randn(300, 400, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
    save_file({"w": base + change * torch.randn(300, 400).to(torch.bfloat16)}, directory / "model.safetensors")
    (directory / "config.json").write_text("{}")
    return directory


def test_a_model_directory_and_its_base(output: Out, document: Document, past: History, tmp_path: Path) -> None:
    made(tmp_path / "llama")
    made(tmp_path / "chat", change=1e-3)
    assert output("import", "llama", "--branch", "base", "--base", "none").splitlines()[1:] == [
        "2 files of 234 KiB can be exported as they were"
    ]
    base = document("log", "base")[0]["id"]
    lines = output("import", "chat", "--branch", "chat", "-m", "Tuned").splitlines()
    assert lines[0].endswith(" on branch chat: model, files (234 KiB of tensors)")
    assert lines[1].startswith(f"base {base[:8]} (nearest of the store's), which saves an estimated ")
    newest = document("log", "chat")[0]
    assert (newest["message"], newest["parents"], newest["metadata"]["derived-from"]) == ("Tuned", [base], base)
    told = document("import", "chat", "--branch", "named", "--base", "base~0")
    assert (told["base"], told["base_found_by"]) == (base, "name")
    assert told["base_saves_bytes"] > 50_000 > told["stored_bytes"]
    assert document("import", "chat", "--branch", "alone", "--base", "none")["base"] is None


def test_a_base_that_is_not_there(failure: Out, past: History, tmp_path: Path) -> None:
    made(tmp_path / "llama")
    assert "nothing" in failure("import", "llama", "--base", "nothing")


def test_what_is_kept_or_left_out_is_told(run: Run, document: Document, past: History, tmp_path: Path) -> None:
    torch.save(Evil(), made(tmp_path / "llama") / "training_args.bin")
    (tmp_path / "llama" / ".git").mkdir()
    result = run("import", "llama")
    assert "kept training_args.bin as it is: it holds more than tensors" in result.stderr
    assert "left out .git: a directory of another tool" in result.stderr
    told = document("import", "llama")
    assert [each["name"] for each in (*told["kept"], *told["left_out"])] == ["training_args.bin", ".git"]


def test_a_directory_without_torch(past: History, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(50_000)}, made(tmp_path / "llama") / "pytorch_model.bin")
    ended = without_torch(tmp_path, "import", "llama", "--branch", "base")
    assert (ended.returncode, "kept pytorch_model.bin as it is: torch is not installed" in ended.stderr) == (0, True)
    assert without_torch(tmp_path, "export", "base", "-o", "out").returncode == 0
    assert digests(tmp_path / "out") == digests(tmp_path / "llama")
