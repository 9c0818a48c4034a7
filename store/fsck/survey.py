"""All that a check looks at, in the order in which it looks."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ..errors import MoonclipError
from ..ids import CommitId
from ..index.contents import Contents
from ..naming.refnames import BRANCHES, short_name
from ..repository import Repository
from .features import check_features
from .findings import Progress, Report, Stock
from .graph import Graph, walk
from .leftovers import note_history, note_leftovers, note_names
from .packs import check_packs
from .placement import check_index, read_index
from .roots import Named, read_roots
from .shelf import Shelf

_LOCK = "gc.lock"


@dataclass(frozen=True, slots=True)
class Survey:
    """What was seen.

    Attributes:
        report: what is wrong.
        roots: commits that have to be here.
        contents: the index, if it could be read.
        stock: the packs.
        shelf: reads them.
        graph: what the roots reach.
    """

    report: Report
    roots: Named
    contents: Contents | None
    stock: Stock
    shelf: Shelf
    graph: Graph


def survey(repository: Repository, *, full: bool, progress: Progress | None = None) -> Survey:
    """Look at everything; alters nothing. Nobody may move objects from pack to pack meanwhile.

    In this order, so that what others save meanwhile is no fault: a ref's objects are indexed before the ref moves, and
    a pack is there before it is indexed.
    """
    report = Report(full=full)
    roots = read_roots(repository, report)
    contents = read_index(repository, report)
    stock, shelf = check_packs(repository, report, full=full, progress=progress or _no_progress)
    check_features(repository, stock, report)
    graph = walk(repository.absences, roots, stock, shelf, full=full)
    graph.tell(report)
    if contents is not None:
        check_index(repository, contents, stock, graph, report)
    report.last_good = _last_good(repository, contents, graph)
    note_leftovers(repository, contents, stock, report)
    note_names(repository, report)
    note_history(repository, stock, graph, report)
    return Survey(report, roots, contents, stock, shelf, graph)


def survey_alone(repository: Repository, *, full: bool, progress: Progress | None = None) -> Survey:
    """The same, keeping gc and repack away meanwhile, having waited for one that is under way."""
    with _no_gc(repository) as is_kept_away:
        seen = survey(repository, full=full, progress=progress)
    if is_kept_away or not repository.files.exists(repository.layout.root / _LOCK):
        return seen
    with _no_gc(repository):  # this store's first gc may have begun meanwhile, and have moved what was looked for
        return survey(repository, full=full, progress=progress)


@contextmanager
def _no_gc(repository: Repository) -> Iterator[bool]:
    """Keep gc and repack away meanwhile, if that can be done; gives whether it is. Readers make no lock."""
    path, files = repository.layout.root / _LOCK, repository.files
    try:
        lock = files.lock_shared(path, create=not repository.read_only)
    except OSError:  # nobody has collected yet, or a store that we can only read, or a full disk
        yield False
        return
    with lock:
        yield True


def _last_good(repository: Repository, contents: Contents | None, graph: Graph) -> dict[str, CommitId | None]:
    """Of branches whose tip is affected the newest commit on their line that is not."""
    found: dict[str, CommitId | None] = {}
    for name in repository.refs.names(f"{BRANCHES}/"):
        with suppress(MoonclipError):  # told as damage
            tip = repository.refs.read(name)
            if tip in graph.affected_commits:
                line = _first_parents(tip, contents, graph)
                is_whole = (each for each in line if not repository.absences.of(each))
                found[short_name(name)] = next((each for each in is_whole if each not in graph.affected_commits), None)
    return found


def _first_parents(tip: CommitId, contents: Contents | None, graph: Graph) -> Iterator[CommitId]:
    """A line of history, where commits are lost by way of the index."""
    following: CommitId | None = tip
    while following is not None:
        yield following
        commit = graph.commits.get(following) or (contents.rows.get(following) if contents else None)
        following = commit.parents[0] if commit is not None and commit.parents else None


def _no_progress(done_bytes: int, total_bytes: int) -> None:
    """Nobody watches."""
