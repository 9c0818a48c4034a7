"""A rank's part of a save by several: its pieces go into packs of its own, and what it stored into a file.

In this order, each step durable before the next: a lease is taken; packs get their names; the part is handed
in; the lease goes. So at any moment packs are named by a living lease, the rank's own or, by way of the part, the
snapshot's.

No index is opened: a rank may run on a host that cannot, and there may be a thousand.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ..disk.files import Files
from ..errors import Incompatible
from ..format.entries import ContainerEntry, ValueEntry, check_name
from ..ids import ObjectId, TreeId
from ..layout import Layout, check_format, not_a_store
from ..parallel import Threads, default_thread_count
from ..reading.packs import PackStore
from ..reading.reader import ObjectReader
from .bases import Bases
from .descriptions import Description
from .drafts import Draft, draft
from .ingest import Counts, Ingest
from .inputs import TensorInput
from .leases import acquire_lease, is_held
from .packseries import PackSeries
from .partfiles import gone, read_description, write_part
from .parts import EntryPart, ItemPart, Part
from .phases import Phases
from .rankbases import RankBases, RankMemory, Remembered
from .rankdrafts import ShardsDraft, shards_draft
from .rankindex import RankIndex
from .rankscales import scales_of_one
from .scales import Scales
from .shards import RankInput, RankItem, ShardsInput, as_shards

_Drafts = Mapping[str, Mapping[str, ShardsDraft | Draft]]


@dataclass(frozen=True, slots=True)
class RankSaved:
    """What became of a rank's part.

    Attributes:
        memory: what the rank's next save can compare with, if this one is committed and as long as the inputs' buffers
            stay unaltered.
        counts: chunks and bytes.
        seconds: where its time went, see ``saver.Saved``.
    """

    memory: RankMemory
    counts: Counts
    seconds: Mapping[str, float]


def save_rank(
    root: str | Path,
    snapshot: str,
    rank: int,
    items: Sequence[RankItem],
    *,
    last: RankMemory | None = None,
    again: bool = False,
    scales: Scales | None = None,
    files: Files | None = None,
    threads: Threads | None = None,
) -> RankSaved:
    """Store a rank's part of a snapshot and hand it in, in place of one that it may have handed in before.

    Args:
        root: the store's directory, as this host sees it.
        snapshot: the snapshot's id.
        rank: which, from 0.
        items: what this rank stores. Tensors may be spread over ranks in any way that tiles them; what is no tensor may
            be given by several ranks, if they give the same.
        last: this rank's last save that was committed. Without it, what the snapshot's parent holds is compared with.
        again: store everything in full, whatever is remembered: ``PartsOutdated`` named this rank.
        scales: of tensors that are cast to floats of one byte, the same on all ranks, see ``rankscales``. If ``None``,
            they are found here, which takes all of each such tensor.
        files: does the I/O.
        threads: encode; some that end with the call if ``None``.

    Raises:
        SnapshotGone: the snapshot is not in the making any more; what was stored is garbage. Whether one that was
            handed in gets published, only the creator can tell.
        Incompatible: an input that cannot be stored, or no such rank.
        NotUnchanged: a box is said to be as it was in ``last``, and is not there.
        StoreNotFound: there is no store.
        Corrupt: what the snapshot's creator wrote is damaged.
        OSError: writing failed. Nothing was handed in.
    """
    files, layout = files or Files(), Layout(Path(root).absolute())
    _require_store(layout, files)
    told = Description.decode(read_description(layout.root, files, snapshot), f"description of snapshot {snapshot}")
    if not is_held(layout.root, files, snapshot):
        raise gone(snapshot)
    if not 0 <= rank < told.world_size:
        raise Incompatible(f"no rank {rank} among {told.world_size}; ranks count from 0", rank=rank)
    with ExitStack() as stack:
        if threads is None:
            threads = Threads(default_thread_count())
            stack.callback(threads.close)
        saver = _RankSaver(files, layout, threads, told, last, again=again)
        return saver.save(snapshot, rank, [_as_shards(item) for item in items], scales)


def _require_store(layout: Layout, files: Files) -> None:
    try:
        features = files.read_bytes(layout.format)
    except (FileNotFoundError, NotADirectoryError):
        raise not_a_store(layout.root) from None
    check_format(layout.root, features, "write")


def _as_shards(item: RankItem) -> RankItem:
    entries = {name: as_shards(each) if isinstance(each, TensorInput) else each for name, each in item.entries.items()}
    return item._replace(entries=entries)


class _RankSaver:
    """Stores one part."""

    def __init__(
        self, files: Files, layout: Layout, threads: Threads, told: Description, last: RankMemory | None, *, again: bool
    ) -> None:
        self._files = files
        self._layout = layout
        self._threads = threads
        self._phases = Phases()
        self._ordinal = told.ordinal if last is None else last.ordinal + 1
        self._turn = None if told.is_second else self._ordinal
        known = told.excerpt if last is None else last.excerpt
        self._index = RankIndex({} if again else known)
        self._packs = PackStore(files, layout.packs)
        reader = ObjectReader(self._index, self._packs)
        self._bases = RankBases(reader, None if again else last, {} if again else told.trees)
        self._no_bases = Bases(reader, {}, {})

    def save(self, snapshot: str, rank: int, items: Sequence[RankItem], scales: Scales | None) -> RankSaved:
        """The steps, in order."""
        if scales is None:
            scales = scales_of_one(items, self._threads, self._phases)
        with self._phases.computing("plan"):
            drafts = self._drafts(items, scales)
        with ExitStack() as stack:
            stack.callback(self._packs.close)
            with self._phases.waiting("lease"):
                lease = stack.enter_context(acquire_lease(self._layout.root, self._files))
            packs = PackSeries(self._files, self._layout.packs, lease.name, lease.add_pack)
            stack.callback(packs.abandon)
            ingest = Ingest(self._index, packs, self._no_bases, self._turn, self._threads, self._phases, _no_trees)
            ingest.store([task for named in drafts.values() for each in named.values() for task in each.tasks])
            with self._phases.waiting("sync"):
                tables = packs.publish()
            parts = {
                item.name: ItemPart({name: _part(each) for name, each in drafts[item.name].items()}, item.ties)
                for item in items
            }
            with self._phases.waiting("part"):
                ids = tuple(table.id for table in tables)
                write_part(self._layout.root, self._files, snapshot, Part(rank, ids, parts))
        needed = [chunk for item in parts.values() for each in item.entries.values() for chunk in _chunks(each)]
        memory = RankMemory(_remembered(drafts), self._index.after(tables, needed), self._ordinal)
        return RankSaved(memory, ingest.counts, self._phases.seconds)

    def _drafts(self, items: Sequence[RankItem], scales: Scales) -> _Drafts:
        names = [item.name for item in items]
        if len(set(names)) != len(names):
            raise Incompatible(f"two items have one name, among {', '.join(map(repr, names))}")
        for item in items:
            check_name(item.name)
            for name in item.entries:
                check_name(name)
        return {
            item.name: {name: self._draft(item.name, name, given, scales) for name, given in item.entries.items()}
            for item in items
        }

    def _draft(self, item: str, name: str, given: RankInput, scales: Scales) -> ShardsDraft | Draft:
        if isinstance(given, ShardsInput):
            return shards_draft(item, name, given, self._bases, scales.get((item, name), b""))
        return draft(item, name, given, self._no_bases)


def _part(each: ShardsDraft | Draft) -> EntryPart:
    if isinstance(each, ShardsDraft):
        return each.part()
    entry = each.entry()
    assert isinstance(entry, ValueEntry | ContainerEntry)
    return entry


def _chunks(part: EntryPart) -> Sequence[ObjectId]:
    return part.chunks


def _remembered(drafts: _Drafts) -> dict[tuple[str, str], Remembered]:
    return {
        (item, name): each.remembered()
        for item, named in drafts.items()
        for name, each in named.items()
        if isinstance(each, ShardsDraft) and each.boxes
    }


def _no_trees(tree: TreeId) -> bool:
    """A part has no trees: these are made of all parts."""
    raise AssertionError(tree)
