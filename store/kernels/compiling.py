"""``python -m store.kernels.compiling``: fill the cache of compiled kernels in a process of its own.

Started by a process that found the cache cold. It detaches, steps aside for everything else on the machine, and ends
at once if another one is at work.
"""

import fcntl
import os

from . import cache

_LOWEST_PRIORITY = 19


def main() -> None:
    """Detach, then compile. Raises nothing that anybody could see."""
    if os.fork():
        os._exit(0)  # the one who started us waits for this
    os.setsid()
    os.nice(_LOWEST_PRIORITY)
    place = cache.directory()
    if place is None:
        return
    with (place / "moonclip-compiling.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        if not cache.is_warm():
            cache.load()


if __name__ == "__main__":
    main()
