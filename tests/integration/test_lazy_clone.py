"""Lazy clones, as people use them: by a manager, by commands, and from an S3 server."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file

from moonclip import CheckpointManager, Pruned, RemoteError
from moonclip.cli.app import commands
from store.disk.files import Files
from store.ids import short
from store.layout import Layout
from store.reading.packs import pack_path
from store.remotes.configured import set_lazy
from store.repository import Repository
from tests.s3servers import bucket, server
from tools.s3 import Account
from tools.s3.proxy import FaultProxy

ROWS, COLUMNS = 1000, 256


def state(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    return {
        "model": {name: torch.randn(ROWS, COLUMNS, generator=generator) for name in ("head", "tail")},
        "optimizer": {"moment": torch.randn(ROWS, COLUMNS, generator=generator), "step": step},
    }


def zeros() -> dict[str, Any]:
    model = {name: torch.zeros(ROWS, COLUMNS) for name in ("head", "tail")}
    return {"model": model, "optimizer": {"moment": torch.zeros(ROWS, COLUMNS), "step": 0}}


def requires(found: dict[str, Any], step: int) -> None:
    for item, entries in state(step).items():
        for name, entry in entries.items():
            assert torch.equal(torch.as_tensor(found[item][name]), torch.as_tensor(entry)), f"{item}::{name}"


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """A remote that has steps 0 to 3; the store that they come from is ``first``."""
    path = tmp_path / "remote"
    path.mkdir()
    with CheckpointManager(tmp_path / "first", remote=path) as mgr:
        for step in range(4):
            mgr.save(step=step, **state(step))
        mgr.push()
    return path


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Result]:
    """Run a command on the lazy clone."""
    root = tmp_path / "lazy"
    return lambda *arguments: CliRunner().invoke(commands, ["-C", str(root), *map(str, arguments)])


@pytest.fixture
def lazy(tmp_path: Path, remote: Path) -> Path:
    root = tmp_path / "lazy"
    result = CliRunner().invoke(commands, ["clone", "--lazy", str(remote), str(root)])
    assert result.exit_code == 0, result.output
    return root


def pack_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / "packs").iterdir())


def output(result: Result) -> str:
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return result.stdout


# --- a manager ------------------------------------------------------------------------------------------------------


def test_a_run_is_taken_up_anywhere_in_its_history(tmp_path: Path, lazy: Path) -> None:
    with CheckpointManager(lazy) as mgr:
        requires(mgr.load("main~2"), 1)
        mgr.branch("again", at="main~3")
        found = zeros()
        assert mgr.resume(branch="again", **found) == 1
        requires(found, 0)
        mgr.save(step=10, **state(10))
        mgr.flush()
        assert mgr.push().commit_count == 1
        assert mgr.fsck(full=True).clean
        mgr.gc()
        assert mgr.fsck(full=True).clean
        requires(mgr.load("again"), 10)
        requires(mgr.load("again~1"), 0)
        requires(mgr.load("main~2"), 1)
    with CheckpointManager(tmp_path / "first") as mgr:
        mgr.fetch()
        requires(mgr.load("origin/again"), 10)
        assert mgr.fsck(full=True).clean


def test_lazy_tensors_fetch_the_rows_that_are_looked_at(lazy: Path) -> None:
    before = pack_bytes(lazy)
    with CheckpointManager(lazy) as mgr:
        model = mgr.load("main~1", items=["model"], lazy=True)["model"]
        assert model["head"].shape == (ROWS, COLUMNS)
        assert pack_bytes(lazy) - before < 3000
        assert torch.equal(model["head"][10:12], state(2)["model"]["head"][10:12])
        assert pack_bytes(lazy) - before < ROWS * COLUMNS * 4 * 1.1
        assert torch.equal(model["tail"].load(), state(2)["model"]["tail"])
    with CheckpointManager(lazy) as mgr:
        assert torch.equal(mgr.load_tensors("model::head", "main~1")["model::head"], state(2)["model"]["head"])


def test_a_description_and_a_diff_of_what_is_not_here(tmp_path: Path, lazy: Path) -> None:
    with CheckpointManager(lazy) as mgr, CheckpointManager(tmp_path / "first") as first:
        before = pack_bytes(lazy)
        told = mgr.describe("main~1")
        assert told.snapshot.absent == ("model", "optimizer")
        assert told.raw_bytes == first.describe("main~1").raw_bytes
        assert (told.stored_bytes, pack_bytes(lazy) - before < 5000) == (0, True)
        found, expected = (each.diff("main~2", "main~1") for each in (mgr, first))
        assert [item.tensors for item in found.items] == [item.tensors for item in expected.items]


def test_where_the_tip_is_damaged_the_one_before_comes(lazy: Path) -> None:
    with CheckpointManager(lazy) as mgr:
        mgr.resume(**zeros())
    with Repository.open(lazy) as repo:
        entry = repo.tree(repo.commit(repo.resolve("main")), "model")["head"]
        place = repo.index.places(entry.chunks[0])[0]
    path = pack_path(lazy / "packs", place.pack)
    data = bytearray(path.read_bytes())
    data[place.offset + place.stored_bytes // 2] ^= 1
    path.write_bytes(data)
    with CheckpointManager(lazy) as mgr:
        found = zeros()
        assert mgr.resume(**found) == 3
        requires(found, 2)


def test_a_store_that_was_resumed_from_nothing_reads_the_rest_when_asked(tmp_path: Path, remote: Path) -> None:
    with CheckpointManager(tmp_path / "fresh", remote=remote) as mgr:
        assert mgr.resume(**zeros()) == 4
        requires(mgr.load("step:1"), 1)


# --- commands -------------------------------------------------------------------------------------------------------


def test_commands_fetch_what_they_show(tmp_path: Path, lazy: Path, run: Callable[..., Result]) -> None:
    listed = output(run("ls", "main~1"))
    assert "optimizer::moment" in listed
    assert listed.count("absent") == 3
    assert "2 tensors" in output(run("show", "main~1"))
    shown = output(run("show", "main~1", "model::head"))
    assert f"{state(2)['model']['head'][0, 0].item():.4g}"[:4] in shown
    assert output(run("ls", "main~1")).count("absent") == 2
    assert json.loads(output(run("show", "main~1", "optimizer::step", "--json")))["value"] == 2
    assert "model::head" in output(run("diff", "main~3", "main~2", "model::head"))
    target = tmp_path / "old.safetensors"
    assert "wrote model" in output(run("export", "main~3", "-o", target, "--item", "model"))
    assert torch.equal(load_file(target)["tail"], state(0)["model"]["tail"])
    assert output(run("fsck", "--full")).startswith("clean: 4 commits")


def test_what_is_here_needs_no_remote(lazy: Path, remote: Path, run: Callable[..., Result]) -> None:
    output(run("show", "main", "model::head"))
    remote.rename(remote.with_name("away"))
    assert output(run("log", "--oneline")).count("\n") == 4
    for command in (("show", "main", "model::head"), ("stats",), ("fsck", "--full"), ("gc", "--dry-run"), ("gc",)):
        output(run(*command))
    result = run("ls", "main~1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "remote" in result.stderr
    with CheckpointManager(lazy) as mgr, pytest.raises(RemoteError):
        mgr.load("main~1")


def test_where_laziness_is_off_the_command_is_told_that_brings_it(lazy: Path, run: Callable[..., Result]) -> None:
    set_lazy(Layout(lazy), Files(), "origin", lazy=False)
    with CheckpointManager(lazy) as mgr, pytest.raises(Pruned) as refused:
        mgr.load("main~1")
    with Repository.open(lazy, read_only=True) as repo:
        commit = repo.resolve("main~1")
    command = f"moonclip fetch origin --commit {short(commit)}"
    assert f"`{command}`" in str(refused.value)
    output(run(*command.split()[1:]))
    with CheckpointManager(lazy) as mgr:
        requires(mgr.load("main~1"), 2)


def test_only_a_lazy_read_loads_what_it_takes(lazy: Path, tmp_path: Path) -> None:
    program = """
import sys
from store.repository import Repository
with Repository.open(sys.argv[1]) as repo:
    loaded = [name for name in sys.modules if name.startswith("store.remotes")]
    commit = repo.commit(repo.resolve("main"))
    tensor = repo.read_tensor(repo.tree(commit, "model")["head"])
print(loaded, "boto3" in sys.modules, len(tensor))
"""
    finished = subprocess.run([sys.executable, "-c", program, str(lazy)], check=True, capture_output=True, text=True)
    assert finished.stdout.split() == ["[]", "False", str(ROWS * COLUMNS * 4)]


# --- S3 -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    with FaultProxy(server("moto")) as proxy:
        yield proxy


def test_one_tensor_of_a_large_commit_on_s3_takes_its_own_bytes(
    tmp_path: Path, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    account: Account = proxy.account
    s3: dict[str, Any] = {
        "s3_bucket": bucket(account),
        "s3_access_key": account.access_key,
        "s3_secret_key": account.secret_key,
        "s3_endpoint": proxy.endpoint_url,
        "s3_region": account.region,
        "s3_path_style": True,
    }
    layers = {f"layer.{n}": torch.randn(256, 1024, generator=torch.Generator().manual_seed(n)) for n in range(24)}
    with CheckpointManager(tmp_path / "first", **s3) as mgr:
        for step in range(2):
            mgr.save(step=step, model=layers | {"step": torch.full((1000,), step)})
        mgr.save(step=2, model={"step": torch.zeros(1000)})
        mgr.push()
    with CheckpointManager(tmp_path / "lazy", **s3) as mgr:
        mgr.resume(model={"step": torch.ones(1000)})
        proxy.forget()
        model = mgr.load("main~1", lazy=True)["model"]
        assert torch.equal(model["layer.7"].load(), layers["layer.7"])
        tensor_bytes = layers["layer.7"].nbytes
        fetched_bytes = sum(each.sent_bytes for each in proxy.requests)
        assert fetched_bytes < 1.1 * tensor_bytes
        assert len(proxy.requests) <= 6
        proxy.forget()
        found = mgr.load("main~1")["model"]
        assert all(torch.equal(found[name], layer) for name, layer in layers.items())
        assert len(proxy.requests) <= 8
        assert sum(each.sent_bytes for each in proxy.requests) < 24 * tensor_bytes
    assert account.secret_key not in (tmp_path / "lazy" / "config").read_text()
