"""What a commit comes after: its parent, as far as that can be read and has to be here."""

import logging
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from ..errors import Corrupt, NotFound
from ..format.objects import Commit
from ..ids import TreeId
from ..reading.closure import trees_below
from ..reading.lookup import Index
from ..reading.reader import ObjectReader
from ..upkeep.absences import Absences, expected_items

if TYPE_CHECKING:
    from .saver import SaveRequest

_log = logging.getLogger(__name__)


class Line:
    """The line that a commit continues.

    Args:
        request: what is to be committed.
        index: what is stored.
        absences: what may be missing.
        reader: reads the parent.
    """

    def __init__(self, request: "SaveRequest", index: Index, absences: Absences, reader: ObjectReader) -> None:
        self._request = request
        self._index = index
        self._absences = absences
        self._reader = reader

    @cached_property
    def parent(self) -> Commit | None:
        """The parent; ``None`` also if it is damaged: what was saved earlier must not keep a run from saving.

        Raises:
            NotFound: there is no such commit.
        """
        previous = self._request.previous
        try:
            return self._reader.commit(previous) if previous else None
        except Corrupt as error:
            _log.warning("the parent of this save is damaged: %s", error)
            return None

    @property
    def expected(self) -> Mapping[str, TreeId]:
        """The parent's items that have to be here, as absence records say now."""
        return {} if self.parent is None else expected_items(self.parent, self._absences, self._request.previous)

    @property
    def ordinal(self) -> int:
        """Counted here while a run saves: arrivals from several runs in turn would fall into step with each other.

        Else how many commits had arrived when the parent did.
        """
        previous, last = self._request.previous, self._request.last
        if last is not None:
            return last.ordinal + 1
        row = self._index.commit(previous) if previous else None
        return row.sequence + 1 if row else 0

    @property
    def is_second(self) -> bool:
        """Whether the parent is the first of its line, a fine-tune's base say, so that no delta chain can be long."""
        return self.parent is not None and not self.parent.parents

    def closed_trees(self) -> Collection[TreeId]:
        """Tree objects of the parent that have to be here; none if one of them cannot be read."""
        expected, last = self.expected, self._request.last
        is_whole = self.parent is not None and len(expected) == len(self.parent.items)
        if is_whole and last is not None and last.commit == self._request.previous:
            return last.trees
        try:
            return set(trees_below(expected.values(), self._reader.tree_node))
        except (NotFound, Corrupt) as error:
            _log.warning("the parent of this save is damaged: %s", error)
            return set()
