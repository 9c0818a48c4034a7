"""Settings of all tests."""

import os

from hypothesis import HealthCheck, settings

# A machine that is busy makes any example slow: deadlines would fail tests that found nothing.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("dev", _COMMON, max_examples=50)
settings.register_profile("ci", _COMMON, max_examples=100, print_blob=True)
settings.register_profile("deep", _COMMON, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
