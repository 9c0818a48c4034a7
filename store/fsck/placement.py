"""Index against packs, both ways."""

from ..errors import MoonclipError
from ..ids import PackId
from ..index import MemoryIndex
from ..repository import Repository
from .findings import Report, Stock

_REINDEX = "run `moonclip reindex`"


def indexed_packs(repository: Repository, report: Report) -> set[PackId]:
    """Packs that the index names; its pages are walked before anything is read out of it."""
    try:
        repository.index.check()
        return set(repository.index.packs())
    except MoonclipError as error:
        report.find("index", str(error))
        return set()


def check_index(repository: Repository, indexed: set[PackId], stock: Stock, report: Report) -> None:
    """Every pack the index names is there, and it knows every object of the packs that it names.

    A pack that the index does not name is one in the making or of a save that died: no fault. One that is there and
    cannot be read has been reported as such.
    """
    expected = MemoryIndex(stock.tables.items(), ())
    try:
        for pack in sorted(indexed - set(stock.tables) - set(repository.packs.pack_ids())):
            report.find("index", f"the index places objects in pack {pack.hex()}, which is not there; {_REINDEX}")
        for pack in sorted(indexed & set(stock.tables)):
            _check_pack(repository, pack, stock, expected, report)
    except MoonclipError as error:
        report.find("index", str(error))


def _check_pack(repository: Repository, pack: PackId, stock: Stock, expected: MemoryIndex, report: Report) -> None:
    for entry in stock.tables[pack]:
        if entry.id in stock.damaged:
            continue
        found, belong = (
            [(place.offset, place.stored_bytes) for place in index.places(entry.id) if place.pack == pack]
            for index in (repository.index, expected)
        )
        if found != belong:
            name = f"{entry.kind.name.lower()} {entry.id.hex()}"
            report.find("index", f"the index misplaces {name} of pack {pack.hex()}; {_REINDEX}", entry.id)
