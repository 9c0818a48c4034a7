"""When a request is made again, and after which pause. Pure, but for the dice."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from ...limits import REMOTE_ATTEMPTS, REMOTE_MAX_PAUSE_SECONDS, REMOTE_PAUSE_SECONDS, REMOTE_RETRY_AFTER_SECONDS

_PASSING_STATUS = frozenset({408, 429, 500, 502, 503, 504, 509})

_PASSING_CODES = frozenset(
    {
        "BadDigest",  # bytes were garbled on their way
        "ConditionalRequestConflict",  # 409: somebody else wrote at the same moment, and either may have won
        "IncompleteBody",
        "InternalError",
        "OperationAborted",
        "PriorRequestNotComplete",
        "RequestTimeTooSkewed",  # it was under way for long: the next one is signed anew
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "XAmzContentSHA256Mismatch",
    }
)


@dataclass(frozen=True, slots=True)
class Retries:
    """How patient a storage is.

    Attributes:
        attempts: how often a request is made in all.
        pause_seconds: the first pause, which doubles.
        max_pause_seconds: the longest.
    """

    attempts: int = REMOTE_ATTEMPTS
    pause_seconds: float = REMOTE_PAUSE_SECONDS
    max_pause_seconds: float = REMOTE_MAX_PAUSE_SECONDS

    def pause(self, attempt: int, headers: Mapping[str, str] | None = None) -> float | None:
        """Seconds until the next attempt; ``None`` if that was the last one.

        Args:
            attempt: how many were made.
            headers: those of the answer, if there was one: the server may say when to come back.
        """
        if attempt >= self.attempts:
            return None
        longest = min(self.max_pause_seconds, self.pause_seconds * 2 ** (attempt - 1))
        return max(random.uniform(longest / 2, longest), retry_after(headers or {}))


def is_passing(status: int, code: str) -> bool:
    """Whether what a server answered may be otherwise in a moment.

    Args:
        status: HTTP's.
        code: S3's, or empty.
    """
    return status in _PASSING_STATUS or code in _PASSING_CODES


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds after which a server wants to be asked again: a number or a date, within bounds; 0 if it says nothing."""
    text = next((value for name, value in headers.items() if name.lower() == "retry-after"), "").strip()
    if text.isascii() and text.isdigit():
        seconds = float(text[:9])
    else:
        try:
            when = parsedate_to_datetime(text)
        except ValueError:
            return 0.0
        now = datetime.now(UTC)
        seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - now.timestamp()
    return min(max(seconds, 0.0), REMOTE_RETRY_AFTER_SECONDS)
