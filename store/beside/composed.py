"""Files that consist of tensors of their own commit, with some bytes between them: told as a recipe, and read by it.

A recipe is a tagged value in the place of the file's bytes. It names tensors by item and name, so that whatever keeps,
copies or drops a commit's items needs to know nothing of files. The SHA-256 of the whole file is part of it: what was
put together wrongly, or from tensors that are not the same any more, is never taken for the file.

Spec: docs/format.md §9.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import accumulate
from typing import Any, Final, NamedTuple

from ..errors import Corrupt
from ..format.entries import Entry, TensorEntry
from ..format.objects import Commit
from ..format.values import Plain, Tagged
from ..ids import ChunkId, chunk_id
from ..reading.contents import Contents
from ..reading.copies import Copy
from ..reading.retrieve import plan_span

TAG: Final = "file"
"""Of the tagged value that a recipe is."""

_SHA256_BYTES: Final = 32


class Run(NamedTuple):
    """Bytes of a tensor, in C order.

    Attributes:
        item: the item that it is in.
        name: its name there.
        start: the first byte.
        stop: one past the last.
    """

    item: str
    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Composed:
    """What a file consists of.

    Attributes:
        size_bytes: its length.
        sha256: of all its bytes.
        parts: bytes as they are, and runs of tensors of the same commit, in order.
    """

    size_bytes: int
    sha256: bytes
    parts: tuple[bytes | Run, ...] = field(repr=False)


def to_plain(composed: Composed) -> Tagged:
    """A recipe as it is stored."""
    parts = tuple(part if isinstance(part, bytes) else tuple(part) for part in composed.parts)
    return Tagged(TAG, (composed.size_bytes, composed.sha256, parts))


def from_payload(payload: Plain) -> Composed:
    """The recipe that a tagged value holds.

    Raises:
        Corrupt: it is none, or its parts are not as long as it says.
    """
    try:
        size_bytes, digest, told = payload
        parts = tuple(part if type(part) is bytes else _run(part) for part in told)
    except (TypeError, ValueError) as error:
        raise Corrupt(f"a file is described by {payload!r:.80}") from error
    if type(size_bytes) is not int or type(digest) is not bytes or len(digest) != _SHA256_BYTES:
        raise Corrupt(f"a file is described by {payload!r:.80}")
    if sum(map(size_of, parts)) != size_bytes:
        raise Corrupt(f"a file of {size_bytes} bytes has parts of {sum(map(size_of, parts))}")
    return Composed(size_bytes, digest, parts)


def size_of(part: bytes | Run) -> int:
    """Bytes of a part."""
    return len(part) if isinstance(part, bytes) else part.stop - part.start


class Window(NamedTuple):
    """A run of a file.

    Attributes:
        start: its first byte.
        stop: one past the last.
        parts: those that it has something of, each with where in the file it begins.
    """

    start: int
    stop: int
    parts: tuple[tuple[int, bytes | Run], ...]

    @property
    def size_bytes(self) -> int:
        """Its length."""
        return self.stop - self.start


class Parts:
    """Where the content of composed files of one commit is, a window at a time. Threads may share it.

    Args:
        contents: the store.
        commit: the commit.
    """

    def __init__(self, contents: Contents, commit: Commit) -> None:
        self._contents = contents
        self._commit = commit
        self._trees: dict[str, Mapping[str, Entry]] = {}  # read twice if two threads come at once: no harm is done

    def require(self, composed: Composed) -> None:
        """Check that the commit has all that a file consists of, and fetch what comes when it is read.

        Raises:
            NotFound: it lacks an item.
            Pruned: an item is not here.
            Corrupt: it lacks a tensor.
            ReadOnly: something would have to be fetched, and the store cannot be written from here.
            RemoteError: the remote failed that has it.
        """
        runs = [part for part in composed.parts if isinstance(part, Run)]
        self._contents.bring({(run.item, run.name): self._entry(run) for run in runs}.values())

    def chunks(self, composed: Composed) -> tuple[ChunkId, ...] | None:
        """Ids of the chunks that a file's tensors are stored in, in the order of the file.

        ``None`` if they do not say what its bytes are: it has part of a tensor, or one that was cast or cut in pieces.

        Raises:
            NotFound: the commit lacks an item.
            Pruned: an item is not here.
            Corrupt: a tensor is not there, or not as long.
        """
        found: list[ChunkId] = []
        for run in composed.parts:
            if isinstance(run, Run):
                entry = self._entry(run)
                if run.stop - run.start != entry.size_bytes or entry.stored is not None or len(entry.pieces) > 1:
                    return None
                found += entry.chunks if entry.inline is None else [chunk_id(entry.inline)]
        return tuple(found)

    def windows(self, composed: Composed, window_bytes: int) -> Iterator[Window]:
        """A file as runs of at most ``window_bytes``, in order. Reads trees only.

        They end where chunks end, where that is possible: one that lies in two windows is decoded twice.

        Args:
            composed: the file.
            window_bytes: the most that is to be read at once.

        Raises:
            NotFound: the commit lacks an item.
            Pruned: an item is not here.
            Corrupt: a tensor is not there, or not as long.
            ReadOnly: something would have to be fetched, and the store cannot be written from here.
            RemoteError: the remote failed that has it.
        """
        starts = list(accumulate(map(size_of, composed.parts), initial=0))
        bounds = [
            bound for start, part in zip(starts, composed.parts, strict=False) for bound in self._ends(start, part)
        ]
        start = 0
        while start < composed.size_bytes:
            most = start + window_bytes
            nearest = bounds[bisect_right(bounds, most) - 1] if bounds[0] <= most else start
            stop = nearest if nearest > start else min(most, composed.size_bytes)
            first, last = bisect_right(starts, start) - 1, bisect_left(starts, stop)
            yield Window(start, stop, tuple(zip(starts[first:last], composed.parts[first:last], strict=True)))
            start = stop

    def copies(self, window: Window, out: memoryview) -> list[Copy]:
        """What to read for a window. Its bytes that are no tensor's, or inline, are copied right here.

        Args:
            window: which.
            out: memory of its length; all of it is written once that is read.

        Raises as :meth:`windows` does.
        """
        copies: list[Copy] = []
        for part_start, part in window.parts:
            low, high = max(window.start, part_start), min(window.stop, part_start + size_of(part))
            place = out[low - window.start : high - window.start]
            if isinstance(part, bytes):
                place[:] = part[low - part_start : high - part_start]
            elif place:
                copies += plan_span(self._entry(part), part.start + low - part_start, place)
        return copies

    def _ends(self, start: int, part: bytes | Run) -> Iterator[int]:
        """Where in a file a part that begins at ``start`` ends, and the chunks in it."""
        if isinstance(part, Run):
            entry = self._entry(part)
            if len(entry.pieces) == 1 and entry.stored is None:
                ends = accumulate(entry.pieces[0].cuts)
                yield from (start + end - part.start for end in ends if part.start < end < part.stop)
        yield start + size_of(part)

    def _entry(self, run: Run) -> TensorEntry:
        if run.item not in self._trees:
            self._trees[run.item] = dict(self._contents.tree(self._commit, run.item))
        entry = self._trees[run.item].get(run.name)
        if not isinstance(entry, TensorEntry) or not 0 <= run.start <= run.stop <= entry.size_bytes:
            raise Corrupt(
                f"a file consists of bytes {run.start} to {run.stop} of {run.item}::{run.name}, which are not there",
                name=f"{run.item}::{run.name}",
            )
        return entry


class Hashed:
    """Bytes that are counted and hashed as they go by, and compared with what they have to be.

    Args:
        path: the file, for messages.
        composed: what it consists of.
    """

    def __init__(self, path: str, composed: Composed) -> None:
        self._path = path
        self._composed = composed
        self._hash = sha256()

    def update(self, data: memoryview) -> None:
        """The next bytes. Releases the GIL."""
        self._hash.update(data)

    def require_same(self) -> None:
        """Check, once all have gone by.

        Raises:
            Corrupt: they are not those that were imported.
        """
        if self._hash.digest() != self._composed.sha256:
            raise Corrupt(
                f"{self._path} does not have the SHA-256 {self._composed.sha256.hex()} with which it was imported:"
                " a tensor of which it consists was replaced, or is damaged; `moonclip fsck` tells",
                path=self._path,
            )


def hashed(path: str, composed: Composed, windows: Iterable[memoryview]) -> Iterator[memoryview]:
    """Windows as they are given; the error comes behind the last.

    Raises:
        Corrupt: they are not what was imported.
    """
    hashing = Hashed(path, composed)
    for window in windows:
        hashing.update(window)
        yield window
    hashing.require_same()


def _run(part: Any) -> Run:
    run = Run(*part)
    if type(run.item) is not str or type(run.name) is not str:
        raise TypeError("a run of no tensor")
    if type(run.start) is not int or type(run.stop) is not int or not 0 <= run.start <= run.stop:
        raise ValueError("a run of no bytes")
    return run
