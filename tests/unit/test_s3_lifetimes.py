"""Servers for tests come once, whole, and go with whoever uses them."""

import fcntl
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools.s3 import SERVERS, Failed, Unavailable, installing
from tools.s3.__main__ import main
from tools.s3.installing import installed, locked
from tools.s3.processes import environment
from tools.s3.server import Account, Kind, Running, Traits, launched

ROOT = Path(__file__).parents[2]
WAIT_S = 60

OWNER = """
import sys
from pathlib import Path
from tools.s3 import SERVERS
server = SERVERS["moto"].start(Path(sys.argv[1]))
print(*(each._process.pid for each in server._daemons), flush=True)
sys.stdin.read()
"""

USER = """
import sys
from pathlib import Path
from tools.s3.sharing import shared
print(shared("moto", Path(sys.argv[1])).endpoint_url, flush=True)
sys.stdin.read()
"""


def child(program: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str], how: signal.Signals = signal.SIGKILL) -> None:
    with process:
        process.send_signal(how)


def test_a_server_dies_with_its_owner(tmp_path: Path) -> None:
    owner = child(OWNER, str(tmp_path))
    pids = [int(pid) for pid in said(owner).split()]
    handles = [os.pidfd_open(pid) for pid in pids]
    end(owner)
    assert len(handles) == 1
    for handle in handles:
        assert select.select([handle], [], [], WAIT_S)[0], "it lives on"
        os.close(handle)


def test_users_share_a_server_that_goes_with_the_last(tmp_path: Path) -> None:
    first, second = child(USER, str(tmp_path)), child(USER, str(tmp_path))
    url = said(first)
    assert url.startswith("http://127.0.0.1:")
    assert said(second) == url
    end(first)  # it may be the one that started the keeper
    third = child(USER, str(tmp_path))
    assert said(third) == url
    end(second)
    end(third)
    with locked(tmp_path / "moto" / "keeper"):  # waits for the keeper's end
        assert not (tmp_path / "moto" / "data").exists()
    again = child(USER, str(tmp_path))
    assert said(again) != ""
    end(again)
    with locked(tmp_path / "moto" / "keeper", how=fcntl.LOCK_EX):
        pass


def test_a_server_by_hand(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.s3", "start", "moto"]
    env = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=env)
    assert said(process).startswith("export AWS_ENDPOINT_URL_S3=http://127.0.0.1:")
    end(process, signal.SIGTERM)
    assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    attempts: list[Path] = []

    def prepare(program: Path, directory: Path) -> Callable[[], Running]:
        attempts.append(directory)
        command = ["sh", "-c", "echo the last words; exit 3"]

        def launch() -> Running:
            account = Account("broken", "http://127.0.0.1:9", "", "", Traits())
            return launched({"broken": command}, environment(), directory, [account.endpoint_url], lambda: account)

        return launch

    kind = Kind("broken", Traits(), lambda: tmp_path, prepare)
    with pytest.raises(Failed, match="broken ended with 3: the last words"):
        kind.start(tmp_path / "data")
    assert len(set(attempts)) == 3


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(installing, "CACHE", tmp_path)
    return tmp_path


def test_installs_once_for_each_recipe(cache: Path) -> None:
    built: list[str] = []

    def build(folder: Path) -> None:
        assert list(folder.iterdir()) == []
        (folder / "program").touch()
        built.append(folder.name)

    for recipe in ("version 1", "version 1", "version 2", "version 2"):
        assert installed("thing", recipe, build) == cache / "thing"
    assert built == ["thing", "thing"]


def test_installs_once_for_all_who_ask_together(cache: Path) -> None:
    built: list[Path] = []
    with ThreadPoolExecutor(8) as threads:
        folders = list(threads.map(lambda _: installed("thing", "version 1", built.append), range(8)))
    assert built == [cache / "thing"]
    assert folders == built * 8


def test_half_an_installation_is_none(cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise Failed("no network")

    def build(folder: Path) -> None:
        assert list(folder.iterdir()) == []

    with pytest.raises(Unavailable, match="no network"):
        installed("thing", "version 1", fail)
    installed("thing", "version 1", build)


def test_installing_says_what_a_machine_lacks(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cache))
    with pytest.raises(Unavailable, match="apt-get or dpkg is not here"):
        SERVERS["ceph"].install()


def test_installing_from_the_command_line() -> None:
    done = CliRunner().invoke(main, ["install", "moto", "ministack"])
    assert done.exit_code == 0
    assert sorted(line.split()[:2] for line in done.output.splitlines()) == [
        ["ministack", "installed"],
        ["moto", "installed"],
    ]


def test_a_server_that_was_asked_for_and_is_not_to_be_had(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cache))
    done = CliRunner().invoke(main, ["install", "ceph"])
    assert done.exit_code == 1
    assert "ceph       unavailable: it comes from Debian packages" in done.output


def test_what_comes_by_pip_alone_is_required() -> None:
    assert [name for name, kind in SERVERS.items() if kind.required] == ["moto", "ministack"]
