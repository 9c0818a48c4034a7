"""Every stored object of every pack: checksum, header, and in a full check its content."""

import threading
from collections.abc import Callable, Collection, Iterable

from ..errors import Corrupt, Incompatible, MoonclipError
from ..format.objects import Commit, Kind, TreeNode
from ..format.pack import TableEntry
from ..ids import ChunkId, ObjectId, PackId, chunk_id, commit_id, tree_id
from ..reading.decoding import decode_chunk
from ..reading.packs import PackGone, Unreadable, pack_path
from ..reading.reader import decode_small
from ..repository import Repository
from .findings import Copy, Progress, Report, Stock
from .searching import search
from .shelf import Shelf


def check_packs(repository: Repository, report: Report, *, full: bool, progress: Progress) -> tuple[Stock, Shelf]:
    """Read every object of every pack; damaged packs go to the report, damaged objects into the stock.

    What was found by searching is hashed in any case: it may be part of a damaged object that it only looks like.

    Returns:
        What the packs hold, and what reads it.
    """
    stock = Stock()
    for pack in repository.packs.pack_ids():
        _read_table(repository, pack, stock, report)
    stored_bytes = sum(entry.stored_bytes for entries in stock.tables.values() for entry in entries)
    doubted = list(stock.tables if full else stock.broken)
    doubted_bytes = sum(entry.stored_bytes for pack in doubted for entry in stock.tables.get(pack, ()))
    meter = _Meter(progress, total_bytes=stored_bytes + doubted_bytes)
    _check_stored(repository, stock, report, meter)
    shelf = Shelf(stock, repository.packs)
    _check_contents(repository, stock, shelf, set(doubted), meter)
    stock.settle()
    for object_id in stock.damaged.keys() - stock.lost.keys():
        report.find("copy", f"{stock.damaged[object_id]}; another copy of it is whole", object_id)
    return stock, shelf


def _read_table(repository: Repository, pack: PackId, stock: Stock, report: Report) -> None:
    report.pack_count += 1
    try:
        stock.tables[pack] = repository.packs.table(pack).entries
    except PackGone:
        report.pack_count -= 1  # since its name was read; if the index still names it, that is told
    except (Unreadable, Incompatible) as error:
        stock.unreadable.add(pack)
        report.find("pack", str(error))
    except MoonclipError as error:
        stock.broken.add(pack)
        _search(repository, pack, stock, report, str(error))
    except OSError as error:  # another user's pack, a failing disk
        stock.unreadable.add(pack)
        report.find("pack", f"pack {pack.hex()}: it cannot be read ({error})")


def _search(repository: Repository, pack: PackId, stock: Stock, report: Report, problem: str) -> None:
    """Take what is whole in a pack whose structure is damaged: the index may still lead there, and repair keeps it."""
    try:
        with repository.files.open_read(pack_path(repository.layout.packs, pack)) as handle:
            stock.tables[pack] = search(handle)
    except OSError as error:
        report.find("pack", f"{problem}; nor can it be searched ({error})")
    else:
        report.find("pack", f"{problem}; {len(stock.tables[pack])} objects in it are whole")


class _Meter:
    """Adds up what is read: everything once, in a full check twice. Thread-safe."""

    def __init__(self, progress: Progress, total_bytes: int) -> None:
        self._progress = progress
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._lock = threading.Lock()

    def add(self, read_bytes: int) -> None:
        with self._lock:
            self._done_bytes += read_bytes
            self._progress(self._done_bytes, self._total_bytes)


def _check_stored(repository: Repository, stock: Stock, report: Report, meter: _Meter) -> None:
    tasks = [(pack, entry) for pack, entries in stock.tables.items() for entry in entries]
    lock = threading.Lock()

    def check(task: Copy) -> None:
        pack, entry = task
        problem = _problem_with(task, stock, lock, lambda: repository.packs.read_entry(pack, entry))
        with lock:
            if problem is None:
                stock.intact.setdefault(entry.id, []).append(task)
            report.object_count += 1
            report.stored_bytes += entry.stored_bytes
        meter.add(entry.stored_bytes)

    repository.threads.run(check, tasks)


def _check_contents(
    repository: Repository, stock: Stock, shelf: Shelf, doubted: Collection[PackId], meter: _Meter
) -> None:
    """Hash every copy in some packs, bases before deltas: what does not decode for its base's sake is not damaged."""
    lock = threading.Lock()

    def check(copy: Copy) -> None:
        if _problem_with(copy, stock, lock, lambda: _hash(repository, shelf, *copy)) is not None:
            with lock:
                stock.intact[copy[1].id].remove(copy)

    def check_and_count(copy: Copy) -> None:
        check(copy)
        meter.add(copy[1].stored_bytes)

    for level in _levels(stock, shelf, doubted):
        repository.threads.run(check_and_count, level)


def _levels(stock: Stock, shelf: Shelf, doubted: Collection[PackId]) -> Iterable[list[Copy]]:
    """Copies by how many objects have to be decoded before them; those that cannot be, last."""
    levels: dict[int, list[Copy]] = {}
    unreadable: list[Copy] = []
    for copies in stock.intact.values():
        for pack, entry in (copy for copy in copies if copy[0] in doubted):
            depth = shelf.depth(entry.id, pack)
            (unreadable if depth is None else levels.setdefault(depth, [])).append((pack, entry))
    return [*(levels[depth] for depth in sorted(levels)), unreadable]


def _hash(repository: Repository, shelf: Shelf, pack: PackId, entry: TableEntry) -> None:
    """Decode a copy and compare its id with its content's hash; trees and commits also with their canonical form."""
    header, payload = repository.packs.read_entry(pack, entry)
    what = _name(pack, entry)
    if entry.kind != Kind.CHUNK:
        raw = decode_small(header, payload)
        _require_id(entry, tree_id(raw) if entry.kind == Kind.TREE else commit_id(raw), what)
        (TreeNode if entry.kind == Kind.TREE else Commit).decode(raw, what)
        return
    base: memoryview | None = None
    if header.base is not None:
        try:
            base = memoryview(shelf.chunk(ChunkId(header.base)))
        except MoonclipError:
            return  # the base is what is lost or damaged, and that is told
    out = memoryview(bytearray(entry.raw_bytes))
    try:
        decode_chunk(header, payload, base, out)
    except Corrupt as error:
        raise Corrupt(f"{what}: {error}") from error
    _require_id(entry, chunk_id(out), what)


def _require_id(entry: TableEntry, found: ObjectId, what: str) -> None:
    if found != entry.id:
        raise Corrupt(f"{what}: content does not match its id")


def _name(pack: PackId, entry: TableEntry) -> str:
    return f"pack {pack.hex()} at offset {entry.offset}: {entry.kind.name.lower()} {entry.id.hex()}"


def _problem_with(copy: Copy, stock: Stock, lock: threading.Lock, check: Callable[[], object]) -> str | None:
    """What is wrong with a copy, which goes to the stock; ``None`` if nothing is."""
    pack, entry = copy
    try:
        check()
    except (Unreadable, Incompatible, PackGone) as error:
        problem, kind = str(error), stock.unreadable
    except MoonclipError as error:
        problem, kind = str(error), stock.hurt
    except OSError as error:
        problem, kind = f"{_name(*copy)}: it cannot be read ({error})", stock.unreadable
    else:
        return None
    with lock:
        kind.add(pack)
        stock.damaged[entry.id] = problem
    return problem
