"""What is no damage and yet worth knowing: leftovers of the dead, what lies in quarantine, odd dates and names."""

import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from ..disk.files import TEMPORARY_PREFIX
from ..errors import MoonclipError
from ..ids import PackId, short
from ..index.contents import Contents
from ..limits import CLOCK_SKEW_NS
from ..naming.logs import LogFiles
from ..naming.refnames import branch_name, is_full_name
from ..reading.packs import pack_path
from ..repository import Repository
from ..saving.leases import lease_paths, living_leases
from ..saving.leftovers import temporary_packs
from ..saving.partfiles import snapshot_directories
from ..upkeep.absences import Why
from ..upkeep.quarantine import quarantined
from .findings import Report, Stock
from .graph import Graph

_SHOWN = 3


def note_leftovers(repository: Repository, contents: Contents | None, stock: Stock, report: Report) -> None:
    """Note leases, temporaries and packs of writers that died, and what was put into quarantine."""
    root, files = repository.layout.root, repository.files
    leases, temporaries = lease_paths(root, files), list(temporary_packs(repository.layout, files))
    try:
        living = living_leases(root, files)  # after what they may have made, and what is gone by then was theirs
    except MoonclipError as error:
        report.find("lease", str(error))
        return
    names = {lease.name for lease in living}
    dead = [path for path in leases if path.name not in names and files.exists(path)]
    _note(report, "lease", "leases of writers that died, which go when the store is next opened", dead)
    lost = [path for lease, path in temporaries if lease.name not in names and files.exists(path)]
    _note(report, "pack", "unfinished packs of writers that died, which go when the store is next opened", lost)
    parts = [each for each in snapshot_directories(root, files) if each.name not in names and files.exists(each)]
    given_up = [path for each in parts for path in _below(each, depth=0)]
    _note(report, "parts", "parts of snapshots whose creator died, which go when the store is next opened", given_up)
    halves = [path for path in _below(root, depth=4) if path.name.startswith(TEMPORARY_PREFIX)]
    _note(report, "temporary", "half-written files of writers that died; they are in nobody's way", halves)
    if contents is not None:
        announced = frozenset[PackId]().union(*(lease.packs for lease in living))
        unknown = set(stock.tables) - contents.packs - announced
        with suppress(MoonclipError):
            unknown -= set(repository.index.packs() if unknown else ())  # of a save that has ended since
        paths = [pack_path(repository.layout.packs, pack) for pack in sorted(unknown)]
        _note(report, "pack", "packs of writers that died, unknown to the index; `moonclip gc` removes them", paths)
    kept = quarantined(root, files)
    _note(report, "quarantine", "damaged files in quarantine, which nothing reads; remove them at will", kept)


def note_names(repository: Repository, report: Report) -> None:
    """Note a ``HEAD`` without commits beside branches, files that are no refs, and reflogs that a crash cut short."""
    root, files, refs = repository.layout.root, repository.files, repository.refs
    try:
        head = branch_name(refs.head())
        branches = refs.names("branches/")
    except MoonclipError:
        return  # told as damage
    if branches and head not in branches:
        report.note("ref", f"HEAD names {head.partition('/')[2]!r}, a branch that has no commit yet")
    strays = [path for path in _below(root / "refs", depth=64) if _is_stray(path.relative_to(root / "refs"))]
    _note(report, "ref", "files among the refs that are none", strays)
    torn = [path for path in LogFiles(root, files).all() if _is_torn(repository, path)]
    _note(report, "ref", "reflogs whose last line was cut short by a crash; the next writer cuts it off", torn)


def note_history(repository: Repository, stock: Stock, graph: Graph, report: Report) -> None:
    """Note dates that cannot be, and absence records of what is not here."""
    now_ns = time.time_ns()
    early = [
        commit_id
        for commit_id, commit in graph.commits.items()
        if any(graph.commits[each].time_ns > commit.time_ns for each in commit.parents if each in graph.commits)
    ]
    if early:
        report.note(
            "commit", f"{len(early)} commits are dated before a parent, as {short(min(early))} is: a clock was off"
        )
    ahead = [each for each, commit in graph.commits.items() if commit.time_ns > now_ns + CLOCK_SKEW_NS]
    if ahead:
        report.note(
            "commit", f"{len(ahead)} commits are dated in the future, as {short(min(ahead))} is: a clock is off"
        )
    here = (stock.intact, stock.damaged)
    strangers = [
        commit
        for commit, lacking in repository.absences.all().items()
        if not any(commit in held for held in here) and any(each.why is not Why.SHALLOW for each in lacking)
    ]
    if strangers:
        report.note(
            "absent", f"{len(strangers)} commits have absence records and are not here, as {short(min(strangers))}"
        )


def _is_stray(path: Path) -> bool:
    return not is_full_name(str(path)) and not path.name.startswith(TEMPORARY_PREFIX)


def _is_torn(repository: Repository, path: Path) -> bool:
    try:
        data = repository.files.read_bytes(path)
    except FileNotFoundError:
        return False
    return bool(data) and not data.endswith(b"\n")


def _below(directory: Path, depth: int) -> Iterator[Path]:
    """Files below a directory; of those that come and go meanwhile, some."""
    try:
        entries = sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    for path in entries:
        if path.is_dir() and depth and path.name not in ("packs", "index", "quarantine"):
            yield from _below(path, depth - 1)
        elif path.is_file():
            yield path


def _note(report: Report, kind: str, what: str, paths: list[Path]) -> None:
    if paths:
        size_bytes = sum(_size(path) for path in paths)
        names = ", ".join(path.name for path in islice(paths, _SHOWN)) + (", …" if len(paths) > _SHOWN else "")
        report.note(kind, f"{len(paths)} {what} ({size_bytes} bytes): {names}")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
