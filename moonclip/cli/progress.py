"""Bars on stderr that show how far something is, where that is a terminal."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is to do."""


@contextmanager
def progress_bar(*, in_bytes: bool = False) -> Iterator[Progress | None]:
    """A bar for as long as this lasts; ``None`` where there is nobody to see it. Several threads may tell of progress.

    Args:
        in_bytes: whether what is counted are bytes; then their rate is shown too.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from .rates import RateColumn

    count = (DownloadColumn(binary_units=True), RateColumn()) if in_bytes else (MofNCompleteColumn(),)
    parts = (TextColumn("{task.description}"), BarColumn(), *count, TimeRemainingColumn())
    with Bar(*parts, console=Console(stderr=True), transient=True) as bar:
        tasks = {}
        lock = threading.Lock()

        def update(what: str, done: int, total: int) -> None:
            with lock:
                if what not in tasks:
                    tasks[what] = bar.add_task(what)
            bar.update(tasks[what], completed=done, total=total, visible=done < total)

        yield update
