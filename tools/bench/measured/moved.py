"""What moving bytes takes: time, processor time and memory."""

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .clocks import forget_peak, peak_rss_bytes
from .telling import tell


@contextmanager
def measured() -> Iterator[list[int]]:
    """Tell what the block takes, and how much it moved, which it says itself."""
    moved: list[int] = []
    os.sync()  # what was written before is not to be waited for
    gc.collect()
    forget_peak()
    before_bytes = peak_rss_bytes()
    began_cpu_s, began_s = time.process_time(), time.perf_counter()
    yield moved
    seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    tell("moved", bytes=moved[0], seconds=seconds, cpu_s=cpu_s, peak_bytes=peak_rss_bytes() - before_bytes)
