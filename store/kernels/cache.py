"""Where the compiled kernels are kept, and how they come there.

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
    """The image for this source on this machine; ``None`` if there is none, or it is damaged.

    A place that cannot be written counts, too: whoever installed the package may have compiled the kernels.
    """
    name = _file_name()
    for place in _places():
        try:
            stored = (place / name).read_bytes()
        except OSError:
            continue
        head_bytes = len(_MAGIC) + _CHECKSUM_BYTES
        image = stored[head_bytes:]
        if stored[:head_bytes] == _head(image):
            return image
    return None


def write(place: Path, image: bytes) -> None:
    """Put an image into the cache, in one step.

    Raises:
        OSError: it cannot be written.
    """
    with tempfile.NamedTemporaryFile(dir=place, prefix="moonclip-", suffix=".tmp", delete=False) as file:
        try:
            file.write(_head(image) + image)
            file.close()
            Path(file.name).chmod(0o644)  # temporaries are for their owner alone
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

    Cost: 40 ms unless it waits.
    """
    # Settings for the user's own functions, such as one that turns numba's compiler off, are not for ours.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    # LLVM optimises once, when everything is linked, and not before: half the time, and better code.
    environment["NUMBA_OPT"] = "0"
    places = map(os.path.abspath, sys.path)  # where numba is, if this process made that place known to itself alone
    mode = "wait" if wait else "detach"
    command = [sys.executable, "-P", str(_HERE / "launching.py"), mode, str(_HERE.parents[1]), *places]
    nowhere = subprocess.DEVNULL
    with contextlib.suppress(OSError):
        subprocess.run(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, env=environment, cwd="/", check=False)


def _places() -> tuple[Path, ...]:
    named = os.environ.get("MOONCLIP_CACHE")
    return (Path(named),) if named else (_HERE / "__pycache__", _user_cache() / "moonclip" / "kernels")


def _head(image: bytes) -> bytes:
    return _MAGIC + xxhash.xxh3_128_digest(image)


def _file_name() -> str:
    digest = hashlib.sha256()
    for source in (_HERE.with_name("limits.py"), *sorted(_HERE.glob("*.py"))):  # kernels have limits compiled in
        digest.update(source.read_bytes())
    for name in _COMPILERS:
        digest.update(_version(name))
    digest.update(_processor())
    return f"moonclip-{digest.hexdigest()[:32]}.image"


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
