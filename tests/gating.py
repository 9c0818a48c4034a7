"""Threads that copy nothing behind anybody's back until they are let."""

import threading
from collections.abc import Sequence
from typing import Any

from moonclip.capture import overlap
from moonclip.capture.capturing import Capture
from moonclip.capture.copying import Copier
from store.parallel import Threads


class GatedThreads(Threads):
    """While the gate is closed, what is to be copied later waits; all else goes on."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.gate = threading.Event()


_copy = overlap._copy


def _copy_when_let(capture: Capture, copier: Copier, later: Sequence[Any], *others: Any) -> None:
    if isinstance(copier._threads, GatedThreads):
        assert copier._threads.gate.wait(60)
    _copy(capture, copier, later, *others)


overlap._copy = _copy_when_let
