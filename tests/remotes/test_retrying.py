"""When requests are made again."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from store.limits import REMOTE_ATTEMPTS, REMOTE_RETRY_AFTER_SECONDS
from store.remotes.storages.retrying import Retries, is_passing, retry_after


def test_pauses_double_within_bounds_and_end() -> None:
    retries = Retries(attempts=6, pause_seconds=1.0, max_pause_seconds=5.0)
    for attempt, longest in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (5, 5.0)):
        pauses = [retries.pause(attempt) for _ in range(50)]
        assert all(pause is not None and longest / 2 <= pause <= longest for pause in pauses)
        assert len(set(pauses)) > 1  # those of many machines do not meet
    assert retries.pause(6) is None
    assert Retries().pause(REMOTE_ATTEMPTS) is None
    assert Retries().pause(REMOTE_ATTEMPTS - 1) is not None


def test_a_server_may_ask_for_more_within_bounds() -> None:
    retries = Retries(pause_seconds=0.1)
    assert retries.pause(1, {"Retry-After": "7"}) == 7.0
    assert retries.pause(1, {"retry-after": "100000"}) == REMOTE_RETRY_AFTER_SECONDS
    assert retries.pause(REMOTE_ATTEMPTS, {"Retry-After": "7"}) is None


@pytest.mark.parametrize("text", ["", "soon", "-5", "1e9", "²", "Mon, 99 Nov", "9" * 5000])
def test_what_makes_no_sense_there_is_passed_over_or_bounded(text: str) -> None:
    assert 0.0 <= retry_after({"Retry-After": text}) <= REMOTE_RETRY_AFTER_SECONDS


def test_a_date_says_when() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=40), usegmt=True)
    past = format_datetime(datetime.now(UTC) - timedelta(days=1))
    assert 10.0 < retry_after({"Retry-After": soon}) <= 40.0
    assert retry_after({"Retry-After": past}) == 0.0


def test_what_passes() -> None:
    assert is_passing(503, "SlowDown") and is_passing(500, "") and is_passing(409, "OperationAborted")
    assert is_passing(403, "RequestTimeTooSkewed") and is_passing(400, "RequestTimeout") and is_passing(429, "")
    assert not is_passing(403, "AccessDenied") and not is_passing(404, "") and not is_passing(412, "PreconditionFailed")
    assert not is_passing(501, "NotImplemented")
