"""One item in two commits."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from ..errors import telling
from ..format.entries import Entry, TensorEntry, ValueEntry
from ..format.trees import Tree
from ..repository import Repository
from .differences import Form, ItemDiff, TensorDiff, ValueDiff
from .matching import Match, changed_values, is_same_tensor, matches
from .segments import Pair

Growth = Callable[[Iterable[Entry]], int]
"""What entries take that the first commit does not hold, each chunk counted once, and what of them is inline.

May raise NotFound or Corrupt, if a chunk has no good copy.
"""


class ItemComparison:
    """Compares an item, name by name.

    Args:
        repository: the store.
        name: the item.
        growth: tells what is new in the second commit.

    Attributes:
        pairs: changed tensors of one shape, by name: those that can be measured.
        grown: entries that the second commit may hold something new for.
    """

    def __init__(self, repository: Repository, name: str, growth: Growth) -> None:
        self.pairs: dict[str, Pair] = {}
        self.grown: list[Entry] = []
        self._repository = repository
        self._name = name
        self._growth = growth
        self._tensors: list[TensorDiff] = []
        self._values: list[ValueDiff] = []
        self._same_tensor_count = 0
        self._same_value_count = 0

    def compare(self, before: Tree | None, after: Tree | None, is_wanted: Callable[[str], bool]) -> int:
        """Look at all names that are wanted, and return how many there are.

        Raises:
            NotFound: a chunk is missing; the message names the tensor or value.
            Corrupt: something is damaged; likewise.
        """
        count = 0
        for match in matches(before, after, is_wanted):
            self._compare_tensors(match)
            self._compare_values(match)
            count += 1
        return count

    def told(self, found: ItemDiff) -> ItemDiff:
        """``found`` with all that differs."""
        return replace(
            found,
            tensors=tuple(self._tensors),
            values=tuple(self._values),
            identical_tensor_count=self._same_tensor_count,
            identical_value_count=self._same_value_count,
            stored_bytes=self._growth(self.grown),
        )

    def _compare_tensors(self, match: Match) -> None:
        before = match.before if isinstance(match.before, TensorEntry) else None
        after = match.after if isinstance(match.after, TensorEntry) else None
        if before is None and after is None:
            return
        if before is not None and after is not None:
            pair = Pair(self._where(match), before, after)
            if is_same_tensor(self._repository, pair):
                self._same_tensor_count += 1
                self._note_growth(before, after)
                return
            if before.shape == after.shape:
                self.pairs[match.name] = pair
        stored_bytes = 0 if after is None else self._stored_bytes(match, after)
        self._tensors.append(TensorDiff(match.name, _form(before), _form(after), stored_bytes))

    def _compare_values(self, match: Match) -> None:
        changes = changed_values(self._repository, self._where(match), match)
        self._values += changes
        if isinstance(match.after, ValueEntry):
            if changes:
                self.grown.append(match.after)
            else:
                self._same_value_count += 1

    def _stored_bytes(self, match: Match, after: TensorEntry) -> int:
        self.grown.append(after)
        with telling(self._where(match)):
            return self._growth([after])

    def _note_growth(self, before: TensorEntry, after: TensorEntry) -> None:
        """Chunks may be new though their content is not: it was cut in other places."""
        if before.chunks != after.chunks:
            self.grown.append(after)

    def _where(self, match: Match) -> str:
        return f"{self._name}::{match.name}" if match.name else self._name


def _form(entry: TensorEntry | None) -> Form | None:
    return None if entry is None else Form(entry.dtype, entry.shape, entry.size_bytes)
