"""What trainer and worker say to each other.

Messages are pickled: they go between a process and its own child, through a socket that has no name, and are never
stored. Columns stand for an item's tensors: named tuples take ten times as long to pickle, and the trainer waits.
"""

import pickle
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import MoonclipError
from ..ids import CommitId
from ..naming.tags import Better
from ..saving.ingest import Counts
from ..saving.inputs import ContainerInput, Input, Span, TensorInput
from ..saving.saver import SaveRequest
from ..upkeep.collector import collector_paused
from ..upkeep.retention import Keep

if TYPE_CHECKING:
    from ..remotes.storages.credentials import Keys


class Mark(NamedTuple):
    """A save's place among those that a remote is to get.

    Attributes:
        number: counts them, from 1.
        is_due: whether a push follows this one.
    """

    number: int
    is_due: bool


class Order(NamedTuple):
    """A save that is wanted.

    Attributes:
        request: what to commit; its tensors are spans of the arena, and it knows of no last save.
        arena: number of the arena.
        last: commit of the last save, if its arena still holds what was committed then.
        tag: name of a tag to put on the commit.
        overwrite: whether that tag may be moved, or when.
        keep: what to keep of all commits once it is made; ``None`` for everything.
        mark: its place among those that a remote is to get; ``None`` if none is.
    """

    request: SaveRequest
    arena: int
    last: CommitId | None
    tag: str | None = None
    overwrite: bool | Better = False
    keep: Keep | None = None
    mark: Mark | None = None


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
    """Make this save. Comes with the descriptors of its announcement, and of the arena if the worker does not know it.

    Attributes:
        order: the save; items of its request are columns, see :func:`packed`.
        arena_bytes: size of the arena.
        asks: whether the trainer is to be asked before the commit is published.
        is_announced: whether a lock comes along that says that this save is under way.
    """

    order: Order
    arena_bytes: int
    asks: bool = False
    is_announced: bool = False


class Answer(NamedTuple):
    """Whether the commit that was asked about may be published."""

    is_granted: bool


class Follow(NamedTuple):
    """Push what is saved to this remote: when a save says so, and at the end.

    Attributes:
        remote: its name.
        keys: credentials that were given in Python; ``None`` for those of the environment.
    """

    remote: str
    keys: "Keys | None" = None


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


class Asking(NamedTuple):
    """This commit is durable; may it be published? Nothing else is said until there is an answer."""

    commit: CommitId


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


class Pushing(NamedTuple):
    """A push is under way, and getting on."""


class PushEnded(NamedTuple):
    """A push has ended.

    Attributes:
        number: of the newest save that it was to bring.
        problem: what went wrong and how far the remote has got, for people; empty if nothing.
        details: the same for programs.
        error: the pickled error.
        trace: its traceback.
        is_last: whether there will be no other.
    """

    number: int
    problem: str = ""
    details: dict[str, Any] = {}  # noqa: RUF012 - nobody alters it
    error: bytes | None = None
    trace: str = ""
    is_last: bool = False


# --- orders -------------------------------------------------------------------------------------------------------


class _Columns(NamedTuple):
    """The entries of an item: its tensors column by column, in the order of the names that are not among the others.

    Attributes:
        names: of all entries, in order.
        others: entries that are neither tensors of the arena nor containers.
        containers: their names, positions, kinds and infos.
        tensors: positions, dtypes, shapes, starts, stops, and what they are stored as.
    """

    names: list[str]
    others: dict[str, Input]
    containers: tuple[tuple[Any, ...], ...]
    tensors: tuple[tuple[Any, ...], ...]


def packed(order: Order) -> Order:
    """The order with columns for entries. Cost: 2 ms for 20,000 tensors, and as much to pickle it."""
    with collector_paused():
        items = [item._replace(entries=_columns(item.entries)) for item in order.request.items]  # type: ignore[arg-type] # on the wire
    return order._replace(request=replace(order.request, items=items))


def unpacked(order: Order) -> Order:
    """Inverse of :func:`packed`."""
    items = [item._replace(entries=_entries(item.entries)) for item in order.request.items]  # type: ignore[arg-type] # likewise
    return order._replace(request=replace(order.request, items=items))


def _columns(entries: Mapping[str, Input]) -> _Columns:
    tensors = [given for given in entries.values() if type(given) is TensorInput]
    others = {name: given for name, given in entries.items() if type(given) is not TensorInput}
    containers = [(name, *given) for name, given in others.items() if type(given) is ContainerInput]
    for name, *_ in containers:
        del others[name]
    columns = _Columns(list(entries), others, tuple(zip(*containers, strict=True)), ())
    if not tensors:
        return columns
    positions, dtypes, shapes, spans, *stored = zip(*tensors, strict=True)
    return columns._replace(tensors=(positions, dtypes, shapes, *zip(*spans, strict=True), *stored))


def _entries(columns: _Columns) -> dict[str, Input]:
    tensors = map(_tensor, *columns.tensors) if columns.tensors else iter(())
    others = columns.others | {name: ContainerInput(*given) for name, *given in zip(*columns.containers, strict=True)}
    return {name: others[name] if name in others else next(tensors) for name in columns.names}


def _tensor(position: int, dtype: str, shape: tuple[int, ...], start: int, stop: int, *stored: Any) -> TensorInput:
    return TensorInput(position, dtype, shape, Span(start, stop), *stored)


# --- errors -------------------------------------------------------------------------------------------------------


def told(outcome: Outcome) -> Ended:
    """An outcome as it is sent. An error that does not survive pickling becomes one that says the same."""
    if outcome.error is None:
        return Ended(outcome, None, "")
    return Ended(outcome._replace(error=None), *error_told(outcome.error))


def heard(ended: Ended) -> Outcome:
    """Inverse of :func:`told`; the error carries the worker's traceback as a note."""
    if ended.error is None:
        return ended.outcome
    return ended.outcome._replace(error=error_heard(ended.error, ended.trace))


def error_told(error: BaseException) -> tuple[bytes, str]:
    """An error, pickled, and its traceback."""
    trace = "".join(traceback.format_exception(error))
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # noqa: BLE001 - code of whoever wrote the error
        data = pickle.dumps(MoonclipError(f"{type(error).__name__}: {error}"))
    return data, trace


def error_heard(data: bytes, trace: str) -> BaseException:
    """Inverse of :func:`error_told`."""
    error: BaseException = pickle.loads(data)
    error.add_note(f"In the worker process:\n{trace}")
    return error
