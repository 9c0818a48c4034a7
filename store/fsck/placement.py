"""The index against itself, and against the packs, both ways. It is read without LMDB, see ``store.index.snapshot``."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from ..errors import Busy, MoonclipError
from ..format.objects import Commit, Kind
from ..format.pack import TableEntry
from ..ids import CommitId, ObjectId, PackId, short
from ..index import BrokenIndex, Place
from ..index.contents import Contents, read_contents
from ..limits import MAX_CHAIN_DEPTH
from ..opening.indexes import index_in_use
from ..reading.closure import is_readable
from ..repository import Repository
from .findings import Report, Stock
from .graph import Graph

_REINDEX = "run `moonclip reindex`"

_SHOWN = 20
"""Findings of one sort that are told one by one."""


def read_index(repository: Repository, report: Report) -> Contents | None:
    """All that the index holds; ``None`` if there is none, or if it is damaged, which goes to the report."""
    try:
        path = index_in_use(repository.layout, repository.files)
    except BrokenIndex as error:
        report.note("index", f"{error}; the next who writes makes it")
        return None
    try:
        with suppress(BrokenIndex):
            repository.index.check()  # so that this process leaves nothing to LMDB any more that may end it
        contents = read_contents(path)
    except Busy as error:
        report.note("index", f"{error}; it was not looked into")
        return None
    except (MoonclipError, OSError) as error:
        report.find("index", f"{error}; {_REINDEX}")
        return None
    for problem in contents.problems:
        report.find("index", f"index at {path}: {problem}; {_REINDEX}")
    return contents


def check_index(repository: Repository, contents: Contents, stock: Stock, graph: Graph, report: Report) -> None:
    """Every place is in the table of its pack; whatever is live and whole can be reached by way of it; commits agree.

    That the index does not know a pack, or some objects of one, is no fault: the pack may be in the making or of a save
    that died, and gc forgets an object long before it rewrites the pack. Nor is it damage that the index is older than
    the packs, as one from a backup is: what it lacks is sought in the packs.
    """
    known = {*stock.tables, *stock.unreadable}
    # A pack of which no place is left may be known yet: it goes just before the index forgets it.
    placed = {place.pack for places in contents.places.values() for place in places}
    gone = placed - known - set(repository.packs.pack_ids())
    for pack in sorted(gone):
        report.find("index", f"the index places objects in pack {pack.hex()}, which is not there; {_REINDEX}")
    _tell(report, "misplaces", _misplaced(contents, stock))
    _tell(report, "understates the depth of", _shallow(contents))
    behind = {each for each in graph.live if _is_unread(contents, stock, each)}
    if behind:
        report.note("index", f"the index has not read the packs that hold {len(behind)} live objects; {_REINDEX}")
    _tell(report, "does not lead to", _unreachable(contents, stock, graph.live - behind, gone))
    _tell(report, "tells something else of", _wrong_rows(contents, graph, behind))
    lost = [commit for commit in contents.rows if commit not in stock.intact and commit not in graph.problems]
    if not stock.unreadable and not gone:
        _tell(report, "knows, although no pack holds it,", ((commit, f"commit {commit.hex()}") for commit in lost))


def _tell(report: Report, what: str, found: Iterator[tuple[ObjectId, str]]) -> None:
    listed = list(found)
    for object_id, name in listed[:_SHOWN]:
        report.find("index", f"the index {what} {name}; {_REINDEX}", object_id)
    if len(listed) > _SHOWN:
        report.find("index", f"the index {what} {len(listed) - _SHOWN} more objects; {_REINDEX}")


def _misplaced(contents: Contents, stock: Stock) -> Iterator[tuple[ObjectId, str]]:
    """Places that differ from their packs' tables. What was not found in a damaged pack is not the index's fault."""
    tables: dict[PackId, dict[ObjectId, TableEntry]] = {}
    for object_id, places in contents.places.items():
        for place in places:
            if place.pack not in stock.tables:
                continue
            if place.pack not in tables:
                tables[place.pack] = {entry.id: entry for entry in stock.tables[place.pack]}
            entry = tables[place.pack].get(object_id)
            if entry is None and place.pack in stock.broken:
                continue
            if entry is None or _of(entry) != _said(place):
                yield object_id, f"{_name(place.kind, object_id)} of pack {place.pack.hex()}"


def _of(entry: TableEntry) -> tuple[int, int, int, Kind, ObjectId | None]:
    return entry.offset, entry.stored_bytes, entry.raw_bytes, entry.kind, entry.base


def _said(place: Place) -> tuple[int, int, int, Kind, ObjectId | None]:
    return place.offset, place.stored_bytes, place.raw_bytes, place.kind, place.base


def _shallow(contents: Contents) -> Iterator[tuple[ObjectId, str]]:
    """Copies that are said to be no deeper than what they are stored against: readers follow depths down.

    A depth may be more than it has to be: a shallower copy of the base came later.
    """
    for object_id, places in contents.places.items():
        for place in places:
            below = contents.places.get(place.base) if place.base is not None else None
            least = min(copy.depth for copy in below) + 1 if below else 0
            if not least <= place.depth <= MAX_CHAIN_DEPTH:
                yield object_id, f"{_name(place.kind, object_id)} of pack {place.pack.hex()}"


def _unreachable(
    contents: Contents, stock: Stock, live: set[ObjectId], gone: set[PackId]
) -> Iterator[tuple[ObjectId, str]]:
    """What is live and whole, and yet cannot be read by way of the index."""

    def good(object_id: ObjectId) -> list[Place]:
        places = contents.places.get(object_id, [])
        return [place for place in places if place.pack not in gone and (object_id, place.pack) not in contents.bad]

    for object_id in sorted(live):
        copies = stock.intact.get(object_id)
        if copies and not is_readable(object_id, good) and is_readable(object_id, partial(_whole, stock)):
            yield object_id, _name(copies[0][1].kind, object_id)


def _is_unread(contents: Contents, stock: Stock, object_id: ObjectId) -> bool:
    """Whether all copies of an object are in packs of which the index knows nothing."""
    copies = stock.intact.get(object_id)
    return bool(copies) and not any(pack in contents.packs for pack, _ in copies or ())


def _whole(stock: Stock, object_id: ObjectId) -> list[Place]:
    return [
        Place(pack, entry.offset, entry.stored_bytes, entry.raw_bytes, entry.kind, entry.base, 0)
        for pack, entry in stock.intact.get(object_id, ())
    ]


def _wrong_rows(contents: Contents, graph: Graph, behind: set[ObjectId]) -> Iterator[tuple[ObjectId, str]]:
    """Live commits of which the index has no row, or one that says something else, or one out of order."""
    for commit_id, commit in graph.commits.items():
        row = contents.rows.get(commit_id)
        if row is None and commit_id in behind:
            continue
        if row is None or (row.parents, row.step, row.time_ns, row.branch) != _row(commit):
            yield commit_id, f"commit {commit_id.hex()}"
        elif any(each.sequence >= row.sequence for parent in commit.parents if (each := contents.rows.get(parent))):
            yield commit_id, f"the arrival of commit {short(commit_id)}"


def _row(commit: Commit) -> tuple[tuple[CommitId, ...], int | None, int, str]:
    return commit.parents, commit.step, commit.time_ns, commit.branch


def _name(kind: Kind, object_id: ObjectId) -> str:
    return f"{kind.name.lower()} {object_id.hex()}"
