"""Starts measured processes, one at a time, listens to them, and looks at their memory from outside."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from .measured.clocks import tree
from .peers import RUNNER, Peer
from .workloads import CACHE

Event = dict[str, Any]

_SAMPLE_S: Final = 0.02
_LIMIT_S: Final = 5400
"""A session that takes longer hangs: twelve saves of a large run took 2,925 s on a machine with other work."""
_PR_SET_CHILD_SUBREAPER: Final = 36


class PeerFailed(Exception):
    """A measured process ended with an error."""


def run(peer: Peer, do: str, environment: Mapping[str, str] | None = None, /, **facts: Any) -> list[Event]:
    """Do a job with a library in a process of its own.

    Args:
        peer: the library.
        do: name of the job, see ``measured.jobs``.
        environment: variables to set besides.
        **facts: what the job has to know.

    Returns:
        What it told, in order. Where it asked to be watched, ``{"event": "memory", "label", "pss_bytes"}``.

    Raises:
        PeerFailed: it ended with an error, or not at all.
    """
    with (
        _nothing_left_behind(),
        _Measured(peer, {**os.environ, **(environment or {})}, {"do": do, **facts}) as process,
    ):
        return list(process.events())


@contextmanager
def store_root() -> Iterator[Path]:
    """A directory for one store, removed in the end."""
    stores = CACHE / "stores"
    stores.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(dir=stores))
    try:
        yield root / "store"
    finally:
        shutil.rmtree(root)


@contextmanager
def _nothing_left_behind() -> Iterator[None]:
    """End whatever is started within, and what that starts, whatever ends the block and wherever that comes.

    An interrupt may come when a process is started and nobody has heard of it yet; so nobody is asked.
    """
    others = set(tree(os.getpid()))
    _adopt(orphans=True)
    try:
        yield
    finally:
        while left := set(tree(os.getpid())) - others:  # what a process started just before it was killed comes here
            for pid in left:
                with suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
        _adopt(orphans=False)


class _Measured:
    """A process that runs a job, and ends with the ``with`` block."""

    def __init__(self, peer: Peer, environment: Mapping[str, str], job: Mapping[str, Any]) -> None:
        # -I: a PYTHONPATH that leads here must not give the peer our package in place of its own.
        command = [str(peer.python), "-I", str(RUNNER), json.dumps(job)]
        self._label = peer.label
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
            start_new_session=True,  # Ctrl-C is for the bench, which then ends this
        )
        self._timer = threading.Timer(_LIMIT_S, self._process.kill)
        self._timer.daemon = True  # an interrupt before the block begins must not have the bench wait for it
        self._timer.start()

    def events(self) -> Iterator[Event]:
        """What it tells, until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: Event = json.loads(line)
            if event["event"] == "watch":
                yield self._watched(event["label"], self._process.stdout)
            else:
                yield event
        if self._process.wait() != 0:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace")
            raise PeerFailed(f"{self._label} ended with exit code {self._process.returncode}:\n{said[-3000:].strip()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._process.kill()
        self._process.__exit__(None, None, None)
        self._errors.close()

    def _watched(self, label: str, lines: Iterator[str]) -> Event:
        """Watch the memory until the process says that this is enough."""
        with _Watch(self._process.pid) as watch:
            self._answer()
            assert json.loads(next(lines))["event"] == "watched"
        self._answer()
        return {"event": "memory", "label": label, "pss_bytes": watch.most_bytes}

    def _answer(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()


def _adopt(*, orphans: bool) -> None:
    """Whether what descendants leave behind becomes this process's child, which can then be ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(orphans))


class _Watch:
    """Looks again and again at the summed PSS of a process tree; pages that several share count once."""

    def __init__(self, pid: int) -> None:
        self.most_bytes = 0
        self._pid = pid
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()

    def _look(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._enough.wait(_SAMPLE_S)
            self.most_bytes = max(self.most_bytes, sum(_pss_bytes(pid) for pid in tree(self._pid)))


def _pss_bytes(pid: int) -> int:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # it ended meanwhile
        return 0
    return next((int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss:")), 0)
