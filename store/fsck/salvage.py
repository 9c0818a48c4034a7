"""What is whole in damaged packs, and what another copy has of what is lost, put into new packs."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from ..codec import Encoded, encode, encode_blob
from ..format.objects import Kind
from ..format.pack import ObjectHeader, Sealed, TableEntry, seal, table_entry
from ..ids import ObjectId, PackId, chunk_id, commit_id, tree_id
from ..repository import Repository
from ..saving.packseries import PackSeries
from .findings import Stock
from .graph import Graph, Need, walk
from .sources import Source
from .survey import Survey

_ID_OF = {Kind.CHUNK: chunk_id, Kind.TREE: tree_id, Kind.COMMIT: commit_id}


@dataclass(slots=True)
class Fetched:
    """What another copy gave.

    Attributes:
        object_ids: objects.
        raw_bytes: their length.
    """

    object_ids: set[ObjectId] = field(default_factory=set)
    raw_bytes: int = 0


def fetch(repository: Repository, seen: Survey, source: Source, packs: PackSeries | None) -> tuple[Fetched, Graph]:
    """Get what is lost, and what is then found to be lost below it, from another copy.

    Args:
        repository: the store.
        seen: what is lost; what is fetched is put on its shelf.
        source: the other copy.
        packs: takes what is fetched; ``None`` to see only what could be.

    Returns:
        What was fetched, and what is reached now.

    Raises:
        OSError: the source cannot be reached, or writing failed.
    """
    fetched, asked = Fetched(), set[ObjectId]()
    graph = seen.graph
    while wanted := _lost(graph) - asked:
        asked |= wanted
        for object_id in sorted(wanted):
            raw = _verified(source, object_id, graph.needs[object_id])
            if raw is not None:
                sealed = _sealed(object_id, graph.needs[object_id], raw)
                seen.shelf.put(table_entry(sealed, 0), raw)
                fetched.object_ids.add(object_id)
                fetched.raw_bytes += len(raw)
                if packs is not None:
                    packs.append(sealed)
        graph = walk(repository.absences, seen.roots, seen.stock, seen.shelf, full=False)
    return fetched, graph


def rescued(stock: Stock, doomed: Collection[PackId]) -> Iterator[tuple[PackId, TableEntry]]:
    """Of packs that are given up what is whole and in no other pack, each object once."""
    taken: set[ObjectId] = set()
    for pack in sorted(doomed):
        for entry in stock.tables.get(pack, ()):
            holders = {holder for holder, _ in stock.intact.get(entry.id, ())}
            if pack in holders and holders <= set(doomed) and entry.id not in taken:
                taken.add(entry.id)
                yield pack, entry


def rescue(repository: Repository, copies: Iterable[tuple[PackId, TableEntry]], packs: PackSeries) -> None:
    """Copy stored objects as they are.

    Raises:
        Corrupt: one of them has been damaged since it was looked at.
        OSError: reading or writing failed.
    """
    for pack, entry in copies:
        header, payload = repository.packs.read_entry(pack, entry)
        packs.append(seal(header, [payload]))


def _lost(graph: Graph) -> set[ObjectId]:
    return {object_id for object_id in graph.problems if object_id in graph.needs}


def _verified(source: Source, object_id: ObjectId, need: Need) -> bytes | bytearray | None:
    raw = source.get(object_id, need.kind)
    return raw if raw is not None and _ID_OF[need.kind](raw) == object_id else None


def _sealed(object_id: ObjectId, need: Need, raw: bytes | bytearray) -> Sealed:
    """Encoded without a base: what it was stored against may be lost as well."""
    fits = need.kind == Kind.CHUNK and len(raw) % need.element.width_bytes == 0
    encoded: Encoded = encode(memoryview(raw), need.element) if fits else encode_blob(raw)
    element = need.element if fits else type(need.element).INT8
    header = ObjectHeader(need.kind, encoded.transform, encoded.grouped, element, len(raw), object_id)
    return seal(header, encoded.payload)
