"""One process does something at a chosen moment of what another does, as far as locks let it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from store.disk.files import FileLock, Files
from store.errors import Busy

PATIENCE_S = 60
"""How long something may take that, without a deadlock, is done in no time."""

_NOTICE_S = 20
"""How long is waited for somebody who waits for what cannot be seen, as locks on files can."""


class Moment:
    """What another process does, and when: at which of the calls that this one makes of its ``files``.

    Args:
        act: what is done, with the ``Files`` to do it with.
    """

    def __init__(self, act: Callable[[Files], object]) -> None:
        self.files = _Watched(self)
        self._calls_left: int | None = None
        self._is_put_off = False
        self._act = act
        self._is_done_or_waits = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def await_call(self, number: int) -> None:
        """It comes at this call, counted from now on."""
        self._calls_left = number

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Let it not come meanwhile: the other process would wait for us unseen."""
        self._is_put_off = True
        try:
            yield
        finally:
            self._is_put_off = False

    def count(self) -> None:
        """Count a call; if it is the one, let the other process do it, until it is done or waits for us."""
        if self._calls_left is None:
            return
        self._calls_left -= 1
        if self._calls_left < 0 and not self._is_put_off:
            self._calls_left = None
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
            self._is_done_or_waits.wait(_NOTICE_S)

    def end(self) -> None:
        """Wait until it is done, and raise what went wrong."""
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive(), "they wait for each other"
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._act(_Telling(self._is_done_or_waits))
        except BaseException as error:
            self._error = error
        finally:
            self._is_done_or_waits.set()


class _Watched(Files):
    """Counts its calls."""

    def __init__(self, moment: Moment) -> None:
        super().__init__()
        self._moment = moment

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            super().__getattribute__("_moment").count()
        return super().__getattribute__(name)


class _Telling(Files):
    """Tells before it waits for a lock."""

    def __init__(self, waits: threading.Event) -> None:
        super().__init__()
        self._waits = waits

    def lock_exclusive(self, path: Path, *, blocking: bool = True, create: bool = True) -> FileLock:
        return self._locked(super().lock_exclusive, path, blocking=blocking, create=create)

    def lock_shared(self, path: Path, *, blocking: bool = True, create: bool = True) -> FileLock:
        return self._locked(super().lock_shared, path, blocking=blocking, create=create)

    def _locked(self, lock: Callable[..., FileLock], path: Path, *, blocking: bool, create: bool) -> FileLock:
        if blocking:
            try:
                return lock(path, blocking=False, create=create)
            except Busy:
                self._waits.set()
        return lock(path, blocking=blocking, create=create)
