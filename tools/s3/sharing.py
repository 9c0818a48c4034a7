"""One server of a kind for all processes of a test run, and of any other that runs beside it.

A *keeper* process owns the server. Users hold a shared lock on a file, which the kernel lets go however they end; once
the keeper gets that lock for itself nobody is left, and it stops the server and ends. Nothing counts, nothing polls.

    users     held shared by each user, exclusively by a keeper that is ending
    keeper    held by the keeper for all its life
    starting  held by a user that finds or starts the keeper
    account   how to reach the server, once it answers
"""

import fcntl
import json
import os
import shutil
import sys
from functools import cache
from pathlib import Path

from . import SERVERS
from .installing import CACHE, Failed, locked
from .server import Account

_ROOT = Path(__file__).parents[2]


RUN = CACHE / "run"
"""Where shared servers live."""


@cache
def shared(name: str, run: Path = RUN) -> Account:
    """An account on the server of that name which others use too; this process keeps it alive till it ends.

    Take a bucket of your own, and never stop it.

    Args:
        name: of a kind of server.
        run: users of one server agree in this folder.

    Raises:
        Unavailable: there is none on this machine.
        Failed: it did not start.
    """
    SERVERS[name].install()
    folder = run / name
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "starting"):
        _hold(folder / "users", fcntl.LOCK_SH)
        told = (folder / "account").read_text(encoding="utf-8") if _is_kept(folder) else _start_keeper(name, folder)
    answer = json.loads(told)
    if "failed" in answer:
        raise Failed(answer["failed"])
    return Account(traits=SERVERS[name].traits, **answer)


def _hold(path: Path, how: int) -> None:
    """Wait for a lock, and hold it until this process ends."""
    fcntl.flock(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), how)


def _is_kept(folder: Path) -> bool:
    try:
        with locked(folder / "keeper", how=fcntl.LOCK_SH | fcntl.LOCK_NB):
            return False
    except BlockingIOError:
        return True


def _start_keeper(name: str, folder: Path) -> str:
    """Start a keeper, which belongs to nobody, and hear what it says once it is ready."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "tools.s3.sharing", name, str(folder)]
    tell = [(os.POSIX_SPAWN_DUP2, writing, 1)]
    os.posix_spawn(sys.executable, command, os.environ | {"PYTHONPATH": str(_ROOT)}, file_actions=tell, setsid=True)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as words:
        return words.read() or json.dumps({"failed": f"the keeper of {name} died; see what it wrote on stderr"})


def keep(name: str, folder: Path) -> None:
    """Own a server until nobody uses it; tells on standard output how to reach it, or why it failed."""
    _hold(folder / "keeper", fcntl.LOCK_EX)
    data = folder / "data"
    shutil.rmtree(data, ignore_errors=True)
    try:
        server = SERVERS[name].start(data)
    except Failed as failure:
        print(json.dumps({"failed": str(failure)}))
        return
    with server:
        account = {key: value for key, value in vars(server.account).items() if key != "traits"}
        (folder / "account").write_text(json.dumps(account), encoding="utf-8")
        print(json.dumps(account), flush=True)
        # Who started this reads until the end of the output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        _hold(folder / "users", fcntl.LOCK_EX)
        server.kill()  # its data go anyhow, and a graceful end of Ceph's takes five seconds
    shutil.rmtree(data)


if __name__ == "__main__":
    keep(sys.argv[1], Path(sys.argv[2]))
