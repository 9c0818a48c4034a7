"""Other tools' checkpoints as a commit, and what it comes from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from store.errors import Conflict, Corrupt
from store.history.walks import first_parents
from store.ids import CommitId
from store.naming.refnames import branch_name
from store.repository import Repository
from store.saving.ingest import Counts
from store.saving.inputs import ItemInput
from store.saving.saver import SaveRequest
from store.saving.underway import saving

from ..families import SEARCH, against, base_for
from ..families import Found as Base
from . import filesout
from .listing import require_unchanged
from .readings import KeptFile, reading_ahead
from .sources import Source

_NO_BASE: Final = "none"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to import, and where.

    Attributes:
        sources: what becomes one commit together.
        branch: branch to commit on, short name; made if it does not exist.
        message: what a person says of it.
        step: training step, if there is one.
        base: the commit that it comes from, as a person named it; ``"search"`` for the nearest that the store has;
            ``None`` for none.
    """

    sources: Sequence[Source]
    branch: str
    message: str = ""
    step: int | None = None
    base: CommitId | Literal["search"] | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import made.

    Attributes:
        commit: the commit.
        base: what it comes from, and what that was expected to save.
        counts: what was stored.
    """

    commit: CommitId
    base: Base
    counts: Counts


def import_files(
    repo: Repository,
    items: Sequence[ItemInput],
    wanted: Wanted,
    files: Sequence[KeptFile] = (),
    base: Base | None = None,
) -> Imported:
    """Commit what files hold, after what the branch holds now.

    On a new branch it comes after its base; on one that exists the base is a further parent. Before anybody sees it,
    it is made sure that each of the files comes back: what is stored has to be what was hashed with it.

    Args:
        repo: the store.
        items: as :func:`items_of` found them.
        wanted: where to commit them.
        files: files that have to come back as they are, and must not have changed since they were looked at. They are
            hashed while items are stored.
        base: what they come from, if that was found already.

    Raises:
        Incompatible: something that cannot be stored.
        Corrupt: a file is not what its header says. Refs are as before.
        Conflict: the branch moved meanwhile, or a file was changed.
        NotFound: there is no such base, or it was pruned.
        ReadOnly: the store cannot be written from here.
        RemoteError: the remote failed that has the base.
        OSError: reading or writing failed.

    Cost: memory of one chunk, and what is made of it, for each thread. A shard that was written with other strides than
    those of C order is read whole.
    """
    repo.require_writable()
    tip = repo.refs.read(branch_name(wanted.branch))
    base = base or base_for(repo, items, wanted.base)
    request = SaveRequest(
        items=against(items, base.pairs),
        branch=wanted.branch,
        parent=tip,
        step=wanted.step,
        message=wanted.message or f"Import of {', '.join(source.name for source in wanted.sources)}",
        metadata=base.metadata(),
        merged=() if base.commit is None or base.commit in _line(repo, tip) else (base.commit,),
    )

    found = [file.found for file in files]

    def approve(commit: CommitId) -> None:
        if files:
            filesout.verify(repo, repo.commit(commit), {file.name: file.chunks for file in files})
        require_unchanged(found, repo.files)

    with saving(repo.layout.root, repo.files, wanted.branch), reading_ahead(files, repo.threads.count):
        try:
            saved = repo.save(request, approve)
        except (Conflict, Corrupt):
            require_unchanged(found, repo.files)  # which says more of why
            raise
    return Imported(saved.commit, base, saved.counts)


class Searching:
    """The search for what an import comes from, for :func:`given_in` to do before it reads files.

    Args:
        repo: the store.
        wanted: what to import.

    Attributes:
        found: what it comes from, once that was looked for.
    """

    def __init__(self, repo: Repository, wanted: Wanted) -> None:
        self._repo = repo
        self._wanted = wanted
        self.found: Base | None = None

    def __call__(self, items: Sequence[ItemInput]) -> list[ItemInput]:
        """Look for it, and give the items again, which say now what they resemble. Raises as ``base_for`` does."""
        self.found = base_for(self._repo, items, self._wanted.base)
        return against(items, self.found.pairs)


def named_base(repo: Repository, text: str) -> CommitId | Literal["search"] | None:
    """The base that a person asks for: a revision, ``"search"`` or ``"none"``.

    Raises:
        NotFound: it names nothing.
        Ambiguous: it may be several commits.
        Incompatible: it is no revision.
    """
    if text == SEARCH:
        return "search"
    return None if text == _NO_BASE else repo.resolve(text)


def _line(repo: Repository, tip: CommitId | None) -> Iterator[CommitId]:
    """Commits that led to a tip, as far as anybody asks."""
    return iter(()) if tip is None else (row.id for row in first_parents(repo.lookup, tip))
