"""The store and branch that a manager is bound to, and where a run takes up again."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from store.errors import Conflict, MoonclipError, NotFound, StoreNotFound
from store.history import first_parents
from store.ids import CommitId, short
from store.objects import Commit
from store.refnames import BRANCHES, RefName, branch_name, short_name
from store.repository import DEFAULT_BRANCH, Repository
from store.saving import SaveRequest


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where to take up.

    Attributes:
        branch: branch to be bound to, short name.
        commit: commit to load, ``None`` if the branch has none yet.
        is_new: whether the branch is still to be made.
    """

    branch: str
    commit: CommitId | None
    is_new: bool = False


class Binding:
    """A branch, and the commit on it that the next save comes after.

    The branch is chosen when the manager opens, resumes or switches. ``HEAD`` is read once, by who makes this.

    Attributes:
        branch: short name.
        tip: the last commit that was made or resumed from here: the next one's parent. The branch itself may have
            been moved by others; then the next save is refused.
    """

    def __init__(self, repo: Repository, branch: str) -> None:
        self._repo = repo
        self.branch = branch
        self.tip = self.current()

    def current(self) -> CommitId | None:
        """Where the branch is now; ``None`` before its first commit."""
        return tip_of(self._repo, self.branch)

    def bind(self, branch: str, tip: CommitId | None) -> None:
        """Continue on ``branch`` after ``tip``."""
        self.branch, self.tip = branch, tip

    def adopt(self, request: SaveRequest) -> None:
        """After a save that failed: if the branch had moved to its commit by then, go on from there.

        Else all later saves would be refused, as if somebody else had moved the branch.

        Args:
            request: the save.
        """
        with suppress(OSError, MoonclipError):  # the failure that is told is the save's own
            found = self.current()
            if found is not None and found != request.parent and _is_made_by(request, self._repo.commit(found)):
                self.tip = found

    def resume_point(self, rev: str | None, branch: str | None) -> ResumePoint:
        """Where ``resume(rev=…, branch=…)`` takes up. Changes nothing.

        Raises:
            NotFound: ``rev`` names nothing.
            Conflict: it is not the tip of a branch to continue on, or the new branch exists elsewhere.
            Incompatible: ``branch`` is no legal name.
        """
        name = self.branch if branch is None else branch
        tip = tip_of(self._repo, name)
        if rev is None:
            return ResumePoint(name, tip)
        commit = self._repo.resolve(rev, self.branch)
        if commit == tip:
            return ResumePoint(name, tip)
        if branch is None:
            raise self._not_the_tip(rev, commit, tip)
        if tip is None:
            return ResumePoint(name, commit, is_new=True)
        raise Conflict(
            f"branch {name!r} exists and is at {short(tip)}, not at {rev!r} ({short(commit)}); continue it with"
            f" resume(branch={name!r}), or give a new branch another name",
            branch=name,
            expected=commit.hex(),
            got=tip.hex(),
        )

    def next_step(self, commit: CommitId) -> int:
        """One more than the step of ``commit``, or of the nearest commit before it that has one; else 0."""
        step = last_step(self._repo, commit)
        return 0 if step is None else step + 1

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


def tip_of(repo: Repository, branch: str) -> CommitId | None:
    """The commit of a branch, by short name; ``None`` if there is no such branch yet."""
    return repo.refs.read(branch_name(branch))


def branches_of(repo: Repository) -> dict[str, CommitId]:
    """All branches, by short name."""
    return {short_name(RefName(name)): commit for name, commit in repo.refs.list(f"{BRANCHES}/").items()}


def require_branch(repo: Repository, branch: str) -> CommitId:
    """The commit of a branch that has to exist.

    Raises:
        NotFound: it does not; the message lists those that do.
    """
    tip = tip_of(repo, branch)
    if tip is None:
        known = ", ".join(sorted(branches_of(repo))) or "none"
        raise NotFound(f"no branch {branch!r}; there are: {known}; make it with branch({branch!r})", branch=branch)
    return tip


def last_step(repo: Repository, commit: CommitId) -> int | None:
    """The step of a commit, or of the nearest one before it that has one."""
    return next((row.step for row in first_parents(repo.lookup, commit) if row.step is not None), None)


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
    repo = open_or_make(root, branch or DEFAULT_BRANCH, thread_count)
    try:
        return repo, Binding(repo, branch or repo.refs.head())
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
        return Repository.init(root, branch=branch, thread_count=thread_count)
    except Conflict:
        return Repository.open(root, thread_count=thread_count)
