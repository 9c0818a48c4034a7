"""From a revision to the commit it names.

A name is looked up in this order: ``HEAD``; a full ref name; a tag; a branch; a remote branch; a prefix of a
commit's id. So a tag hides a branch of the same name, which ``branches/<name>`` still reaches. Prefixes of ids see
only what refs and reflogs reach; a full id names its commit wherever it is.
"""

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ..errors import Ambiguous, NotFound
from ..history.walks import CommitSource, Row, first_parents, reached_among
from ..ids import ID_BYTES, CommitId, from_hex, short
from ..limits import CANDIDATES_SHOWN
from .meant import did_you_mean
from .reflog import ReflogLine
from .refnames import BRANCHES, HEAD, KINDS, RefName, branch_name, describe, is_full_name, problem_with, short_name
from .revisions import AtStep, Back, Base, Logged, Move, Named, is_id_prefix, parse


class Commits(CommitSource[Row], Protocol):
    """What resolving asks of the index."""

    def commits_with_prefix(self, prefix: str, /) -> Iterable[CommitId]:
        """Ids of all commits here whose hex form begins with ``prefix`` (lower case, any number of digits)."""
        ...


class Refs(Protocol):
    """What resolving asks of the refs; :class:`store.naming.refs.RefStore` gives it."""

    def read(self, name: RefName, /) -> CommitId | None:
        """The commit that a ref names."""
        ...

    def names(self) -> Iterable[RefName]:
        """Full names of all refs."""
        ...

    def head(self) -> str:
        """Short name of the current branch."""
        ...

    def reflog(self, name: str, /) -> Sequence[ReflogLine]:
        """What a ref, or ``HEAD``, held; newest line first."""
        ...

    def roots(self) -> set[CommitId]:
        """Every commit that a ref or reflog names."""
        ...


def resolve(
    commits: Commits,
    refs: Refs,
    text: str,
    bound_branch: str | None = None,
    *,
    is_pruned: Callable[[CommitId], bool] = lambda _: False,
) -> CommitId:
    """The commit that ``text`` names. Of several of one step it is the newest that was not pruned, if there is one.

    Args:
        commits: the graph.
        refs: names and their pasts.
        text: a revision, see :mod:`store.naming.revisions`.
        bound_branch: short name of the branch that ``HEAD``, ``@{n}`` and ``step:N`` speak of; the store's current
            one if ``None``.
        is_pruned: whether nothing of a commit's content is kept.

    Raises:
        Incompatible: ``text`` is not a revision.
        NotFound: it names nothing here; the message lists near misses.
        Ambiguous: it is a prefix of several ids; ``details["candidates"]`` lists them.
        Corrupt: a ref or reflog that it needs is damaged.
    """
    return _Resolver(commits, refs, text, bound_branch, is_pruned).commit()


class _Resolver:
    """One resolution: carries what every message and look-up needs."""

    def __init__(
        self,
        commits: Commits,
        refs: Refs,
        text: str,
        bound_branch: str | None,
        is_pruned: Callable[[CommitId], bool],
    ) -> None:
        self._commits = commits
        self._refs = refs
        self._text = text
        self._bound_branch = bound_branch
        self._is_pruned = is_pruned

    def commit(self) -> CommitId:
        revision = parse(self._text)
        commit = self._base(revision.base)
        for move in revision.moves:
            commit = self._moved(commit, move)
        return commit

    def _base(self, base: Base) -> CommitId:
        match base:
            case Named(name):
                return self._named(name)
            case Logged(name, back):
                return self._logged(self._log_name(name), back)
            case AtStep(name, step):
                return self._at_step(name, step)

    # --- names ---

    def _named(self, name: str) -> CommitId:
        for ref in self._refs_called(name):
            commit = self._refs.read(ref)
            if commit is not None:
                return commit
        if name == HEAD:
            raise self._not_found(f"branch {self._branch()!r} has no commit yet{self._other_branches()}")
        if is_id_prefix(name):
            return self._with_prefix(name.lower())
        raise self._unknown_name(name)

    def _other_branches(self) -> str:
        others = sorted(short_name(name) for name in self._refs.names() if name.startswith(f"{BRANCHES}/"))
        shown = ", ".join(others[:CANDIDATES_SHOWN]) + (", …" if len(others) > CANDIDATES_SHOWN else "")
        return f"; there are: {shown}" if others else ""

    def _refs_called(self, name: str) -> list[RefName]:
        """Full names that ``name`` may stand for, most preferred first."""
        if name == HEAD:
            return [branch_name(self._branch())]
        if is_full_name(name):
            return [RefName(name)]
        if problem_with(name) is not None:  # an id: no ref is called like one
            return []
        return [ref for ref in (RefName(f"{kind}/{name}") for kind in KINDS) if is_full_name(ref)]

    def _with_prefix(self, prefix: str) -> CommitId:
        if len(prefix) == 2 * ID_BYTES:
            commit = CommitId(from_hex(prefix))
            if self._commits.commit(commit) is None:
                raise self._not_found(f"no commit {prefix}")
            return commit
        known = list(self._commits.commits_with_prefix(prefix))
        found = sorted(reached_among(self._commits, self._refs.roots(), known)) if known else []
        if not found:
            raise self._unknown_name(prefix)
        if len(found) > 1:
            raise self._ambiguous(found)
        return found[0]

    # --- reflogs ---

    def _log_name(self, name: str | None) -> str:
        """Name of the log that ``name@{n}`` speaks of: that of a ref, or that a deleted ref left behind."""
        if name == HEAD and self._bound_branch is None:
            return HEAD
        if name in (None, HEAD):
            return branch_name(self._branch())
        called = self._refs_called(name)
        for ref in called:
            if self._refs.read(ref) is not None:
                return ref
        for ref in called:
            if self._refs.reflog(ref):
                return ref
        raise self._unknown_name(name)

    def _logged(self, log_name: str, back: int) -> CommitId:
        lines = self._refs.reflog(log_name)
        values = [line.new for line in lines] + [line.old for line in lines[-1:] if line.old is not None]
        noun = "HEAD" if log_name == HEAD else describe(RefName(log_name))
        if back >= len(values):
            raise self._not_found(f"the reflog of {noun} has {_counted(len(values), 'value')}")
        commit = values[back]
        if commit is None:
            raise self._not_found(f"{noun} had no commit then; @{{{back + 1}}} is what it held before")
        return commit

    # --- steps ---

    def _at_step(self, name: str | None, step: int) -> CommitId:
        tip = self._named(self._branch_ref() if name is None else name)
        steps = set()
        newest: CommitId | None = None
        for row in first_parents(self._commits, tip):
            if row.step == step:
                if not self._is_pruned(row.id):
                    return row.id
                newest = newest or row.id
            elif row.step is not None:
                steps.add(row.step)
        if newest is not None:
            return newest  # what asks for its content says that it was pruned
        where = f"branch {self._branch()!r}" if name is None else repr(name)
        nearest = sorted(sorted(steps, key=lambda other: abs(other - step))[:2])
        hint = f"; the nearest are {' and '.join(map(str, nearest))}" if nearest else ""
        raise self._not_found(f"no commit of step {step} on {where}{hint}", nearest=nearest)

    def _branch(self) -> str:
        return self._refs.head() if self._bound_branch is None else self._bound_branch

    def _branch_ref(self) -> RefName:
        return branch_name(self._branch())

    # --- moves ---

    def _moved(self, start: CommitId, move: Move) -> CommitId:
        if isinstance(move, Back):
            return self._back(start, move.count)
        if move.number == 0:
            return start
        parents = self._row(start).parents
        if move.number > len(parents):
            raise self._not_found(f"commit {short(start)} has {_counted(len(parents), 'parent')}")
        return parents[move.number - 1]

    def _back(self, start: CommitId, count: int) -> CommitId:
        commit = start
        for walked in range(count):
            parents = self._row(commit).parents
            if not parents:
                raise self._not_found(f"history ends {_counted(walked, 'commit')} before {short(start)}")
            commit = parents[0]
        return commit

    def _row(self, commit: CommitId) -> Row:
        row = self._commits.commit(commit)
        if row is None:
            raise self._not_found(f"commit {short(commit)} is not here")
        return row

    # --- errors ---

    def _not_found(self, problem: str, **details: object) -> NotFound:
        prefix = "" if repr(self._text) in problem else f"{self._text!r}: "
        return NotFound(prefix + problem, revision=self._text, **details)

    def _unknown_name(self, name: str) -> NotFound:
        kind, _, wanted = name.partition("/") if is_full_name(name) else ("", "", name)
        known = {short_name(ref) for ref in self._refs.names() if ref.startswith(kind)}
        there = sorted(name for name in known if name.endswith(f"/{wanted}"))  # of a remote, as a rule
        near = [f"{kind}/{other}".lstrip("/") for other in there or difflib.get_close_matches(wanted, sorted(known))]
        hint = f"; {did_you_mean(near)}" if near else ""
        noun = describe(RefName(name)) if kind else f"branch, tag or commit {name!r}"
        return self._not_found(f"no {noun}{hint}", near=near)

    def _ambiguous(self, found: Sequence[CommitId]) -> Ambiguous:
        lines = [self._candidate(commit) for commit in found[:CANDIDATES_SHOWN]]
        more = len(found) - len(lines)
        lines += [f"  and {more} more"] if more else []
        message = f"{self._text!r} begins the ids of {len(found)} commits; give more digits:\n" + "\n".join(lines)
        return Ambiguous(message, revision=self._text, candidates=[commit.hex() for commit in found])

    def _candidate(self, commit: CommitId) -> str:
        row = self._commits.commit(commit)
        step = "" if row is None or row.step is None else f" step {row.step}"
        return f"  {commit.hex()[:16]}{step}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
