"""What trainer and worker say to each other.

Messages are pickled: they go between a process and its own child, through a socket that has no name, and are never
stored. Rows of plain tuples stand for the inputs: named ones take ten times as long to pickle, and the trainer waits.
"""

import pickle
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..errors import MoonclipError
from ..ids import CommitId
from ..saving.ingest import Counts
from ..saving.inputs import Input, ItemInput, Span, TensorInput
from ..saving.saver import SaveRequest
from ..upkeep.retention import Keep


class Order(NamedTuple):
    """A save that is wanted.

    Attributes:
        request: what to commit; its tensors are spans of the arena, and it knows of no last save.
        arena: number of the arena.
        last: commit of the last save, if its arena still holds what was committed then.
        tag: name of a tag to put on the commit.
        overwrite: whether that tag may be moved.
        keep: what to keep of all commits once it is made; ``None`` for everything.
    """

    request: SaveRequest
    arena: int
    last: CommitId | None
    tag: str | None = None
    overwrite: bool = False
    keep: Keep | None = None


class Outcome(NamedTuple):
    """What became of a save.

    Attributes:
        commit: the commit. It may be made although there is an error: then the tag failed.
        counts: chunks and bytes of it.
        seconds: where the time went, by phase.
        error: what went wrong.
    """

    commit: CommitId | None = None
    counts: Counts | None = None
    seconds: dict[str, float] = {}  # noqa: RUF012 - nobody alters it
    error: BaseException | None = None


# --- to the worker ------------------------------------------------------------------------------------------------


class Save(NamedTuple):
    """Make this save. Comes with the arena's descriptor if the worker does not know it.

    Attributes:
        order: the save; items of its request are rows, see :func:`packed`.
        arena_bytes: size of the arena.
    """

    order: Order
    arena_bytes: int


class Forget(NamedTuple):
    """These arenas are gone."""

    arenas: tuple[int, ...]


class Close(NamedTuple):
    """There will be no more saves."""


# --- to the trainer -----------------------------------------------------------------------------------------------


class Ready(NamedTuple):
    """The worker has started."""


class Log(NamedTuple):
    """A record of the worker's log, for the trainer's."""

    logger: str
    level: int
    text: str


class Ended(NamedTuple):
    """A save has ended.

    Attributes:
        outcome: how, without its error.
        error: the pickled error.
        trace: its traceback.
    """

    outcome: Outcome
    error: bytes | None
    trace: str


# --- orders -------------------------------------------------------------------------------------------------------

_Rows = list[tuple[Any, ...]]


def packed(order: Order) -> Order:
    """The order with rows of plain tuples for items. Cost: 6 ms for 20,000 tensors, and as much to pickle it."""
    items = [(item.name, [_row(*named) for named in item.entries.items()], item.ties) for item in order.request.items]
    return order._replace(request=replace(order.request, items=items))  # type: ignore[arg-type] # rows, on the wire


def unpacked(order: Order) -> Order:
    """Inverse of :func:`packed`."""
    rows: Iterable[tuple[str, _Rows, Any]] = order.request.items  # type: ignore[assignment]
    items = [ItemInput(name, dict(map(_named, entries)), ties) for name, entries, ties in rows]
    return order._replace(request=replace(order.request, items=items))


def _row(name: str, given: Input) -> tuple[Any, ...]:
    if type(given) is TensorInput:
        position, dtype, shape, span = given
        return (name, position, dtype, shape, *span)
    return name, given


def _named(row: Sequence[Any]) -> tuple[str, Input]:
    if len(row) == 2:
        return row[0], row[1]
    name, position, dtype, shape, start, stop = row
    return name, TensorInput(position, dtype, shape, Span(start, stop))


# --- outcomes -----------------------------------------------------------------------------------------------------


def told(outcome: Outcome) -> Ended:
    """An outcome as it is sent. An error that does not survive pickling becomes one that says the same."""
    error = outcome.error
    if error is None:
        return Ended(outcome, None, "")
    trace = "".join(traceback.format_exception(error))
    return Ended(outcome._replace(error=None), _pickled(error), trace)


def heard(ended: Ended) -> Outcome:
    """Inverse of :func:`told`; the error carries the worker's traceback as a note."""
    if ended.error is None:
        return ended.outcome
    error: BaseException = pickle.loads(ended.error)
    error.add_note(f"In the worker process:\n{ended.trace}")
    return ended.outcome._replace(error=error)


def _pickled(error: BaseException) -> bytes:
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # noqa: BLE001 - code of whoever wrote the error
        data = pickle.dumps(MoonclipError(f"{type(error).__name__}: {error}"))
    return data
