"""Refs, reflogs and other small files, mended from what is left of them. What is replaced is kept in quarantine."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..errors import MoonclipError
from ..ids import CommitId, short
from ..naming import reflog
from ..naming.logs import LogFiles
from ..naming.reflog import ReflogLine, decode_lines, intact_lines
from ..naming.refnames import BRANCHES, HEAD, RefName, describe, short_name
from ..repository import Repository
from ..upkeep import absences, pins
from ..upkeep.quarantine import keep_copy
from .graph import Graph


@dataclass(frozen=True, slots=True)
class Mend:
    """Something that can be mended.

    Attributes:
        message: what, and how.
        do: does it. Raises OSError if it cannot be written.
    """

    message: str
    do: Callable[[], None]


def mends(repository: Repository, graph: Graph) -> Iterator[Mend]:
    """What can be mended of refs, reflogs, ``HEAD``, pins and absence records, in the order in which to do it.

    Args:
        repository: the store.
        graph: commits that can be read.
    """
    logs = LogFiles(repository.layout.root, repository.files)
    for name in sorted({*repository.refs.names(), *repository.refs.logged_names()}):
        try:
            repository.refs.read(name)
        except MoonclipError:
            lines = _lines(repository, logs.path(name))
            yield from _mended_ref(repository, graph, name, lines)
    yield from _mended_head(repository, logs)
    for path in logs.all():
        yield from _cut(repository, path, "refs.lock", reflog.intact_lines)
    yield from _cut(repository, repository.layout.root / "pins", "pins.lock", pins.intact_lines)
    yield from _cut(repository, repository.layout.root / "absent", "absent.lock", absences.intact_lines)


def _lines(repository: Repository, path: Path) -> list[ReflogLine]:
    """What is left of a reflog, oldest first."""
    try:
        data = repository.files.read_bytes(path)
    except FileNotFoundError:
        return []
    return decode_lines(b"".join(intact_lines(data)), str(path))


def _mended_ref(repository: Repository, graph: Graph, name: RefName, lines: list[ReflogLine]) -> Iterator[Mend]:
    """The newest value that its reflog tells of and that is here.

    Whether the last line came true only the ref could have told. If not, its commit is whole all the same: it was made
    durable before the line was.
    """
    for line in reversed(lines):
        if line.new is None:
            yield Mend(
                f"{describe(name)}: removed, as its reflog says it was", lambda: _restore(repository, name, None)
            )
            return
        if line.new in graph.commits:
            value = line.new
            what = f"{describe(name)}: put on {short(value)}, the last that its reflog tells of"
            if line is not lines[-1]:
                what += f" and that is here; {short(lines[-1].new or value)} is lost"
            yield Mend(what, partial(_restore, repository, name, value))
            return


def _restore(repository: Repository, name: RefName, value: CommitId | None) -> None:
    root, files = repository.layout.root, repository.files
    with suppress(FileNotFoundError, IsADirectoryError):  # it may be lost altogether
        keep_copy(root, files, root / "refs" / name)
    repository.refs.restore(name, value, "restored from the reflog by fsck --repair")


def _mended_head(repository: Repository, logs: LogFiles) -> Iterator[Mend]:
    """The branch that its reflog last moved; else the first, ``main`` before all others."""
    refs = repository.refs
    try:
        refs.head()
        return
    except MoonclipError:
        pass
    last = [line.new for line in _lines(repository, logs.path(HEAD))[-1:]]
    tips: dict[str, CommitId | None] = {}
    for name in refs.names(f"{BRANCHES}/"):
        with suppress(MoonclipError):
            tips[short_name(name)] = refs.read(name)
    names = sorted(tips, key=lambda name: (tips[name] not in last, name != "main", name)) or ["main"]
    yield Mend(f"{HEAD}: put on branch {names[0]!r}", partial(_put_head, repository, names[0]))


def _put_head(repository: Repository, branch: str) -> None:
    root, files = repository.layout.root, repository.files
    with suppress(FileNotFoundError):
        keep_copy(root, files, root / HEAD)
    repository.refs.set_head(branch)


def _cut(repository: Repository, path: Path, lock: str, intact: Callable[[bytes], list[bytes]]) -> Iterator[Mend]:
    """Lines of a file that are none are cut out."""
    root, files = repository.layout.root, repository.files
    try:
        data = files.read_bytes(path)
    except FileNotFoundError:
        return
    kept = intact(data)
    if b"".join(kept) == data:
        return

    def cut() -> None:
        with files.lock_exclusive(root / lock):
            keep_copy(root, files, path)
            files.write_atomic(path, b"".join(intact(files.read_bytes(path))))

    gone_count = len(data.splitlines()) - len(kept)
    yield Mend(f"{path.relative_to(root)}: {gone_count} damaged lines cut out, {len(kept)} kept", cut)
