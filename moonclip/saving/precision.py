"""Rules for the precision in which tensors are stored: which of them are cast, and to what.

A pattern is matched against a tensor's full name, ``optimizer::state/0/exp_avg``, as the shell does it: ``*`` stands
for any text, slashes too. ``/`` may be written for ``::``, so ``optimizer/*`` is all of an optimizer, ``*/exp_avg`` and
``*/exp_avg_sq`` are Adam's moments wherever they are, and ``model/*.bias`` are biases.
"""

import logging
from collections.abc import Iterator, Mapping
from fnmatch import translate
from re import Pattern
from re import compile as compiled
from types import MappingProxyType
from typing import Final

from store.errors import Incompatible
from store.format.casts import has_row_scales, is_narrower
from store.format.dtypes import dtype

from ..state.entries import FlatState, FlatTensor
from ..state.tensors import TensorSource

_log = logging.getLogger("moonclip")

_ROWS: Final = "_rows"
DTYPES: Final = {
    "none": None,
    "fp64": "float64",
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    f"fp8_e4m3{_ROWS}": "float8_e4m3fn",
    f"fp8_e5m2{_ROWS}": "float8_e5m2",
}
"""What a person may ask for, and the dtype that this is; ``_rows`` for a scale for each row, where rows are long."""
_SYNONYMS: Final = {stored: name for name, stored in DTYPES.items() if stored is not None and not name.endswith(_ROWS)}
"""What torch calls them."""


class _Rule:
    """One line of the rules.

    Attributes:
        pattern: as it was given.
        asked: what it asks for, a key of ``DTYPES``.
        is_met: whether a tensor fell to it.
    """

    def __init__(self, pattern: str, asked: str) -> None:
        self.pattern = pattern
        self.asked = asked
        self.is_met = False
        path = pattern.replace("::", "/")
        self._names: Pattern[str] = compiled(translate(path))
        self._items: Pattern[str] = compiled(translate(path.partition("/")[0]))

    def fits(self, path: str) -> bool:
        """Whether it is about a tensor."""
        return self._names.match(path) is not None

    def may_fit_in(self, item: str) -> bool:
        """Whether it may be about tensors of an item that has none yet."""
        return self._items.match(item) is not None


class Precision:
    """The rules of one manager.

    Args:
        asked: a name of a dtype for all tensors, or such names by pattern, of which the first that fits counts; what
            none fits is stored as it is. ``None`` for nothing.
        by_item: names of dtypes for all tensors of an item, by its name; these go before ``asked``. That the item has
            tensors nobody promised, so nobody is told of one that has none.

    Raises:
        Incompatible: it names an unknown dtype, or is something else.
    """

    def __init__(
        self, asked: str | Mapping[str, str] | None = None, by_item: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._is_for_all = isinstance(asked, str)
        given = {"*": asked} if isinstance(asked, str) else {} if asked is None else asked
        if not isinstance(given, Mapping):
            raise Incompatible(f"save_dtype is the name of a dtype, or such names by pattern, not {asked!r:.80}")
        self._by_item = {item: _known(item, name) for item, name in by_item.items()}
        self._rules = [_Rule(pattern, _known(pattern, name)) for pattern, name in given.items()]
        self._found: dict[str, _Rule | None] = {}
        self._save_count = 0
        self._is_told = self._is_for_all or not given

    def mark(self, states: Mapping[str, FlatState]) -> None:
        """Say of each tensor what it is to be stored as. The first saves tell of rules that are about nothing.

        A tensor that several names share is stored in the most precise dtype that any of them asks for.

        Cost: 10 ms for the first save of 20,000 tensors, a fifth of that for the next ones.
        """
        if not self._rules and not self._by_item:
            return
        marked: set[TensorSource] = set()
        for item, path, source in _tensors(states):
            asked = self._by_item.get(item) or self._asked_by_rule(path)
            cast = _UNCAST if asked is None else _cast(source, asked)
            if source not in marked or _width(source, cast) > _width(source, (source.stored, source.by_row)):
                source.stored, source.by_row = cast
            marked.add(source)
        self._save_count += 1
        if not self._is_told:
            self._tell(states)

    def _asked_by_rule(self, path: str) -> str | None:
        if path not in self._found:
            found = next((rule for rule in self._rules if rule.fits(path)), None)
            if found is not None:
                found.is_met = True
            self._found[path] = found
        rule = self._found[path]
        return None if rule is None else rule.asked

    def _tell(self, states: Mapping[str, FlatState]) -> None:
        """Warn of rules that met nothing, once. An optimizer that has not stepped has no tensors: it is waited for."""
        idle = [rule for rule in self._rules if not rule.is_met]
        empty = {item for item, state in states.items() if not any(_tensors({item: state}))}
        if self._save_count == 1 and any(rule.may_fit_in(item) for rule in idle for item in empty):
            return
        self._is_told = True
        if idle:
            named = ", ".join(repr(rule.pattern) for rule in idle)
            example = next((path.replace("/", "::", 1) for _, path, _ in _tensors(states)), "")
            _log.warning(
                "save_dtype: no tensor falls to %s: nothing is called so, or rules before it take it all; names look"
                " like %r",
                named,
                example,
            )


_UNCAST: Final[tuple[str | None, bool]] = (None, False)


def _known(pattern: object, name: object) -> str:
    known = _SYNONYMS.get(name, name) if isinstance(name, str) else None
    if not isinstance(pattern, str) or known not in DTYPES:
        where = "" if pattern == "*" else f" for {pattern!r}"
        there_are = ", ".join(map(repr, DTYPES))
        raise Incompatible(f"save_dtype: no dtype {name!r}{where}; there are {there_are}", dtype=name)
    return known


def _tensors(states: Mapping[str, FlatState]) -> Iterator[tuple[str, str, TensorSource]]:
    """All tensors: the item, item and name with a slash between, the tensor."""
    for item, state in states.items():
        for name, entry in state.entries.items():
            if type(entry) is FlatTensor:
                yield item, f"{item}/{name}" if name else item, entry.source


def _cast(source: TensorSource, asked: str) -> tuple[str | None, bool]:
    """What a tensor is stored as. One element alone is a counter more often than not, and costs nothing."""
    stored = DTYPES[asked]
    element_count = source.size_bytes // dtype(source.dtype).item_bytes
    if stored is None or element_count < 2 or not is_narrower(source.dtype, stored):
        return _UNCAST
    return stored, asked.endswith(_ROWS) and has_row_scales(source.shape)


def _width(source: TensorSource, cast: tuple[str | None, bool]) -> tuple[int, str, bool]:
    """Something to order what a tensor may be stored as by how much it keeps."""
    stored, by_row = cast
    return dtype(stored or source.dtype).item_bytes, _FINENESS.get(stored or "", ""), by_row


_FINENESS: Final = {"bfloat16": "1", "float16": "2", "float8_e5m2": "1", "float8_e4m3fn": "2"}
"""Of dtypes of equal width, those with more bits of mantissa come last."""
