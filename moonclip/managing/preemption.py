"""A run that is told to end: signals set a flag, the training loop asks for it, and a last save beats the deadline."""

import os
import signal
import threading
import weakref
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Final

from store.errors import Incompatible

if TYPE_CHECKING:
    from ..ranks.recorder import RankRecorder
    from ..ranks.talk import Talk
    from ..saving.recording import Recorder

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1)
"""What schedulers and clouds send before they end a job."""


class StopSignals:
    """Some signals, taken as a wish to stop, until this is closed. Whoever handled them before is told, too.

    What a signal does by default is not done: it would end the process in the middle of something. In a forked child
    it is, and after :meth:`close`, unless another one watches that signal by then: a handler of somebody else's may
    still lead here.

    Args:
        signals: which; :func:`require_watchable` has seen them.

    Attributes:
        received: the signal that came last; ``None`` before the first.
    """

    def __init__(self, signals: Sequence[int]) -> None:
        self.received: int | None = None
        self._pid = os.getpid()
        self._is_closed = False
        self._before: dict[int, object] = {}
        _open.add(self)
        for number in dict.fromkeys(signals):
            self._before[number] = signal.getsignal(number)
            signal.signal(number, self._handle)

    def close(self) -> None:
        """Give the signals back; again does nothing.

        One that somebody else has taken since stays with them. Handlers can be changed in the main thread only: closed
        elsewhere, they stay, and do what would have been done without them.
        """
        self._is_closed = True
        _open.discard(self)
        if threading.current_thread() is not threading.main_thread() or os.getpid() != self._pid:
            return
        for number, before in self._before.items():
            if before is not None and signal.getsignal(number) == self._handle:
                signal.signal(number, before)  # type: ignore[arg-type] # what getsignal gave

    def watches(self, number: int) -> bool:
        """Whether a signal is taken as a wish to stop, in this process."""
        return number in self._before and not self._is_closed and os.getpid() == self._pid

    def _handle(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number)
        is_ours = self.watches(number)
        if is_ours:
            self.received = number
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)
        elif not is_ours and before != signal.SIG_IGN and not any(each.watches(number) for each in list(_open)):
            signal.signal(number, signal.SIG_DFL if before is None else before)  # type: ignore[arg-type] # likewise
            os.kill(os.getpid(), number)


_open: Final[set[StopSignals]] = set()
"""Those that are not closed."""


def require_watchable(signals: Sequence[int]) -> None:
    """See that signals can be watched from here. Changes nothing.

    Raises:
        Incompatible: this is not the main thread, or a signal cannot be handled.
    """
    if threading.current_thread() is not threading.main_thread():
        raise Incompatible("signals can be watched from the main thread only: call watch_signals there")
    for number in signals:
        try:
            before = signal.getsignal(number)
            if before is not None:
                signal.signal(number, before)
        except (OSError, ValueError, TypeError) as error:
            raise Incompatible(f"signal {number!r} cannot be watched: {error}") from error


class Stopping:
    """Signals to stop, as methods of a manager."""

    _recorder: "Recorder | RankRecorder"
    _talk: "Talk | None"
    _signals: StopSignals | None = None

    def watch_signals(self, *signals: int) -> None:
        """From now on take some signals as a wish to stop, which :attr:`should_stop` tells. Call it in the main thread.

        Handlers only set a flag, and then call those that were there before. What the signal does by default, ending
        the process, is not done any more, so ask for the flag after every step. :meth:`close` gives the signals back.

        Args:
            *signals: which; ``SIGTERM`` and ``SIGUSR1`` if none are given. Others given later take their place.

        Raises:
            Incompatible: this is not the main thread, or there is no such signal. Nothing was changed.
            MoonclipError: the manager is closed.
        """
        self._recorder.wait(0.0)  # a closed manager would never give them back
        watched = signals or STOP_SIGNALS
        require_watchable(watched)
        self._stop_watching()
        received = None if self._signals is None else self._signals.received
        self._signals = StopSignals(watched)
        self._signals.received = received
        weakref.finalize(self, self._signals.close).atexit = False  # until then the process drains its saves

    @property
    def should_stop(self) -> bool:
        """Whether a signal that is watched has come; false if none are watched.

            if mgr.should_stop:
                mgr.save_final(step, model=model, optimizer=optimizer, deadline_s=30)
                break

        Of several ranks, all have to ask, between steps: one that was told counts for all of them.
        """
        has_come = self._signals is not None and self._signals.received is not None
        if self._talk is None:
            return has_come
        world_size = self._talk.group.world_size
        with self._recorder.exclusively():
            return bool(self._talk.exchange(lambda: has_come, lambda said: [any(said)] * world_size))

    def _stop_watching(self) -> None:
        if self._signals is not None:
            self._signals.close()
