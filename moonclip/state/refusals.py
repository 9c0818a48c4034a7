"""Faults found deep inside a structure, which learn their path on the way out."""

from collections.abc import Iterator
from contextlib import contextmanager

from store.errors import MoonclipError

from .names import join


class Refused(Exception):
    """Something inside a structure cannot be kept or rebuilt. Never leaves the package: see :func:`located`.

    Building every leaf's path up front would cost more than the walk itself, so each level adds its segment only
    while this one travels up.
    """

    def __init__(self, error: type[MoonclipError], reason: str) -> None:
        super().__init__(reason)
        self.error = error
        self.reason = reason
        self.segments: list[str] = []

    def inside(self, segment: str) -> "Refused":
        """The same fault, seen from one level further out."""
        self.segments.append(segment)
        return self


@contextmanager
def located(what: str) -> Iterator[None]:
    """Turn a :class:`Refused` into the public error, naming ``what`` and the path inside it.

    Raises:
        MoonclipError: of the kind that the fault asks for.
    """
    try:
        yield
    except Refused as refused:
        path = ""
        for part in reversed(refused.segments):
            path = join(path, part)
        place = f"{what}: {path!r}" if path else what
        raise refused.error(f"{place}: {refused.reason}", item=what, path=path) from refused.__cause__
