"""The two ends of a measured process's talk: a JSON object a line, to whoever started it, and an answer a line."""

import json
import os
import sys
from typing import Any, Final

_OUT: Final = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # whatever a library prints is no figure


def tell(event: str, **facts: Any) -> None:
    """Say something."""
    _OUT.write(json.dumps({"event": event, **facts}) + "\n")


def ask(event: str, **facts: Any) -> None:
    """Say something, and wait until it was taken in."""
    tell(event, **facts)
    if not sys.stdin.readline():
        sys.exit("the bench is gone")
