"""Which items of which commits a fetch wants, and what absence records say of the others. Pure.

What was pruned here does not come back by itself, whatever a remote has.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...format.objects import Commit
from ...ids import CommitId, TreeId
from ...upkeep.absences import WHOLE, Absence, Why, first_for


@dataclass(frozen=True, slots=True)
class Wish:
    """What a fetch wants.

    Attributes:
        origin: name of the remote, which records name.
        items: names of the items to fetch; all if ``None``, none if empty.
        within: commits near enough to be fetched; all if ``None``.
        named: commits of which that is wanted also which was pruned here.
        tips: commits that a ref is about to name: of these no record may say that all is absent.
        time_ns: what new records bear.
    """

    origin: str
    items: frozenset[str] | None = None
    within: Collection[CommitId] | None = None
    named: frozenset[CommitId] = frozenset()
    tips: frozenset[CommitId] = frozenset()
    time_ns: int = 0

    def wants(self, commit: CommitId, item: str) -> bool:
        """Whether an item of a commit is wanted, if it was not pruned."""
        is_near = self.within is None or commit in self.within
        return is_near and (self.items is None or item in self.items)


@dataclass(slots=True)
class Content:
    """What of one commit is to be here.

    Attributes:
        trees: items that are to be whole, and their trees.
        records: what may be missing then.
    """

    trees: dict[str, TreeId] = field(default_factory=dict)
    records: list[Absence] = field(default_factory=list)

    def give_up(self, commit: CommitId, item: str, record: Absence) -> None:
        """Do without an item, since another's record permits that.

        Args:
            commit: the commit.
            item: which of its items.
            record: of the remote, or of another store.
        """
        self.trees.pop(item, None)
        self.records.append(Absence.of(commit, item, record.why, record.time_ns))


def content_of(commit_id: CommitId, commit: Commit, known: Sequence[Absence], wish: Wish, *, is_new: bool) -> Content:
    """What of a commit is to be here.

    Args:
        commit_id: the commit's id.
        commit: the commit.
        known: its records.
        wish: what is wanted.
        is_new: whether it is new here: else what no record speaks of is here.
    """
    content = Content()
    for item, tree in commit.items.items():
        record = first_for(known, item)
        is_lost = record is not None and record.why is Why.PRUNED and commit_id not in wish.named
        if not is_lost and (wish.wants(commit_id, item) or (record is None and not is_new)):
            content.trees[item] = tree
        elif record is None:
            is_far = wish.within is not None and commit_id not in wish.within
            why = Why.SHALLOW if is_far else Why.PARTIAL
            content.records.append(Absence.of(commit_id, item, why, wish.time_ns, wish.origin))
        else:
            content.records.append(_of_item(record, item, wish))
    return _summed_up(commit_id, content, known, wish)


def changes(contents: Mapping[CommitId, Content], known: Mapping[CommitId, Sequence[Absence]]) -> set[CommitId]:
    """Commits whose records differ from those they have."""
    return {
        commit_id
        for commit_id, content in contents.items()
        if _said(content.records) != _said(known.get(commit_id, ()))
    }


def _of_item(record: Absence, item: str, wish: Wish) -> Absence:
    """A record for one item, made of one that may be for all. What was collected can be fetched now."""
    if record.why is Why.COLLECTED:
        return Absence.of(record.commit, item, Why.PARTIAL, wish.time_ns, wish.origin)
    return Absence.of(record.commit, item, record.why, record.time_ns, record.origin)


def _summed_up(commit_id: CommitId, content: Content, known: Sequence[Absence], wish: Wish) -> Content:
    """The same with one record for all items, where all are absent for one reason and that may be said."""
    whys = {record.why for record in content.records}
    if content.trees or commit_id in wish.tips or len(whys) != 1:
        return content
    whole = next((record for record in known if record.item == WHOLE and record.why in whys), None)
    first = content.records[0]
    if whole is not None:
        content.records = [whole]
    elif first.why is Why.SHALLOW:
        content.records = [Absence.of(commit_id, None, Why.SHALLOW, wish.time_ns, wish.origin)]
    return content


def _said(records: Iterable[Absence]) -> set[tuple[str, Why]]:
    return {(record.item, record.why) for record in records}
