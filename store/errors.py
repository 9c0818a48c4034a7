"""The error tree, grouped by what a handler would do.

Every error has a stable ``kind`` (for programs), an ``exit_code`` (for the CLI), its attributes by name, and a
message that says what, where, and what to do next. All of them survive pickling: they cross processes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar


class MoonclipError(Exception):
    """Base of everything this project raises on purpose.

    Attributes:
        kind: stable machine-readable name of the class of fault.
        exit_code: what the CLI exits with.
        details: structured facts (ids as hex text, paths as text, numbers).
    """

    kind: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.details))


def _rebuild(cls: type[MoonclipError], message: str, details: dict[str, Any]) -> MoonclipError:
    return cls(message, **details)


class NotFound(MoonclipError, KeyError):
    """A revision, object, tensor, item, branch or tag does not exist. Give another name."""

    kind = "not-found"


class StoreNotFound(NotFound, FileNotFoundError):
    """There is no store at this path. Make one (``moonclip init``) or name another."""

    kind = "store-not-found"


class SnapshotGone(NotFound):
    """A snapshot is not in the making any more: it was published or given up, or its creator died. Begin another."""

    kind = "snapshot-gone"


class PartsMissing(NotFound):
    """Ranks have not stored their part of a snapshot; ``details["ranks"]`` lists them. Finalize once they have."""

    kind = "parts-missing"


class Ambiguous(NotFound):
    """An id prefix names several commits; ``details["candidates"]`` lists them."""

    kind = "ambiguous"


class Pruned(NotFound):
    """The content of a commit, or of one of its items, was dropped on purpose. Its history stays; pick another one."""

    kind = "pruned"


class Conflict(MoonclipError):
    """A ref moved or a name is taken. Look at the new state, then try again."""

    kind = "conflict"


class Corrupt(MoonclipError):
    """Stored bytes are not what they should be. The message names object, pack and offset."""

    kind = "corrupt"


class Incompatible(MoonclipError, ValueError):
    """A format, dtype, shape, type or name that does not fit. Nothing was changed."""

    kind = "incompatible"


class Busy(MoonclipError):
    """Somebody else holds what this needs (a lock, an index being rebuilt). Try again later."""

    kind = "busy"


class PartsOutdated(Busy):
    """What ranks counted on went away since they stored their parts. Have these ranks store theirs again, in full.

    Attributes:
        ranks: which, in order.
    """

    kind = "parts-outdated"

    @property
    def ranks(self) -> list[int]:
        """Which, in order."""
        return list(self.details["ranks"])


class ReadOnly(MoonclipError, PermissionError):
    """The store cannot be written from here (permissions or a read-only file system)."""

    kind = "read-only"


class Unsafe(MoonclipError):
    """Decoding this would run code (pickle, an unknown class). Opt in by name if you trust its source."""

    kind = "unsafe"


class SaveFailed(MoonclipError):
    """A background save failed; ``__cause__`` is the original error and ``details["step"]`` its step."""

    kind = "save-failed"


class DeadlinePassed(MoonclipError, TimeoutError):
    """A save is not durable within the time it was given. It is still under way: ``flush`` waits for it."""

    kind = "deadline-passed"


class WorkerEnded(MoonclipError):
    """The process that stores what was captured ended before its save did; the message says how. Save again."""

    kind = "worker-ended"


class RankLost(MoonclipError):
    """Another rank ended or did not answer for too long; ``details["failed_rank"]`` says which. Start the job again."""

    kind = "rank-lost"


class NotUnchanged(MoonclipError):
    """What was said to be as in the last save cannot be taken from there. Save it with its bytes."""

    kind = "not-unchanged"


class StateChanged(MoonclipError):
    """A tensor was altered before it had been copied, so nothing was committed. Update it under ``manager.lock()``."""

    kind = "state-changed"


class NoRoom(MoonclipError, MemoryError):
    """A state does not fit into the memory that saves may take; nothing was copied. The message has the numbers."""

    kind = "no-room"


class RemoteError(MoonclipError):
    """A remote did not do what was asked of it; what is local is as it was. The message says which remote and what."""

    kind = "remote"


class RemoteUnavailable(RemoteError, ConnectionError):
    """A remote cannot be reached, or fails; it was asked several times. Try again later."""

    kind = "remote-unavailable"


class RemoteDenied(RemoteError, PermissionError):
    """Credentials are missing, wrong or expired, or do not allow this."""

    kind = "remote-denied"


class RemoteMissing(RemoteError, FileNotFoundError):
    """The bucket or directory of a remote does not exist. Make it, or mend the URL."""

    kind = "remote-missing"


class RemoteUnsupported(RemoteError):
    """A server does not do what is needed for this, or does something else instead."""

    kind = "remote-unsupported"


class PushFailed(RemoteError):
    """A background push failed; ``__cause__`` is the original error, ``details["remote_step"]`` what the remote has."""

    kind = "push-failed"


@contextmanager
def telling(whose: str) -> Iterator[None]:
    """Put in front of what an error says about stored content whose content that is.

    Raises:
        NotFound: as it was raised inside, and so is Corrupt.
    """
    try:
        yield
    except (NotFound, Corrupt) as error:
        raise type(error)(f"{whose}: {error}", **error.details) from error
