"""What names commits: refs, reflogs within their expiry, pins. Each by itself, so that damage to one hides no other."""

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from ..errors import MoonclipError
from ..ids import CommitId
from ..limits import REFLOG_EXPIRY_NS
from ..naming.logs import LogFiles
from ..naming.reflog import intact_lines, logged_ids
from ..naming.refnames import HEAD, RefName, describe
from ..repository import Repository
from .findings import Report

Named = Mapping[CommitId, list[str]]
"""Commits that have to be here, and what says so, in words."""


def read_roots(repository: Repository, report: Report) -> Named:
    """Read all that names commits, see ``store.upkeep.roots``. What is damaged goes to the report.

    The rest counts all the same, and of a damaged reflog the lines that are whole.
    """
    named: dict[CommitId, list[str]] = {}

    def attempt(kind: str, who: str, read: Callable[[], Iterable[CommitId]]) -> None:
        try:
            found = read()
        except (MoonclipError, OSError) as error:
            report.find(kind, str(error))
            return
        for commit in found:
            named.setdefault(commit, []).append(who)

    refs, logs = repository.refs, LogFiles(repository.layout.root, repository.files)
    attempt("ref", HEAD, partial(_head, repository))
    for name in sorted({*refs.names(), *refs.logged_names()}):
        attempt("ref", describe(name), partial(_held, repository, name))
    for path in logs.all():
        ref = logs.name(path)
        who = f"the reflog of {HEAD if ref is None else describe(ref)}"
        attempt("ref", who, partial(_logged, repository, path, report))
    attempt("pins", "a pin", repository.pins.all)
    for problem in repository.absences.problems():
        report.find("absent", problem)
    return named


def _head(repository: Repository) -> list[CommitId]:
    repository.refs.head()
    return []


def _held(repository: Repository, name: RefName) -> list[CommitId]:
    commit = repository.refs.read(name)
    return [] if commit is None else [commit]


def _logged(repository: Repository, path: Path, report: Report) -> set[CommitId]:
    since_ns = time.time_ns() - REFLOG_EXPIRY_NS
    try:
        data = repository.files.read_bytes(path)
    except FileNotFoundError:
        return set()
    try:
        return logged_ids(data, str(path), since_ns)
    except MoonclipError as error:
        report.find("ref", str(error))
        return logged_ids(b"".join(intact_lines(data)), str(path), since_ns)
