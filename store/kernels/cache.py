"""numba's cache of the compiled kernels: where it is, whether it is warm, and how it is filled.

The cache's directory is chosen here, so that a stamp beside it can say that it holds every kernel for exactly this
source, these library versions and this processor. Looking at the stamp costs a few system calls and no import.
"""

import hashlib
import importlib
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import reference
from .exercise import exercise

if TYPE_CHECKING:
    from . import Kernels

_SOURCE = Path(__file__).with_name("compiled.py")
_LIBRARIES = ("numba", "llvmlite", "numpy")


def directory() -> Path | None:
    """The first writable place: beside the source, as Python's own cache is, or the user's cache directory."""
    for place in (_SOURCE.parent / "__pycache__", _user_cache() / "moonclip" / "kernels"):
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(place, os.W_OK | os.X_OK):
            return place
    return None


def is_warm() -> bool:
    """Whether loading would compile nothing."""
    place = directory()
    return place is not None and _stamp(place).exists()


def load() -> "Kernels":
    """Import the compiled kernels, call each of them once, and compare the results with the twins'.

    Compiles what the cache lacks, then stamps it.

    Raises:
        RuntimeError: no writable cache directory, or the kernels are wrong.
        Exception: whatever a broken numba raises.

    Cost: half a second with a warm cache, up to a minute with a cold one.
    """
    place = directory()
    if place is None:
        raise RuntimeError("no directory to cache compiled kernels in")
    compiled = _import_compiled(place)
    if exercise(compiled) != exercise(reference):
        raise RuntimeError("compiled kernels disagree with their twins")
    _stamp(place).touch()
    return compiled


def start_helper() -> None:
    """Start a process that fills the cache on its own: niced, silent, detached, ending by itself.

    Several may be started, by this or other processes; all but one end at once. Failing to start one is no fault: the
    twins go on.
    """
    if not sys.executable:
        return
    roots = [str(_SOURCE.parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, roots))}
    command = [sys.executable, "-m", "store.kernels.compiling"]
    nowhere = subprocess.DEVNULL
    try:
        # Returns soon: the process leaves a child of its own behind, so that nobody has to wait for it.
        subprocess.run(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, env=environment, cwd="/", check=False)
    except OSError:
        return


def _import_compiled(place: Path) -> "Kernels":
    settings: Any = importlib.import_module("numba").config
    # Where a function is cached is settled when it is decorated; the user's own numba functions keep their setting.
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(place)
    try:
        from . import compiled
    finally:
        settings.CACHE_DIR = before
    return compiled


def _stamp(place: Path) -> Path:
    source = _SOURCE.stat()
    facts = [
        _SOURCE.read_text(),
        str((source.st_mtime_ns, source.st_size, str(_SOURCE))),  # numba drops its cache when these change
        *(_version(library) for library in _LIBRARIES),
        sys.version,
        _processor(),
        str(sorted((name, value) for name, value in os.environ.items() if name.startswith("NUMBA_"))),
    ]
    digest = hashlib.sha256("\0".join(facts).encode()).hexdigest()
    return place / f"moonclip-{digest[:32]}.warm"


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "absent"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(line for line in lines if line.startswith(("model", "flags", "Features", "CPU")))


def _user_cache() -> Path:
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return named if named.is_absolute() else Path(os.path.expanduser("~")) / ".cache"  # noqa: PTH111 - Path.home() raises without a home
