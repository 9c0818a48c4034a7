"""The libraries that are measured, each in an environment and a process of its own."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..workloads import CACHE, Series

_RUNNER: Final = Path(__file__).with_name("runner.py")


@dataclass(frozen=True, slots=True)
class Peer:
    """A library.

    Attributes:
        name: its adapter's in ``runner.py``.
        label: what people call it.
        python: interpreter of the environment it is installed in.
    """

    name: str
    label: str
    python: Path


OURS: Final = Peer("ours", "moonclip-store", Path(sys.executable))
RUST: Final = Peer("rust", "moonclip 0.3.1 (Rust)", Path(".venv-peers/bin/python"))


@dataclass(frozen=True, slots=True)
class Stored:
    """What a library made of a series.

    Attributes:
        growth_bytes: how much its directory grew with each save.
        steps: what it lists and, after reopening, loaded bit for bit.
    """

    growth_bytes: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def total_bytes(self) -> int:
        """Size of the directory in the end."""
        return sum(self.growth_bytes)


def store(peer: Peer, series: Series) -> Stored:
    """Save a series with a library's default settings into a new store, reopen it and load everything back.

    Raises:
        CalledProcessError: the library failed, or gave back something else than was saved.
    """
    root = CACHE / "stores" / peer.name
    shutil.rmtree(root, ignore_errors=True)
    root.parent.mkdir(parents=True, exist_ok=True)
    # -I: a PYTHONPATH that leads here must not give the peer our package in place of its own.
    command = [str(part) for part in (peer.python, "-I", _RUNNER, peer.name, root, *series.paths)]
    finished = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    said: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    shutil.rmtree(root)
    return Stored(tuple(said["growth_bytes"]), tuple(said["steps"]))
