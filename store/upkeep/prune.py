"""Dropping the content of commits, or items of them: what may go, and the records that say it went.

Only commits on the first-parent lines of branches are dropped. Spared, whatever anybody asks, are

- what any ref points at (so the tip of every branch, HEAD's among them), what is pinned, what living writers name;
- what a line of a reflog names that has not expired, if its ref does not reach it any more: a branch that was reset by
  mistake can be put back. That a reflog names a commit protects nothing by itself: it names every commit that was ever
  saved on its branch, and a policy would then drop none for 90 days. HEAD's reflog counts likewise, as if all branches
  were HEAD: to switch is not to give up.

Nothing but absence records is written; gc removes what nobody may expect any more. It keeps the bases of deltas that
stay, so everything that is not dropped can be read as before. The commits' own objects stay: lineage is whole.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from ..disk.ballastroom import Room
from ..errors import Corrupt, NotFound
from ..format.values import Plain
from ..history.walks import first_parents, reached_among
from ..ids import CommitId, short
from ..index import CommitRow
from ..layout import check_format
from ..naming.refnames import HEAD, branch_name
from ..repository import Repository
from .absences import WHOLE, Absence, Why
from .retention import Keep, Line, dropped, older
from .roots import Roots, read_roots

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Drop:
    """Something that is dropped.

    Attributes:
        row: of which commit.
        items: these items, by name; ``None`` if all.
        freed_bytes: what it takes in packs that nothing else needs; ``None`` if nobody has asked.
    """

    row: CommitRow
    items: tuple[str, ...] | None = None
    freed_bytes: int | None = None

    def records(self, time_ns: int) -> Iterable[Absence]:
        """What permits it to be gone."""
        items = [None] if self.items is None else list(self.items)
        return (Absence.of(self.row.id, item, Why.PRUNED, time_ns) for item in items)


class Pruner:
    """Prunes one store. Remembers history, which does not change, so that looking again is cheap. Not thread-safe.

    Args:
        repository: the store.
    """

    def __init__(self, repository: Repository) -> None:
        self._repo = repository
        self._rows: dict[CommitId, CommitRow | None] = {}
        self._metadata: dict[tuple[CommitId, str], Plain] = {}

    def by_policy(self, keep: Keep, branches: Collection[str] = ()) -> list[Drop]:
        """Commits that a policy would have dropped, the earliest arrival first. Changes nothing.

        Args:
            keep: the policy.
            branches: short names of the branches it is for; what others have stays. All if empty.

        Raises:
            NotFound: there is no such branch.
            Corrupt: what has to be spared is not known, since a ref, reflog, lease or the pins are damaged.
        """
        now_ns = time.time_ns()
        rows = self._free(lambda lines: dropped(lines, keep, self._said, now_ns), branches)
        return [Drop(row) for row in rows]

    def items(self, items: Sequence[str], than: int | timedelta, branches: Collection[str] = ()) -> list[Drop]:
        """Items of commits older than something, the earliest arrival first. Changes nothing.

        Args:
            items: their names.
            than: a span of time, or so many of each branch's newest commits keep theirs.
            branches: as for :meth:`by_policy`.

        Raises:
            NotFound: there is no such branch, or no commit old enough ever had such an item.
            Corrupt: as for :meth:`by_policy`.
        """
        now_ns = time.time_ns()
        rows = self._free(lambda lines: older(lines, than, now_ns), branches)
        held = {row.id: self._repo.commit(row.id).items for row in rows}
        known = {item for names in held.values() for item in names}
        unknown = [item for item in items if item not in known]
        if unknown and rows:
            raise NotFound(f"no commit so old has an item {unknown[0]!r}; they have {', '.join(sorted(known))}")
        absent = self._repo.absences
        going = ((row, [one for one in items if one in held[row.id] and not absent.lacks(row.id, one)]) for row in rows)
        return [Drop(row, tuple(names)) for row, names in going if names]

    def apply(self, drops: Iterable[Drop]) -> list[Drop]:
        """Write what permits these to be gone, but for what has come to be spared meanwhile.

        Returns:
            What was dropped.

        Raises:
            ReadOnly: the store cannot be written from here.
            Incompatible: it has something that this version must not collect.
            Corrupt: as for :meth:`by_policy`.
            OSError: nothing was dropped.
        """
        layout, files = self._repo.layout, self._repo.files
        self._repo.require_writable()
        check_format(layout.root, files.read_bytes(layout.format), "gc")
        wanted = list(drops)
        if not wanted:
            return []
        return Room(self._repo).make(lambda: self._record(wanted))  # what is pruned on a full disk, gc can remove

    # --- how --------------------------------------------------------------------------------------------------------

    def commit(self, commit_id: CommitId, /) -> CommitRow | None:
        """The row of a commit, as walks over history ask for it."""
        if commit_id not in self._rows:
            self._rows[commit_id] = self._repo.lookup.commit(commit_id)
        return self._rows[commit_id]

    def _record(self, wanted: Sequence[Drop]) -> list[Drop]:
        with self._repo.absences.adding() as add:  # from here on no commit gets a name
            spared = self._spared(read_roots(self._repo), {drop.row.id for drop in wanted})
            going = [drop for drop in wanted if drop.row.id not in spared]
            now_ns = time.time_ns()
            add(record for drop in going for record in drop.records(now_ns))
        return going

    def _free(self, choose: Callable[[Sequence[Line]], list[CommitRow]], branches: Collection[str]) -> list[CommitRow]:
        """What is chosen of lines, less what is spared and what lies on other branches."""
        roots = read_roots(self._repo)
        tips = roots.branches
        wanted = {branch_name(branch) for branch in branches} or set(tips)
        for name in wanted - tips.keys():
            raise NotFound(f"no {name}; `moonclip branch` lists those there are", ref=name)
        absent = self._repo.absences.all()
        gone = {commit for commit, records in absent.items() if any(record.item == WHOLE for record in records)}
        lines = {name: [row for row in first_parents(self, tip) if row.id not in gone] for name, tip in tips.items()}
        chosen = choose([lines[name] for name in wanted])
        spared = self._spared(roots, {row.id for row in chosen})
        spared.update(row.id for name, line in lines.items() if name not in wanted for row in line)
        return [row for row in chosen if row.id not in spared]

    def _spared(self, roots: Roots, among: set[CommitId]) -> set[CommitId]:
        """What of some commits nobody may drop, and more. Walks no further back than the oldest of them."""
        spared = {*roots.leased, *roots.refs.values(), *roots.pins}
        branches = roots.branches.values()
        for name, logged in roots.logged.items():
            tips = branches if name == HEAD else [commit for ref, commit in roots.refs.items() if ref == name]
            spared |= (logged & among) - reached_among(self, tips, logged & among)
        return spared

    def _said(self, commit: CommitId, key: str) -> Plain:
        asked = (commit, key)
        if asked not in self._metadata:
            try:
                self._metadata[asked] = self._repo.commit(commit).metadata.get(key)
            except Corrupt as error:  # nobody can load it either
                _log.warning("commit %s is not looked at for the best: %s", short(commit), error)
                self._metadata[asked] = None
        return self._metadata[asked]
