"""Giving space back while a run goes on: gc in a thread of the worker that stands still while a save is made."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import MoonclipError
from ..gc import collect
from ..repository import Repository

_log = logging.getLogger(__name__)


class _Ended(BaseException):
    """The worker is about to end. No handler but ours takes it for a fault."""


class Collector:
    """Runs gc, one at a time. What it is in the middle of may take some 50 ms before it stands still, or ends.

    Args:
        repo: the store.
    """

    def __init__(self, repo: Repository) -> None:
        self._repo = repo
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self._is_ended = False
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether it is at work, or stands still in the middle of it."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Begin, unless it is at work. What goes wrong is logged: another time will do."""
        if not self.is_running:
            self._thread = threading.Thread(target=self._run, name="moonclip-gc", daemon=True)
            self._thread.start()

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Have it do nothing meanwhile."""
        self._may_go_on.clear()
        try:
            yield
        finally:
            self._may_go_on.set()

    def end(self) -> None:
        """Have it stop where it is, and wait until it has; another run completes what it began."""
        self._is_ended = True
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._look_up()
            done = collect(self._repo, progress=self._look_up)
            _log.info("gc freed %d bytes", done.freed_bytes)
        except _Ended:
            _log.info("gc was stopped by the end of the run; the next one goes on")
        except (MoonclipError, OSError) as error:
            _log.info("gc between saves: %s", error)

    def _look_up(self, *_: object) -> None:
        """Between two steps: stand still as long as a save is made; stop if the worker is to end."""
        self._may_go_on.wait()
        if self._is_ended:
            raise _Ended
