"""Groups without a base: rows and columns of a matrix whose values differ in magnitude.

Optimizer state of a layer is close to an outer product in magnitude: inputs that hardly fire have small columns,
outputs that hardly matter small rows. The exponent of a value is then far less surprising once its row and column are
known. Two bytes of code, one per row and one per column, say that, and any decoder can add them up.

Spec: docs/format.md §5.3.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from .. import kernels
from ..dtypes import Element
from ..kernels.reference import Bytes, Counts, Words
from ..limits import MIN_GROUP_BYTES
from .decoding import exponent_field, group_keys
from .payload import row_count
from .words import frozen

_STEPS_PER_OCTAVE: Final = 4
"""Resolution of a key. Finer gains nothing measurable and makes more groups; coarser loses 0.05 bits a value."""

_MAX_CODE: Final = 255
_MIN_ROWS: Final = 8
_MIN_COLUMNS: Final = 8
"""Narrower than this there is nothing to tell apart, or the codes cost more than they gain."""


@dataclass(frozen=True, slots=True)
class Context:
    """Magnitudes of rows and columns.

    Attributes:
        columns: words of a row.
        codes: uint8[rows + columns], rows first.
        keys: of every word, half the sum of its two codes; in the thread's scratch.
        counts: int64[256], how many words have each key.
    """

    columns: int
    codes: Bytes
    keys: Bytes
    counts: Counts


def worth_grouping(element: Element, word_count: int) -> bool:
    """Whether groups can pay: a chunk that fits one block has one code table, however its words are ordered."""
    return element.is_float and word_count >= 2 * MIN_GROUP_BYTES


def find_context(words: Words, element: Element, columns: int) -> Context | None:
    """Measure rows and columns; ``None`` where a chunk has too few of either.

    A chunk that starts inside a row is measured as if it did not: its columns stay columns, only its rows blur.

    Cost: one pass over ``words``, one over their keys.
    """
    if not worth_grouping(element, len(words)) or columns < _MIN_COLUMNS or len(words) < _MIN_ROWS * columns:
        return None
    first_bit, mask = exponent_field(element)
    row_sums, column_sums = np.empty(row_count(len(words), columns), np.int64), np.empty(columns, np.int64)
    kernels.current(words.nbytes).exponent_sums(words, first_bit, mask, columns, row_sums, column_sums)
    whole_rows, rest = divmod(len(words), columns)
    row_lengths = np.full(len(row_sums), columns)
    column_lengths = np.full(columns, whole_rows)
    if rest:
        row_lengths[-1] = rest
        column_lengths[:rest] += 1
    codes = frozen(np.concatenate((_codes(row_sums / row_lengths), _codes(column_sums / column_lengths))))
    return Context(columns, codes, *group_keys(element, None, codes, columns, len(words)))


def _codes(means: npt.NDArray[np.float64]) -> Bytes:
    # A key is half a sum of codes, so codes are twice as fine as keys.
    steps = np.rint((means - means.min()) * (2 * _STEPS_PER_OCTAVE))
    return np.asarray(np.minimum(steps, _MAX_CODE), np.uint8)
