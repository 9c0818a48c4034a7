"""Which commits somebody wants to see: ``loss<2.3``, ``since 2d``. Pure.

    CONDITION = KEY OP VALUE        OP: < <= > >= = == !=
    MOMENT    = COUNT UNIT          UNIT: s m h d w      so long ago
              | ISO 8601 date, or date and time; local unless it says otherwise

KEY is one of a commit's metadata, or ``step``, ``branch`` or ``message`` where the metadata has no such key.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ..errors import Incompatible
from ..format.objects import Commit
from ..format.values import Plain

_CONDITION: Final = re.compile(
    r"\s*(?P<key>[^<>=!]+?)\s*(?P<comparison><=|>=|==|!=|<|>|=)(?!\s*[<>=!])\s*(?P<value>.*?)\s*"
)
_SPAN: Final = re.compile(r"(?P<count>\d{1,9})\s*(?P<unit>[smhdw])")
_UNIT_NS: Final = {
    unit: seconds * 1_000_000_000
    for unit, seconds in {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}.items()
}

_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}
_EQUALITY: Final = {"=", "==", "!="}


@dataclass(frozen=True, slots=True)
class Condition:
    """What a commit must say of itself.

    Attributes:
        key: what is compared.
        comparison: how; a key of ``<``, ``<=``, ``>``, ``>=``, ``=``, ``==``, ``!=``.
        value: with what.
    """

    key: str
    comparison: str
    value: str

    def holds(self, commit: Commit) -> bool:
        """Whether it holds. Numbers, also such as are kept as text, compare as numbers, and other texts as texts.

        A commit that has no such key meets no condition on it, nor does a number that is none (NaN); texts have no
        order.
        """
        said = _said(commit, self.key)
        if said is None:
            return False
        left, right = number_of(said), number_of(self.value)
        if left is not None and right is not None:
            return not math.isnan(left) and _COMPARISONS[self.comparison](left, right)
        text = said if isinstance(said, str) else str(said)
        return self.comparison in _EQUALITY and _COMPARISONS[self.comparison](text, self.value)


def condition(text: str) -> Condition:
    """Parse a condition.

    Raises:
        Incompatible: it is none.
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise Incompatible(f"{text!r} is no condition; write a key, a comparison and a value: 'loss<2.3'")
    return Condition(match["key"], match["comparison"], match["value"])


def moment_ns(text: str, now_ns: int) -> int:
    """A point in time, in nanoseconds since the epoch: ``2d`` is two days before ``now_ns``.

    Raises:
        Incompatible: it is none.
    """
    span = _SPAN.fullmatch(text.strip())
    if span is not None:
        return now_ns - int(span["count"]) * _UNIT_NS[span["unit"]]
    try:
        return int(datetime.fromisoformat(text.strip()).timestamp() * 1e6) * 1_000
    except (ValueError, OverflowError, OSError):
        raise Incompatible(
            f"{text!r} is no time; write how long ago, '36h' or '2d', or a date, '2026-11-29' or '2026-11-29T16:45'"
        ) from None


def number_of(value: Plain) -> float | None:
    """The number that a value is or, as text, means; ``None`` if it is none. ``True`` is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _said(commit: Commit, key: str) -> Plain:
    if key in commit.metadata:
        return commit.metadata[key]
    own: dict[str, Plain] = {"step": commit.step, "branch": commit.branch, "message": commit.message}
    return own.get(key)
