"""One stored array, of which no more is read than is looked at."""

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..boxes import Box
from ..errors import Incompatible
from ..format.entries import TensorEntry
from ..reading.boxes import contiguous, plan_box
from ..sizes import Sizes
from .arrays import Array, empty, flat_bytes

if TYPE_CHECKING:
    from ..repository import Repository


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array of a commit, not read. Every read gives a new array; nothing is kept.

        array = repo.at("main").arrays["model::embed"]
        array.dtype, array.shape        # reads nothing
        array[1000:1010, :64]           # reads the chunks that hold these elements
        array.read()                    # reads it all

    Attributes:
        repo: the store.
        name: its full name.
        entry: what the commit says of it.
        sizes: looks up what it takes.
    """

    repo: "Repository"
    name: str
    entry: TensorEntry
    sizes: Sizes

    @property
    def dtype(self) -> str:
        """Dtype name."""
        return self.entry.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.entry.shape

    @property
    def size_bytes(self) -> int:
        """Bytes that it takes once it is read."""
        return self.entry.size_bytes

    @property
    def stored_bytes(self) -> int:
        """Bytes that it takes in the store. Chunks that others share count in full, bases of deltas not.

        Raises:
            NotFound: a chunk is missing.
            Corrupt: no copy of a chunk is good.
        """
        return self.sizes.of(self.entry).stored_bytes

    @property
    def chunk_ids(self) -> tuple[str, ...]:
        """In hex, the BLAKE3 of the bytes of each chunk; none for an array so small that the commit itself holds it."""
        return tuple(chunk.hex() for chunk in self.entry.chunks)

    def read(self) -> Array:
        """Read all of it.

        Raises:
            Incompatible: NumPy lacks the dtype.
            NotFound: a chunk is missing.
            Corrupt: a chunk is damaged.
        """
        return self.box((0,) * len(self.shape), self.shape)

    def box(self, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Array:
        """Read a range of indexes in each dim; only the chunks that hold them are touched. Raises as :meth:`read` does.

        Args:
            offsets: first index in each dim.
            sizes: how many in each dim.

        Raises:
            Incompatible: it reaches outside the array.
        """
        out = empty(self.name, self.dtype, sizes)
        target = contiguous(sizes, out.itemsize, flat_bytes(out))
        self.repo.read_copies(plan_box(self.entry, Box(tuple(offsets), tuple(sizes)), target))
        return out

    def memory_of(self, target: Array) -> memoryview:
        """The bytes of an array that this one is to be read into.

        Raises:
            Incompatible: it has another dtype or shape, is not in C order, or cannot be written to.
        """
        if target.dtype.name != self.dtype or target.shape != self.shape:
            raise Incompatible(
                f"{self.name} is {self.dtype} {list(self.shape)}, its target {target.dtype} {list(target.shape)}",
                tensor=self.name,
            )
        if not (target.flags.c_contiguous and target.flags.writeable and target.dtype.isnative):
            raise Incompatible(f"{self.name}: its target is not writable, native and in C order", tensor=self.name)
        return flat_bytes(target)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self.name} has no dims, so no length")
        return self.shape[0]

    def __getitem__(self, index: Any) -> Array:
        """Read what an index selects: whole numbers, slices with steps above 0 and ``...``, as NumPy understands them.

        Raises:
            IndexError: there is no such index, or there are more than dims.
            TypeError: something else in the index: read first, then index with it.
            ValueError: a step below 1.
        """
        ranges = [_range_of(each, size) for each, size in zip(_full(index, len(self.shape)), self.shape, strict=True)]
        read = self.box(tuple(one.start for one in ranges), tuple(one.stop - one.start for one in ranges))
        selected: Array = read[tuple(one.within for one in ranges)]
        return selected

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:  # noqa: FBT001 - as NumPy calls it
        """All of it, for ``np.asarray``.

        Raises:
            ValueError: it is asked for without a copy.
        """
        if copy is False:
            raise ValueError(f"{self.name} lies in a store: it cannot be had without a copy")
        return self.read().astype(dtype, copy=False) if dtype is not None else self.read()


@dataclass(frozen=True, slots=True)
class _Range:
    """What of a dim is read, and what of that is selected."""

    start: int
    stop: int
    within: int | slice


def _full(index: Any, dim_count: int) -> list[Any]:
    """An index for each dim."""
    parts = list(index) if isinstance(index, tuple) else [index]
    ellipses = [number for number, part in enumerate(parts) if part is Ellipsis]
    if len(ellipses) > 1 or len(parts) - len(ellipses) > dim_count:
        raise IndexError(f"an index of {len(parts)} parts for {dim_count} dims")
    at = ellipses[0] if ellipses else len(parts)
    missing = [slice(None)] * (dim_count - len(parts) + len(ellipses))
    return [*parts[:at], *missing, *parts[at + len(ellipses) :]]


def _range_of(index: Any, size: int) -> _Range:
    if isinstance(index, slice):
        start, stop, step = index.indices(size)
        if step < 1:
            raise ValueError("what is stored is read forwards: the step of a slice has to be above 0")
        return _Range(start, max(start, stop), slice(None, None, step))
    if isinstance(index, bool | np.bool_):
        raise TypeError("truth values select nothing here; read the array, then index that")
    number = operator.index(index)
    if not -size <= number < size:
        raise IndexError(f"no index {number} among {size}")
    return _Range(number % size, number % size + 1, 0)
