"""Settings of all tests."""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tools.crash.scratch import scratch

_ROOM_BYTES = 4 << 30
"""Of memory, for what tests leave until they have ended: several times what they do."""

# A machine that is busy makes any example slow: deadlines would fail tests that found nothing.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("dev", _COMMON, max_examples=50)
settings.register_profile("ci", _COMMON, max_examples=100, print_blob=True)
settings.register_profile("deep", _COMMON, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_configure() -> None:
    """Settings of this process that others inherit: those that tests start, and those that run them."""
    # Ctrl-C is heeded: a shell has jobs in the background ignore it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Tests start thousands of processes: each would compile all of our modules again, which takes it a second.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # Stores lie in memory: no test cuts the power, so the half of their time that syncs to a disk take shows nothing.
    memory = scratch()
    if memory is not None and shutil.disk_usage(memory).free >= _ROOM_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


def pytest_collection_finish() -> None:
    """What was imported is never garbage: tests that look for some need not look through it, for half a second each."""
    gc.freeze()


@pytest.fixture(scope="module")
def small_parts() -> Iterator[None]:
    """Have uploads to S3 go out in parts of ``storages.PART_BYTES``: what takes several need not be long then."""
    from store.remotes.storages import s3client, s3uploads
    from tests.storages import PART_BYTES

    with pytest.MonkeyPatch.context() as patch:
        for module in (s3client, s3uploads):
            patch.setattr(module, "UPLOAD_PART_BYTES", PART_BYTES)
        yield
