"""Tensors that are read when somebody looks at them, and only those rows that are looked at."""

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import torch

from store.errors import MoonclipError
from store.format.entries import TensorEntry
from store.limits import MIB
from store.repository import Repository

from ..state.tensors import torch_dtype, writable_bytes
from .reading import empty_for

_RUN_BYTES: Final = 4 * MIB
"""Rows that are read at a time where all are wanted one by one: the largest chunk, so none is read for each row."""


@dataclass(frozen=True, slots=True)
class LazySource:
    """Where lazy tensors read from.

    Attributes:
        repo: the store.
        owner: whoever closes the store once nobody has it any more: kept for as long as there is a lazy tensor.
        verify_hash: whether chunks are checked against their BLAKE3, too.
    """

    repo: Repository
    owner: object
    verify_hash: bool


class LazyTensor:
    """A stored tensor that has not been read; made by ``CheckpointManager.load(…, lazy=True)``.

        state = mgr.load("main~3", items=["model"], lazy=True)["model"]
        state["embed.weight"].shape          # reads nothing
        state["embed.weight"][1000:1010]     # reads the chunks that hold these rows
        state["embed.weight"].load()         # reads it all

    Every read gives a new tensor on the CPU; nothing is kept. May be shared between threads, and used in a forked
    child. Once the manager is closed, reading is an error.

    Args:
        source: where it reads from.
        entry: the tensor as stored.
        name: its full name, ``item::name``.

    Raises:
        Incompatible: the installed torch has no such dtype.
    """

    __slots__ = ("_entry", "_source", "dtype", "name", "shape")

    def __init__(self, source: LazySource, entry: TensorEntry, name: str) -> None:
        self._source = source
        self._entry = entry
        self.name = name
        self.dtype = torch_dtype(entry.dtype)
        self.shape = torch.Size(entry.shape)

    @property
    def ndim(self) -> int:
        """Number of dims."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes once it is read."""
        return self._entry.size_bytes

    def load(self) -> torch.Tensor:
        """Read all of it.

        Raises:
            MoonclipError: the manager is closed.
            NotFound: a chunk is missing. Corrupt: a chunk is damaged.
        """
        return self._rows(0, self._row_count).view(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self._row_count

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Read rows, then index these as any tensor: only what selects along the first dim spares reading.

        Args:
            index: an integer or a slice; or a tuple that begins with one.

        Raises:
            IndexError: there is no such row. TypeError, ValueError: it is no such index.
            MoonclipError: the manager is closed.
            NotFound: a chunk is missing. Corrupt: a chunk is damaged.
        """
        if not self.shape:
            raise IndexError("a 0-d tensor has no rows; use load()")
        first, *others = index if isinstance(index, tuple) and index else (index,)
        if isinstance(first, slice):
            start, stop, step = first.indices(self._row_count)
            if step < 1:
                raise ValueError("rows are read forwards: the step of a slice must be positive")
            rows = self._rows(start, max(start, stop))[::step]
            return rows[(slice(None), *others)]
        row = self._row(first)
        return self._rows(row, row + 1)[(0, *others)]

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Its rows, one after the other, as views of as many as are read at a time: about 4 MiB.

        Raises:
            TypeError: it has no dims.

        Cost: what :meth:`load` costs, and a run of rows in memory for as long as one of them is kept.
        """
        if not self.shape:
            raise TypeError("iteration over a 0-d tensor; use .load()")
        return self._each_row()

    def __contains__(self, value: object) -> NoReturn:
        """Refused: it would read everything.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"{self.name} has not been read; look for it in what .load() returns")

    def __array__(self, *args: object, **named: object) -> NoReturn:
        """Refused: it would read everything, which nobody can see here.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"{self.name} has not been read; make an array of what .load() returns")

    def __repr__(self) -> str:
        return f"LazyTensor({self.name!r}, shape={list(self.shape)}, dtype={self.dtype})"

    @property
    def _row_count(self) -> int:
        return self.shape[0] if self.shape else 1

    def _row(self, number: Any) -> int:
        """The row's number, from the front."""
        row = operator.index(number)
        if isinstance(number, bool):
            raise TypeError("a truth value is no row")
        if not -self._row_count <= row < self._row_count:
            raise IndexError(f"no row {row} in {self._row_count}")
        return row % self._row_count

    def _each_row(self) -> Iterator[torch.Tensor]:
        run_rows = max(1, _RUN_BYTES * self._row_count // max(1, self.nbytes))
        for start in range(0, self._row_count, run_rows):
            rows = self._rows(start, min(start + run_rows, self._row_count))
            yield from (rows[number] for number in range(len(rows)))

    def _rows(self, start: int, stop: int) -> torch.Tensor:
        repo = self._source.repo
        if repo.is_closed:
            raise MoonclipError(f"{self.name}: the manager it was loaded by is closed; load it again by an open one")
        rows = empty_for(self._entry, (stop - start, *self.shape[1:]))
        view = writable_bytes(rows)
        if view is not None:  # else there is nothing in it
            repo.read_rows(self._entry, start, stop, view, verify_hash=self._source.verify_hash)
        return rows
