"""Storing what is there in another way: fewer packs, tips that load fast, or fewer bytes. Ids never change.

``lines`` finds what stood in the same place of a tensor, ``forest`` and ``planning`` choose what is stored against
what, ``ordering`` says what should lie beside what; ``store.upkeep.rewriting`` does it, pack by pack, so that it can be
stopped at any time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, get_args

from ..batches import batches, fitting
from ..errors import Corrupt, Incompatible
from ..forks import loading
from ..format.objects import Kind
from ..ids import CommitId, PackId
from ..index import CommitRow
from ..limits import HOLLOW_PACK_RATIO, REWRITE_PACK_BYTES, SMALL_PACK_BYTES, SWEEP_KEYS
from ..reading.packs import PackGone
from ..repository import Repository
from ..upkeep.gclock import collecting
from ..upkeep.rewriting import Replaced, Rewriter
from ..upkeep.roots import Roots, live_commits, read_roots
from .lines import Lines
from .ordering import Plan, ranks

__all__ = ["Goal", "Progress", "Repacked", "repack"]

Goal: TypeAlias = Literal["consolidate", "restore", "size"]

Progress = Callable[[str, int, int], None]
"""Told what is done, ``"comparing"`` or ``"rewriting"``, how far it is, and how far it goes."""


@dataclass(slots=True)
class Repacked:
    """What a repack did, or would do.

    Attributes:
        goal: what for.
        replaced_count: packs that are gone, or would be.
        made_count: packs in their stead; 0 if nothing was done.
        encoded_count: chunks that were encoded anew, or would be.
        before_bytes: all packs before.
        after_bytes: all packs after, or what sampling tells.
        left: packs that had to stay, in hex, and why.
        damaged: objects that had to stay, in hex, and what is wrong with them.
    """

    goal: Goal
    replaced_count: int = 0
    made_count: int = 0
    encoded_count: int = 0
    before_bytes: int = 0
    after_bytes: int = 0
    left: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)


def repack(
    repository: Repository, goal: Goal = "consolidate", *, progress: Progress | None = None, dry_run: bool = False
) -> Repacked:
    """Store what is there in another way. It may be stopped at any time; what is done by then counts.

    Args:
        repository: the store.
        goal: ``"consolidate"`` puts small packs together, and writes anew those that are hollow. ``"restore"`` stores
            what tips of branches and tags reach by itself, so that it loads as fast as can be. ``"size"`` chooses
            among all commits what chunks are best stored against, and allows for long chains.
        progress: told how far it is.
        dry_run: tell what would be done, and do nothing.

    Raises:
        Busy: gc or repack is at work already; not with ``dry_run``, which takes no part in it.
        ReadOnly: the store cannot be written from here; not with ``dry_run`` either.
        Incompatible: there is no such goal, or the store needs features that this version lacks.
        Corrupt: a root is damaged: what it keeps is not known.
        OSError: the disk is full or failed. Whatever was there is there.

    Cost: temporary space of ``REWRITE_PACK_BYTES``, or of the largest pack; for ``"size"`` reads and decodes everything
    twice.
    """
    if goal not in get_args(Goal):
        raise Incompatible(f"no goal of a repack: {goal!r}; there are {', '.join(get_args(Goal))}")
    once = _Repack(repository, goal, progress or _nobody_watches)
    if dry_run:
        return once.run(dry_run=True)
    with collecting(repository):
        return once.run(dry_run=False)


class _Pack(NamedTuple):
    """A pack that may be replaced, and how much of it the index places."""

    id: PackId
    size_bytes: int
    placed_bytes: int
    overhead_bytes: int
    is_touched: bool

    @property
    def is_wanting(self) -> bool:
        return self.is_hollow or self.size_bytes < SMALL_PACK_BYTES

    @property
    def is_hollow(self) -> bool:
        return self.placed_bytes < HOLLOW_PACK_RATIO * (self.size_bytes - self.overhead_bytes)


class _Repack:
    def __init__(self, repository: Repository, goal: Goal, progress: Progress) -> None:
        self._repo = repository
        self._goal = goal
        self._progress = progress
        self._done = Repacked(goal)

    def run(self, *, dry_run: bool) -> Repacked:
        roots = read_roots(self._repo)
        rows = list(live_commits(self._repo.lookup, roots.commits))
        plan = self._plan(roots, rows)
        found = fitting(self._packs(roots, plan), lambda pack: pack.placed_bytes, REWRITE_PACK_BYTES)
        groups = [group for group in found if _pays(group)]
        done = self._done
        done.encoded_count = len(plan.bases)
        done.before_bytes = self._repo.packs.total_bytes()
        if dry_run:
            going = [pack for group in groups for pack in group]
            done.replaced_count = len(going)
            freed_bytes = sum(pack.size_bytes - pack.placed_bytes for pack in going) + plan.saved_bytes
            done.after_bytes = done.before_bytes - freed_bytes
            return done
        self._rewrite(groups, plan, [*_tips(roots), *(row.id for row in rows)])
        done.after_bytes = self._repo.packs.total_bytes()
        return done

    # --- what is to be done -----------------------------------------------------------------------------------------

    def _plan(self, roots: Roots, rows: Sequence[CommitRow]) -> Plan:
        if self._goal == "restore":
            return self._plan_restore(_tips(roots))
        if self._goal == "consolidate":
            return Plan()
        lines = Lines(self._repo).of(rows[::-1], _tips(roots))
        told, total = 0, sum(len(line.chunks) for line in lines)

        def advance(count: int) -> None:
            nonlocal told
            told += count
            self._progress("comparing", told, total)

        with loading:  # comparing needs NumPy, which `import moonclip` does without
            from .planning import plan_size
        return plan_size(self._repo, lines, advance)

    def _plan_restore(self, tips: Sequence[CommitId]) -> Plan:
        plan = Plan()
        reached = list(ranks(self._repo, tips, None))
        for batch in batches(reached, SWEEP_KEYS):
            for object_id, places in self._repo.index.places_of_each(batch).items():
                if places and places[0].kind == Kind.CHUNK and places[0].base is not None:
                    plan.bases[object_id] = None
        return plan

    def _packs(self, roots: Roots, plan: Plan) -> list[_Pack]:
        """Packs to be replaced, by arrival; for size the last first, as deltas lie behind their bases."""
        unused = [pack for pack in self._repo.index.packs() if pack not in roots.packs]
        found = [pack for each in unused if (pack := self._look(each, plan)) is not None]
        chosen = [pack for pack in found if pack.is_touched or (self._goal != "restore" and pack.is_wanting)]
        return chosen[::-1] if self._goal == "size" else chosen

    def _look(self, pack: PackId, plan: Plan) -> _Pack | None:
        try:
            entries, size_bytes = self._repo.packs.table(pack).entries, self._repo.packs.size_bytes(pack)
        except PackGone:
            return None
        except (Corrupt, Incompatible) as error:
            self._done.left[pack.hex()] = str(error)
            return None
        placed_bytes = 0
        for batch in batches(entries, SWEEP_KEYS):
            places = self._repo.index.places_of_each([entry.id for entry in batch])
            placed_bytes += sum(
                entry.stored_bytes for entry in batch if any(place.pack == pack for place in places[entry.id])
            )
        overhead_bytes = size_bytes - sum(entry.stored_bytes for entry in entries)
        is_touched = any(entry.id in plan.bases for entry in entries)
        return _Pack(pack, size_bytes, placed_bytes, overhead_bytes, is_touched)

    # --- doing it ---------------------------------------------------------------------------------------------------

    def _rewrite(self, groups: Sequence[Sequence[_Pack]], plan: Plan, commits: Sequence[CommitId]) -> None:
        if not groups:
            return
        order = ranks(self._repo, commits, plan.bases)
        told, total = 0, sum(pack.size_bytes for group in groups for pack in group)

        def advance(done_bytes: int) -> None:
            nonlocal told
            told += done_bytes
            self._progress("rewriting", told, total)

        rewriter = Rewriter(self._repo, advance)
        replaced = Replaced()
        for group in groups:
            packs = [pack.id for pack in group]
            key = lambda entry: order.get(entry.id, len(order))  # noqa: E731 - what is in no commit comes last
            replaced.add(rewriter.replace(packs, keep=order, bases=plan.bases, order=key))
        while rewriter.is_stuck and (finished := rewriter.finish()).removed:
            replaced.add(finished)
        self._tell(replaced)

    def _tell(self, replaced: Replaced) -> None:
        done = self._done
        done.replaced_count, done.made_count = len(replaced.removed), len(replaced.made)
        done.left |= {pack.hex(): why for pack, why in replaced.left.items()}
        done.damaged |= {object_id.hex(): why for object_id, why in replaced.damaged.items()}


def _tips(roots: Roots) -> list[CommitId]:
    return list(dict.fromkeys(roots.refs.values()))


def _pays(group: Sequence[_Pack]) -> bool:
    """Whether packs are worth replacing together: not one alone that is but small, which would come out as it was."""
    return len(group) > 1 or any(pack.is_touched or pack.is_hollow for pack in group)


def _nobody_watches(_what: str, _done: int, _total: int) -> None:
    """Nobody asked to be told."""
