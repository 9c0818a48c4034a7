"""What ranks tell each other of errors. Pure."""

from collections.abc import Iterator

from store.errors import MoonclipError
from store.format.canonical import Node


def told(error: BaseException, rank: int) -> Node:
    """An error as a message."""
    if isinstance(error, MoonclipError):
        return {"kind": error.kind, "message": str(error), "rank": error.details.get("failed_rank", rank)}
    return {"kind": MoonclipError.kind, "message": f"{type(error).__name__}: {error}", "rank": rank}


def error_of(message: Node) -> MoonclipError:
    """The error of another rank, of the same class; ``details["failed_rank"]`` says whose."""
    rank, text = message["rank"], message["message"]
    known = {cls.kind: cls for cls in _classes(MoonclipError)}
    return known.get(message["kind"], MoonclipError)(
        text if text.startswith(f"rank {rank}") else f"rank {rank}: {text}", failed_rank=rank, ranks=[rank]
    )


def _classes(cls: type[MoonclipError]) -> Iterator[type[MoonclipError]]:
    for below in cls.__subclasses__():
        yield from _classes(below)
    yield cls
