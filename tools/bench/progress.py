"""What is being measured, on stderr: a bar where that is a terminal, and a line for each part that is done."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress as Bars


class Progress:
    """Counts what is done."""

    def __init__(self, bars: Bars, total: int) -> None:
        self._bars = bars
        self._task = bars.add_task("", total=total)
        self._what = ""
        self._begun_s = 0.0

    def begin(self, what: str) -> None:
        """Say what comes next."""
        self._what, self._begun_s = what, time.monotonic()
        self._bars.update(self._task, description=what)

    def end(self, outcome: str = "") -> None:
        """It is done; ``outcome`` says in a few words how it went."""
        self._bars.advance(self._task)
        self._bars.console.print(f"{self._what}, {time.monotonic() - self._begun_s:.0f} s{outcome}", style="dim")


@contextmanager
def progress(total: int) -> Iterator[Progress]:
    """Show it while something lasts."""
    with Bars(console=Console(stderr=True, highlight=False), transient=True) as bars:
        yield Progress(bars, total)
