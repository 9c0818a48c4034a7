"""Libraries that train change their process: environment, signal handlers, threads. Other tests get it as it was."""

import os
import signal
from collections.abc import Iterator

import pytest
import torch

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    environment, thread_count = dict(os.environ), torch.get_num_threads()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    is_deterministic, generator = torch.are_deterministic_algorithms_enabled(), torch.get_rng_state()
    yield
    os.environ.clear()
    os.environ.update(environment)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    torch.set_num_threads(thread_count)
    torch.use_deterministic_algorithms(is_deterministic)
    torch.set_rng_state(generator)
