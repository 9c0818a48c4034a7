"""Processes of servers: on loopback, gone with whoever started them, and awaited until they answer."""

import http.client
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

from .installing import Failed

LOOPBACK = "127.0.0.1"

_START_TIMEOUT_S = 120
"""Ceph takes 8 s on an idle machine; a machine that runs tests on all cores is not idle."""

_STOP_TIMEOUT_S = 10
_POLL_S = 0.05


def free_ports(count: int) -> list[int]:
    """Ports that nobody listened on a moment ago, all different."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server((LOOPBACK, 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with changes, less what would lead a server to somebody's account or proxy."""
    unwanted = ("AWS_", "PYTHON", "COVERAGE", "HTTP_PROXY", "HTTPS_PROXY", "CEPH_")
    return {name: value for name, value in os.environ.items() if not name.upper().startswith(unwanted)} | changes


class Daemon:
    """One running process of a server, in a session of its own.

    It is killed when the *thread* that started it ends, however it ends: the kernel sees to it.
    """

    def __init__(self, command: list[str], env: Mapping[str, str], log: Path, folder: Path) -> None:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            raise Failed("setpriv is not here (package util-linux): without it a server would outlive its test")
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [setpriv, "--pdeathsig", "KILL", *command],
                cwd=folder,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt typed at the terminal is the owner's to handle
            )

    def check(self) -> None:
        """Find out that the process still runs.

        Raises:
            Failed: it ended; says with which status, and its last words.
        """
        status = self._process.poll()
        if status is not None:
            words = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:]
            raise Failed(f"{self.log.stem} ended with {status}: {' | '.join(words) or 'it said nothing'}")

    def send(self, how: signal.Signals) -> None:
        """Signal the whole session, if there is one still."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, how)

    def end(self, how: signal.Signals) -> None:
        """Signal the session, wait for the process, and kill what does not go."""
        self.send(how)
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self._process.wait()


def await_answer(url: str, daemons: list[Daemon], path: str = "/") -> None:
    """Wait until a server answers anything but a failure of its own.

    Raises:
        Failed: one of the processes ended, or it took too long.
    """
    address = urlsplit(url)
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        for daemon in daemons:
            daemon.check()
        if _status(address.hostname or LOOPBACK, address.port or 80, path) < http.HTTPStatus.INTERNAL_SERVER_ERROR:
            return
        time.sleep(_POLL_S)
    raise Failed(f"{url} did not answer within {_START_TIMEOUT_S} s; see {daemons[-1].log}")


def _status(host: str, port: int, path: str) -> int:
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return http.HTTPStatus.SERVICE_UNAVAILABLE
    finally:
        connection.close()
