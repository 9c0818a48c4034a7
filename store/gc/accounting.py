"""What packs hold beyond what commits are made of, by what gives it back."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from ..batches import batches
from ..ids import ObjectId
from ..repository import Repository
from . import packing
from .foretelling import foretell
from .marking import LOOKUP_BATCH, Marks
from .planning import filling, plan, spare_after
from .survey import Survey, Tally
from .watching import Watch


@dataclass(frozen=True, slots=True)
class Held:
    """What packs hold beside what commits are made of, in bytes unless named a count.

    Attributes:
        pack_count: packs, and
        pack_bytes: their length.
        base_bytes: what is there since deltas need it, and is in no commit any more.
        gc_bytes: what gc gives back, and
        repack_bytes: what a repack that puts packs together gives back after that.
        rest_bytes: what is needed no more and stays: it lies in packs that hold little of it, or that are being made.
    """

    pack_count: int
    pack_bytes: int
    base_bytes: int
    gc_bytes: int
    repack_bytes: int
    rest_bytes: int


def account(repository: Repository, used: Sequence[Container[ObjectId]]) -> Held:
    """Look what gc and repack would find.

    Args:
        repository: the store; nothing is changed.
        used: objects that commits are made of.

    Raises:
        NotFound: a commit or tree is missing.
        Corrupt: one is damaged, or a root is.

    Cost: 4 µs an object, 100 bytes of memory for each.
    """
    there = packing.present(repository)
    watch = Watch(repository)
    roots = watch.begin()
    marks = Marks(repository, watch.parents)
    marks.add(roots)
    survey = Survey(marks)
    survey.take(repository, lambda: None)
    sizes = packing.sizes_of(repository, there.indexed | there.strays | there.leased)
    free = {pack: sizes[pack] for pack in (there.indexed - watch.leased_packs()) & sizes.keys()}
    planned = plan(survey.packs, free)
    emptied = sum(sizes.get(pack, 0) for pack in (*planned.empty, *there.strays))
    compacted = foretell(repository, planned.sparse, marks)
    gone = {*planned.empty, *planned.moved, *there.strays}
    spare = {pack: filling(pack, size, survey.packs.get(pack, Tally(0))).spare_bytes for pack, size in sizes.items()}
    repack_bytes = spare_after(planned, survey.packs, free, repository.index.packs())
    return Held(
        pack_count=len(sizes),
        pack_bytes=sum(sizes.values()),
        base_bytes=sum(_base_sizes(repository, marks, used)),
        gc_bytes=emptied + compacted.removed_bytes - compacted.made_bytes,
        repack_bytes=repack_bytes,
        rest_bytes=sum(each for pack, each in spare.items() if pack not in gone) - repack_bytes,
    )


def _base_sizes(repository: Repository, marks: Marks, used: Sequence[Container[ObjectId]]) -> Iterator[int]:
    """What each object takes that has to stay although commits are not made of it."""
    bases = (each for each in marks.objects if not any(each in part for part in used))
    for batch in batches(bases, LOOKUP_BATCH):
        yield from (places[0].stored_bytes for places in repository.index.places_of_each(batch).values() if places)
