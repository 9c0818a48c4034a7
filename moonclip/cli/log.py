"""``moonclip log``: history."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

import click

from store.errors import NotFound
from store.history.conditions import Condition, condition, moment_ns
from store.history.growth import Added
from store.history.walks import graph, simplified
from store.ids import CommitId
from store.index import CommitRow
from store.naming.refnames import BRANCHES, HEAD, branch_name, short_name
from store.naming.renames import names_of
from store.repository import Repository
from store.upkeep.absences import expected_items

from .asked import Asked
from .commits import Described, describe
from .lanes import beside, draw
from .location import open_store
from .output import echo_json_list, json_option
from .refs import RefNames, complete_branch, complete_revision, read_names


@click.command()
@click.argument("revisions", nargs=-1, metavar="[REVISION]...", shell_complete=complete_revision)
@click.option("--all", "every_ref", is_flag=True, help="Begin at every branch and tag.")
@click.option(
    "--branch",
    "branches",
    multiple=True,
    metavar="NAME",
    help="Only commits made on it, under whatever name it had.",
    shell_complete=complete_branch,
)
@click.option("--where", "conditions", multiple=True, metavar="CONDITION", help="Only such: 'loss<2.3', 'step>=1000'.")
@click.option("--since", metavar="TIME", help="Only those made since: '2d', '36h', '2026-11-29'.")
@click.option("--until", metavar="TIME", help="Only those made before.")
@click.option("-n", "limit", type=click.IntRange(min=0), metavar="COUNT", help="Show no more than so many.")
@click.option("--oneline", is_flag=True, help="One line for each commit.")
@click.option("--show", "keys", metavar="KEY,...", help="One line: step, these of the metadata, and age.")
@click.option("--size", "with_size", is_flag=True, help="Show also how many bytes each commit added.")
@click.option("--graph", "as_graph", is_flag=True, help="Draw the lines of history.")
@json_option
@click.pass_context
def log(
    ctx: click.Context,
    revisions: tuple[str, ...],
    *,
    every_ref: bool,
    branches: tuple[str, ...],
    conditions: tuple[str, ...],
    since: str | None,
    until: str | None,
    limit: int | None,
    oneline: bool,
    keys: str | None,
    with_size: bool,
    as_graph: bool,
    as_json: bool,
) -> None:
    """Show commits, newest first.

    Begins at HEAD, or at the revisions: branches, tags, main~3, HEAD@{2}, step:5000, the beginning of an id. With
    --branch, at the tips of those branches.

    Of several conditions all must hold. A graph of some commits joins each to the nearest shown one that it descends
    from.
    """
    if as_json and (as_graph or oneline or keys is not None):
        raise click.UsageError("--json goes with none of --graph, --oneline and --show")
    if oneline and keys is not None:
        raise click.UsageError("--show is one line for each commit already; leave out --oneline")
    repo = open_store(ctx)
    names = read_names(repo.refs)
    tips = _tips(repo, revisions, branches, names, every_ref=every_ref)
    wanted = _wanted(_had_names(repo, branches), conditions, since, until)
    rows = _rows(repo, tips, wanted, limit, linked=as_graph)
    added = Added(repo.reader, lambda commit, of: expected_items(commit, repo.absences, of)) if with_size else None
    if as_json:
        echo_json_list(_as_json(repo, row.id, names, added) for row in rows)
        wanted.asked.tell()
        return
    shown = None if keys is None else Asked([key for key in map(str.strip, keys.split(",")) if key])
    for line in _lines(rows, _Text(repo, names, added, oneline=oneline, shown=shown), as_graph=as_graph):
        click.echo(line)
    wanted.asked.tell()
    if shown is not None:
        shown.tell()


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which commits are shown; all if nothing is said."""

    branches: frozenset[str]
    conditions: Sequence[Condition]
    since_ns: int | None
    until_ns: int | None
    asked: Asked

    @property
    def is_everything(self) -> bool:
        return not self.branches and not self.conditions and self.since_ns is None and self.until_ns is None

    def takes(self, repo: Repository, row: CommitRow) -> bool:
        """Whether a commit is shown; the commit itself is read only if nothing else says no."""
        if self.branches and row.branch not in self.branches:
            return False
        if self.since_ns is not None and row.time_ns < self.since_ns:
            return False
        if self.until_ns is not None and row.time_ns >= self.until_ns:
            return False
        if not self.conditions:
            return True
        commit = repo.commit(row.id)
        self.asked.note(commit)
        return all(each.holds(commit) for each in self.conditions)


def _wanted(branches: frozenset[str], conditions: tuple[str, ...], since: str | None, until: str | None) -> _Wanted:
    now_ns = time.time_ns()
    parsed = [condition(text) for text in conditions]
    return _Wanted(
        branches,
        parsed,
        None if since is None else moment_ns(since, now_ns),
        None if until is None else moment_ns(until, now_ns),
        Asked([each.key for each in parsed]),
    )


def _tips(
    repo: Repository, revisions: tuple[str, ...], branches: tuple[str, ...], names: RefNames, *, every_ref: bool
) -> list[CommitId]:
    tips = [repo.resolve(revision) for revision in (*revisions, *map(branch_name, branches))]
    if every_ref:
        return tips + names.tips()
    return tips or [_current(repo)]


def _current(repo: Repository) -> CommitId:
    """The current branch's tip. If it has none, those who come for history are told where there is some."""
    try:
        return repo.resolve(HEAD)
    except NotFound as error:
        other = min(map(short_name, repo.refs.names(f"{BRANCHES}/")), default=None)
        if other is None:
            raise
        ways = f"`moonclip log {other}` shows one, `moonclip switch {other}` makes it the current one"
        raise NotFound(f"{error.message}; {ways}", **error.details) from None


def _had_names(repo: Repository, branches: tuple[str, ...]) -> frozenset[str]:
    """The names under which commits of branches were made.

    Reflogs tell of renames, but no clone has them: a name that a tip says, and no branch has had, is its branch's.
    """
    had = {branch: names_of(repo.refs, branch) for branch in branches}
    said = {_said_name(repo, branch) for branch in branches} - set(chain(*had.values()))
    if said:
        said -= {name for ref in repo.refs.names(f"{BRANCHES}/") for name in names_of(repo.refs, short_name(ref))}
    return frozenset(chain(said, *had.values()))


def _said_name(repo: Repository, branch: str) -> str:
    """The branch that its tip was made on."""
    tip = repo.refs.read(branch_name(branch))
    row = None if tip is None else repo.lookup.commit(tip)
    return branch if row is None else row.branch


def _rows(
    repo: Repository, tips: list[CommitId], wanted: _Wanted, limit: int | None, *, linked: bool
) -> Iterator[CommitRow]:
    """The commits to show; ``linked`` gives each the nearest shown ancestors for parents."""
    rows = repo.log(tips)
    if wanted.is_everything:
        return islice(rows, limit)
    if linked:
        return islice(simplified(rows, lambda row: wanted.takes(repo, row), _with_parents), limit)
    return islice((row for row in rows if wanted.takes(repo, row)), limit)


def _with_parents(row: CommitRow, parents: tuple[CommitId, ...]) -> CommitRow:
    return replace(row, parents=parents)


@dataclass(frozen=True, slots=True)
class _Text:
    """How a commit is told."""

    repo: Repository
    names: RefNames
    added: Added | None
    oneline: bool
    shown: Asked | None

    def of(self, commit_id: CommitId) -> Iterator[str]:
        described = describe(self.repo, commit_id, self.names)
        added_bytes = self._added_bytes(described)
        if self.shown is not None:
            self.shown.note(described.commit)
            yield described.row(self.shown.keys, added_bytes)
        elif self.oneline:
            yield described.line(added_bytes)
        else:
            yield from described.paragraph(added_bytes)
            yield ""

    def _added_bytes(self, described: Described) -> int | None:
        return None if self.added is None else self.added.stored_bytes(described.id, described.commit)


def _lines(rows: Iterator[CommitRow], text: _Text, *, as_graph: bool) -> Iterator[str]:
    if as_graph:
        for row, drawn in draw(graph(rows)):
            yield from beside(drawn, text.of(row.id))
        return
    for row in rows:
        yield from text.of(row.id)


def _as_json(repo: Repository, commit_id: CommitId, names: RefNames, added: Added | None) -> dict[str, object]:
    described = describe(repo, commit_id, names)
    if added is None:
        return described.as_json()
    return {**described.as_json(), "added_bytes": added.stored_bytes(commit_id, described.commit)}
