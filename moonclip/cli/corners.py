"""A look at a tensor: its first and last elements in each dim, as arrays are usually printed.

Only the chunks that hold these are read, however large the tensor is.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Final

from store.format.dtypes import dtype
from store.format.entries import TensorEntry
from store.repository import Repository

from .elements import texts

_EDGE: Final = (3, 3, 3, 2)
"""Elements shown at each end of a dim, by the tensor's number of dims; of more dims, one."""


def look(repo: Repository, entry: TensorEntry) -> list[str]:
    """Lines of nested brackets, ``...`` for what is left out; none for a tensor without elements.

    Raises:
        NotFound: a chunk is missing.
        Corrupt: a chunk is damaged.
    """
    if not prod(entry.shape):
        return []
    edge = _EDGE[len(entry.shape)] if len(entry.shape) < len(_EDGE) else 1
    shown = [_shown(size, edge) for size in entry.shape]
    read = iter(_read(repo, entry, shown))
    return list(_lines(shown, entry.shape, read))


def _shown(size: int, edge: int) -> list[int]:
    """Indices along one dim."""
    return list(range(size)) if size <= 2 * edge else [*range(edge), *range(size - edge, size)]


def _read(repo: Repository, entry: TensorEntry, shown: Sequence[Sequence[int]]) -> list[str]:
    """The elements at the shown indices, in C order."""
    item_bytes = dtype(entry.dtype).item_bytes
    strides = [prod(entry.shape[dim + 1 :]) for dim in range(len(entry.shape))]
    places = [sum(map(int.__mul__, index, strides)) for index in product(*shown)]
    data = memoryview(bytearray(len(places) * item_bytes))
    wanted = (
        (place * item_bytes, data[number * item_bytes : (number + 1) * item_bytes])
        for number, place in enumerate(places)
    )
    repo.read_spans(entry, wanted)
    return texts(entry.dtype, data)


def _lines(
    shown: Sequence[Sequence[int]], shape: Sequence[int], elements: Iterator[str], indent: str = ""
) -> Iterator[str]:
    if not shown:
        yield next(elements)
        return
    is_cut = len(shown[0]) < shape[0]
    half = len(shown[0]) // 2
    if len(shown) == 1:
        words = [next(elements) for _ in shown[0]]
        yield f"{indent}[{', '.join([*words[:half], '...', *words[half:]] if is_cut else words)}]"
        return
    yield f"{indent}["
    for number in range(len(shown[0])):
        if is_cut and number == half:
            yield f"{indent} ..."
        yield from _lines(shown[1:], shape[1:], elements, f"{indent} ")
    yield f"{indent}]"
