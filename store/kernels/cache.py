"""Where the kernels' object code is kept, and how it comes there.

One file holds all kernels, named after everything that decides what is in it: the source, the compilers' versions and
the processor. Looking for it costs a few small reads and no import. It carries a checksum, because a processor runs
whatever it is given; it is replaced in one step, so nobody meets half of it; and if it is lost, it is made again.
"""

import contextlib
import hashlib
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import xxhash

_HERE: Final = Path(__file__).parent
_COMPILERS: Final = ("numba", "llvmlite")
_MAGIC: Final = b"moonclip kernels\n"
_CHECKSUM_BYTES: Final = 16
_DETACHED: Final = """
import os, runpy
if os.fork():
    os._exit(0)
os.setsid()
os.nice(19)
runpy.run_module("store.kernels.compiling", run_name="__main__")
"""
"""Leaves a child behind, so that nobody has to wait for it, and steps aside before it has imported anything."""

_CPUINFO_BYTES: Final = 16 * 1024
"""More than the first processor takes; machines have hundreds, and Linux writes this text anew for each reader."""


def directory() -> Path | None:
    """The first writable place: ``MOONCLIP_CACHE``, or else beside the source, as Python's own cache is, or the user's.

    Returns:
        ``None`` if there is none.
    """
    for place in _places():
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(place, os.W_OK | os.X_OK):
            return place
    return None


def read() -> bytes | None:
    """The object code for this source on this machine; ``None`` if there is none, or it is damaged.

    A place that cannot be written counts, too: whoever installed the package may have compiled the kernels.
    """
    name = _file_name()
    for place in _places():
        try:
            stored = (place / name).read_bytes()
        except OSError:
            continue
        head_bytes = len(_MAGIC) + _CHECKSUM_BYTES
        object_code = stored[head_bytes:]
        if stored[:head_bytes] == _head(object_code):
            return object_code
    return None


def write(place: Path, object_code: bytes) -> None:
    """Put object code into the cache, in one step.

    Raises:
        OSError: it cannot be written.
    """
    with tempfile.NamedTemporaryFile(dir=place, prefix="moonclip-", suffix=".tmp", delete=False) as file:
        try:
            file.write(_head(object_code) + object_code)
            file.close()
            Path(file.name).replace(place / _file_name())
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def can_fill() -> bool:
    """Whether there is a compiler, and somewhere to put what it makes."""
    return all(importlib.util.find_spec(name) for name in _COMPILERS) and bool(sys.executable) and bool(directory())


def fill(*, wait: bool) -> None:
    """Start a process that fills the cache: silent, and harmless if it fails.

    Args:
        wait: until it has. Else it is niced and detached, and ends by itself; several may be started, by this or
            other processes, and all but one end at once.

    Cost: 20 ms unless it waits.
    """
    roots = [str(_HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    # Settings for the user's own functions, such as one that turns numba's compiler off, are not for ours.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    # LLVM optimises once, when everything is linked, and not before: half the time, and better code.
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, roots)), "NUMBA_OPT": "0"}
    command = [sys.executable, "-m", "store.kernels.compiling", "--wait"] if wait else [sys.executable, "-c", _DETACHED]
    nowhere = subprocess.DEVNULL
    with contextlib.suppress(OSError):
        subprocess.run(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, env=environment, cwd="/", check=False)


def _places() -> tuple[Path, ...]:
    named = os.environ.get("MOONCLIP_CACHE")
    return (Path(named),) if named else (_HERE / "__pycache__", _user_cache() / "moonclip" / "kernels")


def _head(object_code: bytes) -> bytes:
    return _MAGIC + xxhash.xxh3_128_digest(object_code)


def _file_name() -> str:
    digest = hashlib.sha256()
    for source in sorted(_HERE.glob("*.py")):
        digest.update(source.read_bytes())
    for name in _COMPILERS:
        digest.update(_version(name))
    digest.update(_processor())
    return f"moonclip-{digest.hexdigest()[:32]}.o"


def _version(library: str) -> bytes:
    """What tells one version from another: its own statement, which is there without importing anything."""
    found = importlib.util.find_spec(library)
    if found is None or not found.origin:
        return b"absent"
    try:
        return Path(found.origin).with_name("_version.py").read_bytes()
    except OSError:
        return b"unknown"


def _processor() -> bytes:
    try:
        with Path("/proc/cpuinfo").open("rb") as file:
            first = file.read(_CPUINFO_BYTES).split(b"\n\n")[0]
    except OSError:
        return platform.processor().encode()
    kept = (b"vendor", b"model", b"cpu family", b"flags", b"Features", b"CPU")
    return b"\n".join(line for line in first.splitlines() if line.startswith(kept))


def _user_cache() -> Path:
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return named if named.is_absolute() else Path(os.path.expanduser("~")) / ".cache"  # noqa: PTH111 - Path.home() raises without a home
