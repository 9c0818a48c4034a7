"""The store and branch that a manager is bound to, and where a run takes up again."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from store.disk.descriptors import occupy_standard_streams
from store.errors import Conflict, MoonclipError, NotFound, StoreNotFound, WorkerEnded
from store.format.objects import Commit
from store.history.walks import first_parents
from store.ids import CommitId, from_hex, short
from store.naming.refnames import branch_name
from store.naming.refs import NotDurable
from store.opening.places import telling_what_is_in_the_way
from store.repository import DEFAULT_BRANCH, Repository
from store.saving.saver import SaveRequest

from .branches import branches_of, last_step, listed_for, settled_tip, tell_what_was_kept, telling_it_is_empty, tip_of

_log = logging.getLogger("moonclip")


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where to take up.

    Attributes:
        branch: branch to be bound to, short name.
        commit: commit to load, ``None`` if the branch has none yet.
        is_new: whether the branch is still to be made.
        is_named: whether a person named that very commit, so that no other will do if it is damaged.
    """

    branch: str
    commit: CommitId | None
    is_new: bool = False
    is_named: bool = False


class Binding:
    """A branch, and the commit on it that the next save comes after.

    The branch is chosen when the manager opens, resumes or switches. ``HEAD`` is read once, by who makes this.

    Attributes:
        branch: short name.
        tip: the last commit that was made or resumed from here: the next one's parent. The branch itself may have
            been moved by others; then the next save is refused.
        left: where the branch still is if that is damaged, and ``tip`` is what was resumed instead: the next save
            moves it from there.
        is_chosen: whether somebody named the branch when the manager was opened; else ``HEAD`` did.
    """

    def __init__(self, repo: Repository, branch: str, *, is_chosen: bool = False) -> None:
        self._repo = repo
        self.is_chosen = is_chosen
        self.branch = branch
        self.tip = settled_tip(repo, branch)
        self.left: CommitId | None = None
        self._is_taken_up = False

    def current(self) -> CommitId | None:
        """Where the branch is now; ``None`` before its first commit."""
        return tip_of(self._repo, self.branch)

    def bind(self, branch: str, tip: CommitId | None, left: CommitId | None = None) -> None:
        """Continue on ``branch`` after ``tip``, although the branch may be at ``left``."""
        self.branch, self.tip, self.left = branch, tip, left
        self._is_taken_up = True

    def doubt_the_step(self, step: int | None) -> None:
        """Warn of a first save that goes back behind the branch's tip, where nothing was resumed or chosen before it.

        Args:
            step: of the save that is about to be made; ``None`` if it has none.
        """
        if self._is_taken_up:
            return
        self._is_taken_up = True
        before = None if self.tip is None else last_step(self._repo, self.tip)
        if step is not None and before is not None and step < before:
            _log.warning(
                "branch %r is at step %d; this goes on from there with step %d: forgot resume()? For a run of its own,"
                " CheckpointManager(…, branch='new-name')",
                self.branch,
                before,
                step,
            )

    def line(self, branch: str, tip: CommitId) -> Iterator[CommitId]:
        """A branch's commits, newest first: its tip, and what came before.

        A commit that is lost may be all that names those before it: then the reflog says where the branch was.
        """
        seen = {tip}
        yield tip
        logged = (line.new for line in self._repo.refs.reflog(branch_name(branch)) if line.new is not None)
        for start in chain((tip,), logged):
            for commit in chain((start,), (row.id for row in first_parents(self._repo.lookup, start))):
                if commit not in seen:
                    seen.add(commit)
                    yield commit

    def follow(self, request: SaveRequest, error: BaseException) -> None:
        """After a save that failed: be where its branch is now, or all that come after it would fail.

        Args:
            request: the save.
            error: what ended it.
        """
        kept = error.details.get("kept") if isinstance(error, MoonclipError) else None
        if isinstance(error, MoonclipError) and kept is not None:
            self.bind(kept, CommitId(from_hex(error.details["commit"])))
        elif isinstance(error, NotDurable | WorkerEnded) or not isinstance(error, MoonclipError):
            self.adopt(request)

    def adopt(self, request: SaveRequest) -> None:
        """Go on from the commit that a save made, if the branch had moved to it by the time it failed.

        Else all later saves would be refused, as if somebody else had moved the branch.

        Args:
            request: the save.
        """
        with suppress(OSError, MoonclipError):  # the failure that is told is the save's own
            found = self.current()
            if found is None or found in (request.parent, request.left):
                return  # what was left behind looks like what a run makes that repeats its steps
            if _is_made_by(request, self._repo.commit(found)):
                self.bind(self.branch, found)

    def resume_point(self, rev: str | None, branch: str | None) -> ResumePoint:
        """Where ``resume(rev=…, branch=…)`` takes up. Changes nothing.

        A branch that was begun at that commit goes on from its tip: a script that begins one can be run again.

        Raises:
            NotFound: ``rev`` names nothing, or neither does ``branch``, in a store that has others.
            Conflict: it is not the tip of a branch to continue on, or the new branch exists elsewhere.
            Incompatible: ``branch`` is no legal name.
        """
        name = self.branch if branch is None else branch
        tip = settled_tip(self._repo, name)
        if rev is None:
            if tip is None:
                self._doubt_the_name(name, was_asked_for=branch is not None)
            else:
                tell_what_was_kept(self._repo, name, tip)
            return ResumePoint(name, tip)
        with telling_it_is_empty(self._repo):
            commit = self._repo.resolve(rev, self.branch)
        if commit == tip:
            return ResumePoint(name, tip, is_named=True)
        if branch is None:
            raise self._not_the_tip(rev, commit, tip)
        if tip is None:
            return ResumePoint(name, commit, is_new=True, is_named=True)
        if self._was_begun_at(name, commit):
            _log.warning("branch %r was begun at %s already, and goes on from its tip, %s", name, rev, short(tip))
            return ResumePoint(name, tip)
        raise Conflict(
            f"branch {name!r} exists and is at {short(tip)}, not at {rev!r} ({short(commit)}); continue it with"
            f" resume(branch={name!r}), or give a new branch another name",
            branch=name,
            expected=commit.hex(),
            got=tip.hex(),
        )

    def _was_begun_at(self, name: str, commit: CommitId) -> bool:
        """Whether a branch was made at a commit, as far as its reflog goes back."""
        lines = self._repo.refs.reflog(branch_name(name))
        made = next((line for line in lines if line.old is None), None)
        return made is not None and made.action == "branch" and made.new == commit

    def next_step(self, commit: CommitId) -> int:
        """One more than the step of ``commit``, or of the nearest commit before it that has one; else 0."""
        step = last_step(self._repo, commit)
        return 0 if step is None else step + 1

    def _doubt_the_name(self, name: str, *, was_asked_for: bool) -> None:
        """A name without a commit, beside branches that have some, may be a slip: a run would begin anew unnoticed.

        Who opens a manager on it may well mean a new experiment, so that is only said.
        """
        others = branches_of(self._repo)
        if not others:
            return
        known = listed_for(name, others)
        if was_asked_for:
            there = self.branch if self.branch in others else min(others)
            raise NotFound(
                f"no branch {name!r}; there are: {known}. To begin one at a commit, resume(rev={there!r},"
                f" branch={name!r}, …); to begin one at nothing, CheckpointManager(…, branch={name!r})",
                branch=name,
            )
        _log.warning("branch %r has no commit yet, so this run begins at step 0; the store has: %s", name, known)

    def _not_the_tip(self, rev: str, commit: CommitId, tip: CommitId | None) -> Conflict:
        at = "has no commit yet" if tip is None else f"is at {short(tip)}"
        return Conflict(
            f"{rev!r} is {short(commit)}, but branch {self.branch!r} {at}, and saves go on from a branch's tip. Either"
            f" branch off with resume(rev={rev!r}, branch='new-name', …), or only read it with load({rev!r}, into=…)",
            revision=rev,
            branch=self.branch,
            commit=commit.hex(),
        )


def _is_made_by(request: SaveRequest, commit: Commit) -> bool:
    """Whether a commit is what a save makes, as far as can be told without its content."""
    asked = (request.branch, request.step, request.message, request.metadata, {item.name for item in request.items})
    made = (commit.branch, commit.step, commit.message, commit.metadata, set(commit.items))
    return made == asked and commit.parents == (() if request.parent is None else (request.parent,))


def bound(root: Path, branch: str | None, thread_count: int | None) -> tuple[Repository, Binding]:
    """The store in a directory, made if there is none, and a binding to a branch of it.

    Args:
        root: the directory.
        branch: short name; the store's current one (``HEAD``) if ``None``.
        thread_count: see :func:`open_or_make`.

    Raises:
        Incompatible: the store needs a newer version, or ``branch`` is no legal name: then no store is made.
        OSError: there is no store and none could be made.
    """
    if branch is not None:
        branch_name(branch)
    occupy_standard_streams()
    repo = open_or_make(root, branch or DEFAULT_BRANCH, thread_count)
    try:
        return repo, Binding(repo, branch or repo.refs.head(), is_chosen=branch is not None)
    except BaseException:
        repo.close()
        raise


def open_or_make(root: Path, branch: str, thread_count: int | None) -> Repository:
    """Open the store in a directory, or make one. Two processes may try at once: one makes it, both have it.

    Args:
        root: the directory.
        branch: first branch of a store that is made.
        thread_count: threads that encode and decode; as many as there are CPUs if ``None``.

    Raises:
        Incompatible: the store needs a newer version, or ``branch`` is no legal name.
        OSError: it could not be made.
    """
    try:
        return Repository.open(root, thread_count=thread_count)
    except StoreNotFound:
        pass
    try:
        with telling_what_is_in_the_way(root.absolute()):
            return Repository.init(root, branch=branch, thread_count=thread_count)
    except Conflict:
        return Repository.open(root, thread_count=thread_count)
