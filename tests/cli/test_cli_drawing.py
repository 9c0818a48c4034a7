"""The parts of the command line that are pure: lanes, elements, words."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

import pytest
import torch

from moonclip.cli.elements import texts
from moonclip.cli.lanes import beside, draw
from moonclip.cli.text import age, columns, date, iso_date, one_line, printable, share
from moonclip.state.tensors import DTYPE_NAMES
from store.history.walks import graph
from store.ids import CommitId, ObjectId


@dataclass(frozen=True)
class Row:
    name: str
    parents_by_name: str
    sequence: int = 0
    step: int | None = None

    @property
    def id(self) -> CommitId:
        return CommitId(ObjectId(self.name.encode()))

    @property
    def parents(self) -> tuple[CommitId, ...]:
        return tuple(CommitId(ObjectId(name.encode())) for name in self.parents_by_name)


def drawn(*history: str) -> list[str]:
    """``"c:ab"`` is the commit c with parents a and b; newest first."""
    rows = [Row(*each.split(":")) for each in history]
    return [line for row, left in draw(graph(rows)) for line in beside(left, [row.name])]


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        (["b:a", "a:"], ["* b", "* a"]),
        (["c:a", "b:a", "a:"], ["* c", "| * b", "|/", "* a"]),
        (["d:a", "c:a", "b:a", "a:"], ["* d", "| * c", "|/", "| * b", "|/", "* a"]),
        (["d:bc", "c:a", "b:a", "a:"], ["* d", "|\\", "| * c", "* | b", "|/", "* a"]),
        (
            ["e:a", "d:b", "c:a", "b:a", "a:"],
            ["* e", "| * d", "| | * c", "|_|/", "| * b", "|/", "* a"],  # c's line crosses d's
        ),
        (["b:", "a:"], ["* b", "", "* a"]),
        (["c:a", "b:", "z:", "a:"], ["* c", "| * b", "|", "| * z", "* a"]),
    ],
    ids=" ".join,
)
def test_graphs(history: Sequence[str], expected: Sequence[str]) -> None:
    assert drawn(*history) == list(expected)


@pytest.mark.parametrize("dtype", DTYPE_NAMES, ids=str)
def test_elements_read_as_torch_reads_them(dtype: torch.dtype) -> None:
    width = dtype.itemsize
    data = bytes(range(256)) * width  # every byte once in each place
    elements = torch.frombuffer(bytearray(data), dtype=dtype)
    shown = texts(DTYPE_NAMES[dtype], memoryview(data))
    assert len(shown) == 256
    if shown[0].startswith("0x"):
        assert "bits" in str(dtype) or "int" in str(dtype) or "float4" in str(dtype)
        return
    if dtype.is_complex:
        expected = [complex(value) for value in elements.to(torch.complex128).tolist()]
        assert all(_same(complex(text).real, value.real) for text, value in zip(shown, expected, strict=True))
        return
    expected = elements.to(torch.float64).tolist() if dtype.is_floating_point else elements.tolist()
    for text, value in zip(shown, expected, strict=True):
        assert _same(float(text), value) if dtype.is_floating_point else text == str(value)


def _same(shown: float, value: float) -> bool:
    return (isnan(shown) and isnan(value)) or shown == float(f"{value:.6g}")


def test_ages() -> None:
    def of(seconds: int) -> str:
        return age(0, seconds * 10**9)

    assert [of(n) for n in (0, 59, 60, 7200, 86_400 * 2, 86_400 * 14, 86_400 * 800)] == [
        "just now",
        "just now",
        "1 minute ago",
        "2 hours ago",
        "2 days ago",
        "2 weeks ago",
        "2 years ago",
    ]
    assert age(10**9, 0) == "in the future"


def test_dates() -> None:
    assert re.fullmatch(r"2262-04-1[12] \d\d:47:16 [+-]\d{4}", date(2**63 - 1))
    assert iso_date(10**20 - 1).startswith("5138-")  # the longest that a reflog holds
    assert iso_date(1_500_000_000_123_456_789) == "2017-07-14T02:40:00.123456+00:00"


def test_text_for_terminals() -> None:
    assert printable("naïve\nchunk × 2") == "naïve\nchunk × 2"
    assert printable("\x1b[2J\u202e\ud800\t") == "\\x1b[2J\\u202e\\ud800\\t"
    assert one_line("\n  first \r\nsecond") == "first"


def test_columns() -> None:
    assert columns([["a", "1", "x"], ["bbb", "22", ""]], right=[1]) == ["a     1  x", "bbb  22"]
    assert columns([]) == []
    assert share(1, 0) == "0.0 %"
