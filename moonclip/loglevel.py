"""``MOONCLIP_LOG``: how much is logged, for people who have not set up Python's logging."""

import logging
import os
import sys
from typing import Final

from store.errors import Incompatible

LOGGERS: Final = ("moonclip", "store")
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}


class _Fallback(logging.Handler):
    """Writes on stderr what nobody else does: a program that has set up logging hears all by its own handlers."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers and sys.stderr is not None:
            print(f"{record.name}: {record.getMessage()}", file=sys.stderr, flush=True)


_FALLBACK: Final = _Fallback()


def follow_environment() -> None:
    """Log as much as ``MOONCLIP_LOG`` says, if it says anything; else as the program has set up logging.

    Raises:
        Incompatible: it says no level.
    """
    told = os.environ.get("MOONCLIP_LOG", "").strip()
    if not told:
        return
    level = _LEVELS.get(told.lower())
    if level is None:
        raise Incompatible(f"MOONCLIP_LOG is {told!r}; it must be one of {', '.join(_LEVELS)}, or not be set")
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.addHandler(_FALLBACK)  # the same one again is not added twice
