"""Storing what is there in another way: fewer packs, tips that load fast, or fewer bytes. Ids never change.

``hollow`` tells which packs are worth replacing. ``lines`` finds what stood in the same place of a tensor, ``released``
what is kept as a base alone, ``forest`` and ``planning`` choose what is stored against what, ``ordering`` says what
should lie beside what; ``store.upkeep.rewriting`` does it, pack by pack, so that it can be stopped at any time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from ..batches import batches
from ..errors import Corrupt, Incompatible
from ..forks import loading
from ..format.objects import Kind
from ..ids import CommitId, PackId
from ..index import CommitRow, Place
from ..limits import SWEEP_KEYS
from ..reading.packs import PackGone
from ..repository import Repository
from ..upkeep.gclock import collecting
from ..upkeep.rewriting import Replaced, Rewriter
from ..upkeep.roots import Roots, live_commits, read_roots
from .hollow import Filling, groups, pack_bytes
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
        released_bytes: about what bases take that commits which are gone had left, and that nothing is stored against
            any more. They are there until gc removes them.
        before_bytes: all packs before.
        after_bytes: all packs after, or what sampling tells.
        left: packs that had to stay, in hex, and why.
        damaged: objects that had to stay, in hex, and what is wrong with them.
    """

    goal: Goal
    replaced_count: int = 0
    made_count: int = 0
    encoded_count: int = 0
    released_bytes: int = 0
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
            among all commits what chunks are best stored against, and allows for long chains; it does without bases of
            commits that are gone where that takes less.
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
        going = list(groups(self._packs(roots, plan)))
        done = self._done
        done.encoded_count, done.released_bytes = len(plan.bases), plan.released_bytes
        done.before_bytes = self._repo.packs.total_bytes()
        if dry_run:
            packs = [pack for group in going for pack in group]
            done.replaced_count = len(packs)
            done.after_bytes = done.before_bytes - sum(pack.spare_bytes for pack in packs) - plan.saved_bytes
            return done
        self._rewrite(going, plan, [*_tips(roots), *(row.id for row in rows)])
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

    def _packs(self, roots: Roots, plan: Plan) -> list[Filling]:
        """Packs to be replaced, by arrival; for size the last first, as deltas lie behind their bases."""
        unused = [pack for pack in self._repo.index.packs() if pack not in roots.packs]
        found = [pack for each in unused if (pack := self._look(each, plan)) is not None]
        chosen = [pack for pack in found if pack.is_touched or (self._goal != "restore" and pack.is_wanting)]
        return chosen[::-1] if self._goal == "size" else chosen

    def _look(self, pack: PackId, plan: Plan) -> Filling | None:
        try:
            entries, size_bytes = self._repo.packs.table(pack).entries, self._repo.packs.size_bytes(pack)
        except PackGone:
            return None
        except (Corrupt, Incompatible) as error:
            self._done.left[pack.hex()] = str(error)
            return None
        placed_count = placed_bytes = 0
        for batch in batches(entries, SWEEP_KEYS):
            places = self._repo.index.places_of_each([entry.id for entry in batch])
            # The copy that is read counts: others go, as long as it is intact.
            placed = [entry.stored_bytes for entry in batch if _pack_of(places[entry.id]) == pack]
            placed_count += len(placed)
            placed_bytes += sum(placed)
        is_touched = any(entry.id in plan.bases for entry in entries)
        return Filling(pack, size_bytes, pack_bytes(placed_bytes, placed_count), is_touched)

    # --- doing it ---------------------------------------------------------------------------------------------------

    def _rewrite(self, going: Sequence[Sequence[Filling]], plan: Plan, commits: Sequence[CommitId]) -> None:
        if not going:
            return
        order = ranks(self._repo, commits, plan.bases)
        told, total = 0, sum(pack.size_bytes for group in going for pack in group)

        def advance(done_bytes: int) -> None:
            nonlocal told
            told += done_bytes
            self._progress("rewriting", told, total)

        rewriter = Rewriter(self._repo, advance)
        replaced = Replaced()
        for group in going:
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


def _pack_of(places: Sequence[Place]) -> PackId | None:
    """The pack of the copy that is read, if there is a good one."""
    return places[0].pack if places else None


def _nobody_watches(_what: str, _done: int, _total: int) -> None:
    """Nobody asked to be told."""
