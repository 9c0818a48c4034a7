"""Loading and resuming by several ranks: rank 0 says which commit, and either all of them take it or none goes on."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from store.errors import Corrupt, MoonclipError, NotFound, Pruned
from store.format.canonical import Node
from store.format.objects import Commit
from store.ids import CommitId, from_hex
from store.limits import LAST_GOOD_COMMITS
from store.naming.refnames import branch_name
from store.repository import Repository

from ..loading.lastgood import Resumed, Skipped
from ..loading.load import Wanted, load
from ..saving.binding import Binding
from ..state.policy import Policy
from .messages import error_of, told
from .taking import taken_by_all
from .talk import Talk


class Taken(NamedTuple):
    """What a resume came to.

    Attributes:
        resumed: which commit was loaded, and which were skipped.
        next_step: the next step.
    """

    resumed: Resumed
    next_step: int


def commit_for_all(talk: Talk, repo: Repository, resolve: Callable[[], CommitId]) -> Commit:
    """The commit that rank 0 finds, once every rank has read it: what follows is collective.

    Args:
        talk: decisions of all ranks.
        repo: the store.
        resolve: finds it, on rank 0.

    Raises:
        NotFound: it finds none.
        MoonclipError: a rank cannot read it, on all ranks.
        RankLost: another rank ended.
    """
    commit = CommitId(from_hex(talk.decide(lambda: resolve().hex())))
    found: list[Commit] = []
    talk.exchange(lambda: found.append(repo.commit(commit)), lambda said: said)
    return found[0]


def resume_together(
    talk: Talk,
    repo: Repository,
    binding: Binding,
    rev: str | None,
    branch: str | None,
    wanted: Wanted,
    policy: Policy,
    bring: Callable[[Sequence[str]], None],
) -> Taken:
    """Take up at the newest commit that every rank can load, and bind all of them to its branch.

    Args:
        talk: decisions of all ranks.
        repo: the store.
        binding: this rank's.
        rev: the commit; the branch's tip if ``None``. Only then, and if names have to agree exactly, an older one is
            taken where that is damaged: it overwrites all that was read of the damaged one.
        branch: the branch; the bound one if ``None``.
        wanted: what of the commit, and where to.
        policy: what decoding may do.
        bring: on rank 0, gets what an empty store lacks of some items from a remote, if there is one.

    Raises:
        MoonclipError: what keeps any rank from it, on all ranks. Tensors may be partly written.
    """

    def begin(said: Sequence[Node]) -> list[Node]:
        bring(list(dict.fromkeys(item for items in said for item in items)))
        point = binding.resume_point(rev, branch)
        line = [] if point.commit is None else [point.commit]
        if point.commit is not None and not point.is_named and wanted.strict:
            line = list(islice(binding.line(point.branch, point.commit), LAST_GOOD_COMMITS))
        found = {"branch": point.branch, "line": [each.hex() for each in line], "is_new": point.is_new}
        return [found] * talk.group.world_size

    chosen = talk.exchange(lambda: list(wanted.into or ()), begin)
    line = [CommitId(from_hex(each)) for each in chosen["line"]]
    if not line:
        binding.bind(chosen["branch"], None)
        return Taken(Resumed(), 0)
    wanted = replace(wanted, elsewhere=taken_by_all(talk, wanted.into or {}, policy))
    found, skipped = _newest_good(talk, repo, line, wanted, policy)

    def bind() -> Node:
        if chosen["is_new"]:
            repo.set_ref(branch_name(chosen["branch"]), None, found, "branch", f"resumed at {rev}")
        return binding.next_step(found)

    next_step: int = talk.decide(bind)
    binding.bind(chosen["branch"], found, left=line[0] if skipped else None)
    return Taken(Resumed(found.hex(), tuple(skipped)), next_step)


def _newest_good(
    talk: Talk, repo: Repository, line: Sequence[CommitId], wanted: Wanted, policy: Policy
) -> tuple[CommitId, list[Skipped]]:
    skipped: list[Skipped] = []
    first: MoonclipError | None = None
    for commit_id in line:

        def attempt(commit_id: CommitId = commit_id) -> Node:
            try:
                load(repo, repo.commit(commit_id), wanted, policy)
            except (Corrupt, NotFound) as damage:
                if isinstance(damage, Pruned) and not skipped:
                    raise
                return told(damage, talk.group.rank)
            return None

        failed = talk.exchange(attempt, _worst)
        if failed is None:
            return commit_id, skipped
        error = error_of(failed)
        first = first or error
        skipped.append(Skipped(commit_id.hex(), str(error)))
    assert first is not None
    raise first


def _worst(outcomes: Sequence[Node]) -> list[Node]:
    return [next((each for each in outcomes if each is not None), None)] * len(outcomes)
