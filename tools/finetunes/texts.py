"""What is trained on: functions of the standard library beside what their docstrings say, as code search pairs them."""

import re
from functools import cache
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ..training import library_text

_DOCUMENTED: Final = re.compile(r'def (\w+\([^)]*\))[^\n]*:\n +r?"""(\w[^"\n]{20,})')
"""A function's name and arguments, and the first line of its docstring."""


class Batch(NamedTuple):
    """Pairs of texts, as models take them.

    Attributes:
        code: a function each.
        words: what is said of it.
    """

    code: dict[str, Tensor]
    words: dict[str, Tensor]


class Texts:
    """Pairs, drawn with torch's global generator.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``, set here to cut and fill up texts.
        length: tokens of a text, at most.
    """

    def __init__(self, tokenizer: Any, length: int) -> None:
        self._tokenizer = tokenizer
        tokenizer.enable_truncation(length)
        tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")

    def batch(self, count: int) -> Batch:
        """So many pairs, all of them different."""
        drawn = torch.randperm(len(_pairs()))[:count]
        code, words = zip(*(_pairs()[place] for place in drawn.tolist()), strict=True)
        return Batch(self._encoded(code), self._encoded(words))

    def _encoded(self, texts: tuple[str, ...]) -> dict[str, Tensor]:
        encoded = self._tokenizer.encode_batch(list(texts))
        return {
            "input_ids": torch.tensor([text.ids for text in encoded]),
            "attention_mask": torch.tensor([text.attention_mask for text in encoded]),
        }


@cache
def _pairs() -> list[tuple[str, str]]:
    """Each text once: whoever is paired with its own must not meet it a second time."""
    text = bytes(library_text().numpy()).decode(errors="replace")
    found = {words: code for code, words in _DOCUMENTED.findall(text)}
    return sorted({code: words for words, code in found.items()}.items())
