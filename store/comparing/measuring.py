"""How far tensors have changed: sums over runs of elements, in bounded memory."""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..format.numerals import Numbers, Numeral, numeral, words
from ..limits import ARITHMETIC_ELEMENTS
from ..repository import Repository
from .differences import Measures
from .segments import Loaded, Pair, load, segments, windows

_Mask = npt.NDArray[np.bool_]


class _Sums(NamedTuple):
    """What is added up over an element's neighbours. Squares of 64-bit numbers go beyond float64: see ``_widened``."""

    element_count: int = 0
    changed_count: int = 0
    measured_count: int = 0
    nonfinite_before: int = 0
    nonfinite_after: int = 0
    before_squared: Any = 0.0
    after_squared: Any = 0.0
    product: Any = 0.0
    difference_squared: Any = 0.0
    max_abs: Any = 0.0

    def plus(self, other: "_Sums") -> "_Sums":
        """Both together."""
        summed = _Sums(*(one + more for one, more in zip(self, other, strict=True)))
        return summed._replace(max_abs=max(self.max_abs, other.max_abs))


def measure(repository: Repository, pairs: Sequence[Pair]) -> list[Measures]:
    """Measure how far each tensor has changed.

    Raises:
        NotFound: a chunk is missing; the message names the tensor.
        Corrupt: a chunk is damaged; likewise.

    Cost: reads every chunk of both, those that both have in common once: norms are those of whole tensors. Two windows
    (``DIFF_WINDOW_BYTES``) of memory, however large the tensors are.
    """
    sums = [_Sums() for _ in pairs]
    cut = (segment for number, pair in enumerate(pairs) for segment in segments(number, pair))
    for window in windows(cut):
        loaded = load(repository, window)
        summed = [_Sums()] * len(loaded)

        def add(place: int, loaded: list[Loaded] = loaded, summed: list[_Sums] = summed) -> None:
            summed[place] = _segment_sums(loaded[place])

        repository.threads.run(add, range(len(loaded)))
        for segment, more in zip(window, summed, strict=True):  # in order: sums of floats depend on it
            sums[segment.number] = sums[segment.number].plus(more)
    return [_measures(total, pair) for total, pair in zip(sums, pairs, strict=True)]


def _measures(sums: _Sums, pair: Pair) -> Measures:
    left, right = numeral(pair.before.dtype), numeral(pair.after.dtype)
    are_numbers = left is not None and right is not None and sums.measured_count > 0
    before, after, difference = map(np.sqrt, (sums.before_squared, sums.after_squared, sums.difference_squared))
    return Measures(
        element_count=sums.element_count,
        changed_count=sums.changed_count,
        relative_l2=_relative(difference, before) if are_numbers else None,
        max_abs=float(sums.max_abs) if are_numbers else None,
        cosine=_cosine(sums.product, before, after) if are_numbers else None,
        nonfinite_before=sums.nonfinite_before,
        nonfinite_after=sums.nonfinite_after,
    )


def _relative(difference: Any, before: Any) -> float:
    if before == 0:
        return inf if difference else 0.0
    return float(difference / before)


def _cosine(product: Any, before: Any, after: Any) -> float | None:
    if before == 0 or after == 0:
        return None
    return max(-1.0, min(1.0, float(product / before / after)))


def _segment_sums(loaded: Loaded) -> _Sums:
    segment, before, after = loaded
    forms = segment.pair.before.dtype, segment.pair.after.dtype
    left, right = map(numeral, forms)
    count = segment.stop - segment.start
    if left is None or right is None or left.parts != right.parts:
        changed = 0 if segment.is_same else _changed_words(forms, before, after)
        return _Sums(element_count=count, changed_count=changed)
    total = _Sums()
    with np.errstate(all="ignore"):  # NaN and infinities are counted, not complained of
        for one, other, is_changed in _blocks(loaded, left, right):
            total = total.plus(_block_sums(one, other, is_changed))
    return total


def _changed_words(forms: tuple[str, str], before: bytearray, after: bytearray) -> int:
    """Elements that are not equal bit for bit; all, if they are of two kinds that cannot be compared."""
    left, right = words(forms[0], before), words(forms[1], after)
    return int((left != right).any(axis=1).sum()) if forms[0] == forms[1] else len(left)


def _blocks(loaded: Loaded, left: Numeral, right: Numeral) -> Iterator[tuple[Numbers, Numbers, _Mask]]:
    """Numbers of either side, [n, parts], and which of the n elements have changed."""
    segment, before, after = loaded
    forms = segment.pair.before.dtype, segment.pair.after.dtype
    widths = tuple(len(side) // (segment.stop - segment.start) for side in (before, after))
    for start in range(0, segment.stop - segment.start, ARITHMETIC_ELEMENTS):
        stop = min(start + ARITHMETIC_ELEMENTS, segment.stop - segment.start)
        raw = memoryview(before)[start * widths[0] : stop * widths[0]]
        one = _widened(left.decode(raw)).reshape(-1, left.parts)
        if segment.is_same:
            yield one, one, np.zeros(len(one), np.bool_)
            continue
        raw_after = memoryview(after)[start * widths[1] : stop * widths[1]]
        other = _widened(right.decode(raw_after)).reshape(-1, right.parts)
        if forms[0] == forms[1]:
            yield one, other, (words(forms[0], raw) != words(forms[1], raw_after)).any(axis=1)
        else:
            yield one, other, ((one != other) & ~(np.isnan(one) & np.isnan(other))).any(axis=1)


def _widened(values: Numbers) -> Numbers:
    """Numbers that can be squared and subtracted. Float64 overflows beyond 10¹⁵⁴ and holds no integers beyond 2⁵³."""
    return values.astype(np.longdouble if values.itemsize == 8 else np.float64)


def _block_sums(before: Numbers, after: Numbers, is_changed: _Mask) -> _Sums:
    good_before, good_after = np.isfinite(before).all(axis=1), np.isfinite(after).all(axis=1)
    count, is_good = len(before), good_before & good_after
    if not is_good.all():
        before, after = before[is_good], after[is_good]
    difference_squared = np.square(after - before).sum(axis=1)
    return _Sums(
        element_count=count,
        changed_count=int(is_changed.sum()),
        measured_count=len(before),
        nonfinite_before=count - int(good_before.sum()),
        nonfinite_after=count - int(good_after.sum()),
        before_squared=np.square(before).sum(),
        after_squared=np.square(after).sum(),
        product=(before * after).sum(),
        difference_squared=difference_squared.sum(),
        max_abs=np.sqrt(difference_squared.max(initial=0.0)),
    )
