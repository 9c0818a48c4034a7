"""What a measured process can be told to do."""

import ctypes
import signal
from collections.abc import Callable
from typing import Any, Final

from ..workloads import warm_up
from .chaining import chain
from .growing import grow
from .keeping import give_back, keep
from .lasting import last
from .loading import load
from .moving import clone, copy, download, history, push, upload
from .ranking import rank, ranks
from .saving import save
from .series import series

_PR_SET_PDEATHSIG: Final = 1

_JOBS: Final[dict[str, Callable[..., None]]] = {
    "warm": warm_up,
    "save": save,
    "grow": grow,
    "last": last,
    "load": load,
    "chain": chain,
    "series": series,
    "history": history,
    "push": push,
    "clone": clone,
    "upload": upload,
    "download": download,
    "copy": copy,
    "ranks": ranks,
    "rank": rank,
    "keep": keep,
    "give back": give_back,
}


def do(job: dict[str, Any]) -> None:
    """Do a job."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a bench that is gone leaves nothing running
    _JOBS[job.pop("do")](**job)
