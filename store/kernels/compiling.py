"""``python -m store.kernels.compiling [--wait]``: fill the cache of compiled kernels in a process of its own.

Started by :func:`store.kernels.cache.fill`, which also detaches it. It ends at once if another one is at work; with
``--wait`` it waits for that one instead.
"""

import fcntl
import sys
from pathlib import Path

from . import cache
from .interface import SYMBOLS
from .verifying import verified


def main(*, wait: bool) -> None:
    """Compile unless that is done. Raises whatever goes wrong, which nobody sees: whoever loads goes by the cache."""
    place = cache.directory()
    if place is None:
        return
    with (place / "moonclip-compiling.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            return
        if cache.read() is None:
            _fill(place)


def _fill(place: Path) -> None:
    from .building import build
    from .linking import linked

    image = linked(build(), SYMBOLS)
    verified(image)  # code that crashes, crashes here
    cache.write(place, image)


if __name__ == "__main__":
    main(wait="--wait" in sys.argv)
