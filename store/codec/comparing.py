"""What chunks would take, told from samples of them: which of many a chunk is best stored against.

A sample is all that an encoder looks at to choose, so what is told here is what it would expect.
"""

from typing import NamedTuple

from ..format.dtypes import Element, dtype
from ..kernels.mapping import Words
from . import narrowing
from .encoding import MIN_PLANES_BYTES, expected_bits, gathered
from .words import words_of


class Sample(NamedTuple):
    """Words of a chunk, in the places where the encoder looks.

    Attributes:
        words: a few thousand at most.
        word_count: of the chunk.
        element: what they are.
    """

    words: Words
    word_count: int
    element: Element


def sample(raw: memoryview, element: Element) -> Sample | None:
    """Sample a chunk; ``None`` if it is one that is not stored in planes."""
    if len(raw) < MIN_PLANES_BYTES or len(raw) % element.width_bytes:
        return None
    words = words_of(raw, element)
    return Sample(gathered(words), len(words), element)


def cast(given: Sample, held: str, wanted: str) -> Sample:
    """The sample that a chunk of floats has once it is cast.

    Args:
        given: of the chunk as it is.
        held: dtype name of its elements.
        wanted: dtype name of what they are cast to.
    """
    words = narrowing(held, wanted, b"", 1).new(given.words.tobytes(), 0)
    element = dtype(wanted).element
    return Sample(words_of(words, element), given.word_count, element)


def expected_bytes(given: Sample, base: Sample | None = None) -> int:
    """Length of the payload that a chunk would come to.

    Args:
        given: the chunk's.
        base: its base's, which has as many words; ``None`` for an encoding without.

    Cost: 10–20 µs.
    """
    bits = expected_bits(given.words, None if base is None else base.words, given.element, given.word_count)
    return bits // 8
