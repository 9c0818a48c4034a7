"""What ranks tell each other, as bytes, and what of errors. Pure."""

from collections.abc import Iterator

from store.errors import Incompatible, MoonclipError
from store.format.canonical import Node, encode
from store.limits import MAX_RANK_MESSAGE_BYTES


def encoded(message: Node) -> bytes:
    """A message as bytes.

    Raises:
        Incompatible: it holds what cannot be sent, or too much of it. Then it cannot go to any rank.
    """
    data = encode(message)
    if len(data) > MAX_RANK_MESSAGE_BYTES:
        raise Incompatible(
            f"ranks tell each other at most {MAX_RANK_MESSAGE_BYTES:,} bytes at once, not {len(data):,}: save fewer"
            " tensors, or shorter names and values"
        )
    return data


def told(error: BaseException, rank: int) -> Node:
    """An error as a message, which can be sent whatever the error says."""
    if isinstance(error, MoonclipError):
        return {"kind": error.kind, "message": _text(error), "rank": error.details.get("failed_rank", rank)}
    return {"kind": MoonclipError.kind, "message": _text(error), "rank": rank}


def error_of(message: Node) -> MoonclipError:
    """The error of another rank, of the same class; ``details["failed_rank"]`` says whose."""
    rank, text = message["rank"], message["message"]
    known = {cls.kind: cls for cls in _classes(MoonclipError)}
    return known.get(message["kind"], MoonclipError)(
        text if text.startswith(f"rank {rank}") else f"rank {rank}: {text}", failed_rank=rank, ranks=[rank]
    )


def _text(error: BaseException) -> str:
    """What an error says. The others wait for it, so neither a path that is no UTF-8 nor its own words may end it."""
    try:
        text = str(error) if isinstance(error, MoonclipError) else f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 - whatever a foreign __str__ raises
        text = type(error).__name__
    return text.encode(errors="backslashreplace").decode()


def _classes(cls: type[MoonclipError]) -> Iterator[type[MoonclipError]]:
    for below in cls.__subclasses__():
        yield from _classes(below)
    yield cls
