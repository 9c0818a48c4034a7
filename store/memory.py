"""Comparing buffers at memory speed, without the GIL."""

from .limits import KIB

_PROBE_BYTES = 64 * KIB


def same_bytes(left: memoryview, right: memoryview) -> bool:
    """Whether two flat byte views hold the same bytes.

    A memoryview's own ``==`` compares element by element under the GIL, forty times slower. Changed chunks differ
    early: a short probe spares them the pass.
    """
    if len(left) != len(right):
        return False
    return _equal(left[:_PROBE_BYTES], right[:_PROBE_BYTES]) and _equal(left[_PROBE_BYTES:], right[_PROBE_BYTES:])


def _equal(left: memoryview, right: memoryview) -> bool:
    import numpy as np  # only those who save need it; who reads history imports this module too

    whole_words = len(left) - len(left) % 8
    words = np.array_equal(np.frombuffer(left[:whole_words], np.uint64), np.frombuffer(right[:whole_words], np.uint64))
    return bool(words) and left[whole_words:] == right[whole_words:]
