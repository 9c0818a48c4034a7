"""Every stored object of every pack: checksum, header, and in a full check its content."""

import threading
from collections.abc import Callable

from ..codec import decode
from ..errors import Corrupt, MoonclipError
from ..ids import ChunkId, ObjectId, PackId, chunk_id, commit_id, tree_id
from ..objects import Kind
from ..pack import TableEntry
from ..reader import decode_small
from ..repository import Repository
from .findings import Copy, Progress, Report, Stock


def check_packs(repository: Repository, report: Report, *, full: bool, progress: Progress) -> Stock:
    """Read every object of every pack; damaged packs go to the report, damaged objects into the stock."""
    stock = Stock()
    for pack in repository.packs.pack_ids():
        report.pack_count += 1
        try:
            stock.tables[pack] = repository.packs.table(pack).entries
        except MoonclipError as error:
            report.find("pack", str(error))
        except OSError as error:  # another user's pack, a failing disk
            report.find("pack", f"pack {pack.hex()}: it cannot be read ({error})")
    stored_bytes = sum(entry.stored_bytes for entries in stock.tables.values() for entry in entries)
    meter = _Meter(progress, total_bytes=2 * stored_bytes if full else stored_bytes)
    _check_stored(repository, stock, report, meter)
    if full:
        _check_contents(repository, stock, meter)
    stock.settle()
    for object_id in stock.damaged.keys() - stock.lost.keys():
        report.find("copy", f"{stock.damaged[object_id]}; another copy of it is whole", object_id)
    return stock


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

    def check(task: tuple[PackId, TableEntry]) -> None:
        pack, entry = task
        problem = _problem_with(task, lambda: repository.packs.read_entry(pack, entry))
        with lock:
            if problem is None:
                stock.intact.setdefault(entry.id, []).append((pack, entry))
            else:
                stock.damaged[entry.id] = problem
            report.object_count += 1
            report.stored_bytes += entry.stored_bytes
        meter.add(entry.stored_bytes)

    repository.threads.run(check, tasks)


def _check_contents(repository: Repository, stock: Stock, meter: _Meter) -> None:
    lock = threading.Lock()

    def check(copy: Copy) -> None:
        problem = _problem_with(copy, lambda: _hash(repository, *copy))
        if problem is not None:
            with lock:
                stock.damaged[copy[1].id] = problem
                stock.intact[copy[1].id].remove(copy)
        meter.add(copy[1].stored_bytes)

    repository.threads.run(check, [copy for copies in stock.intact.values() for copy in copies])


def _hash(repository: Repository, pack: PackId, entry: TableEntry) -> None:
    """Decode a copy and compare its id with its content's hash."""
    header, payload = repository.packs.read_entry(pack, entry)
    if entry.kind != Kind.CHUNK:
        raw = decode_small(header, payload)
        found: ObjectId = tree_id(raw) if entry.kind == Kind.TREE else commit_id(raw)
    else:
        out = memoryview(bytearray(entry.raw_bytes))
        base = memoryview(repository.reader.chunk(ChunkId(header.base))) if header.base else None
        decode(header.transform, header.grouped, header.element, payload, header.raw_bytes, base, out)
        found = chunk_id(out)
    if found != entry.id:
        raise Corrupt(f"{_name(pack, entry)}: content does not match its id")


def _name(pack: PackId, entry: TableEntry) -> str:
    return f"pack {pack.hex()} at offset {entry.offset}: {entry.kind.name.lower()} {entry.id.hex()}"


def _problem_with(copy: Copy, check: Callable[[], object]) -> str | None:
    try:
        check()
    except MoonclipError as error:
        return str(error)
    except OSError as error:
        return f"{_name(*copy)}: it cannot be read ({error})"
    return None
