"""Which commit of a store an import comes from, and which stored tensor each of its own resembles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from store.format.entries import TensorEntry
from store.format.values import Plain
from store.ids import CommitId
from store.repository import Repository
from store.saving.inputs import ItemInput

from . import lineage
from .lineage import How
from .models import Shelf, named_model
from .pairing import Key
from .spots import wanted_of

if TYPE_CHECKING:
    from .choosing import Choice, Chooser
    from .sampling import Contender

SEARCH: Final = "search"
"""Asks for the nearest of all commits."""

Asked = CommitId | Literal["search"] | None


@dataclass(frozen=True, slots=True)
class Found:
    """What an import comes from.

    Attributes:
        commit: the base; ``None`` if there is none.
        how: how it was found.
        pairs: of each imported tensor the stored one that it resembles, by item and name.
        looked_at: how many commits were compared.
        raw_bytes: bytes of the imported tensors.
        alone_bytes: what they are expected to take encoded, if nothing else were stored; 0 if nothing was sampled.
        against_bytes: and what with this base.
    """

    commit: CommitId | None = None
    how: How = How.NONE
    pairs: Mapping[Key, TensorEntry] = field(default_factory=dict)
    looked_at: int = 0
    raw_bytes: int = 0
    alone_bytes: int = 0
    against_bytes: int = 0

    @property
    def saved_bytes(self) -> int:
        """What the base is expected to save."""
        return self.alone_bytes - self.against_bytes

    def metadata(self) -> dict[str, Plain]:
        """What to keep with the commit; nothing if there is no base."""
        if self.commit is None:
            return {}
        share = self.against_bytes / self.alone_bytes if self.alone_bytes else 1.0
        return lineage.metadata(self.commit, self.how, share)


def base_for(repo: Repository, items: Sequence[ItemInput], asked: Asked) -> Found:
    """Find what an import comes from. Reads trees, a few chunks, and a little of the import; writes nothing.

    Args:
        repo: the store.
        items: what is to be imported.
        asked: the commit that a person named; ``"search"`` for the nearest of all; ``None`` for no base.

    Returns:
        The base that was named, whatever it saves; or the nearest, if it leaves at most 0.9 of what the import would
        take alone. Of commits that are as near it is the oldest. A commit that cannot be read, or would have to be
        fetched, is passed over.

    Raises:
        NotFound: there is no commit that was named, or it was pruned.
        Corrupt: it is damaged; or a file of the import is not what it should be.
        RemoteError: the remote failed that has what was named.
        OSError: reading the import failed.
    """
    wanted = wanted_of(items)
    raw_bytes = sum(tensor.size_bytes for tensor in wanted)
    if asked is None:
        return Found(raw_bytes=raw_bytes)
    from .choosing import Chooser  # which needs NumPy: listings of families do not

    chooser = Chooser(wanted, repo.threads)
    if isinstance(asked, bytes):
        contender = chooser.paired(named_model(repo, asked))
        repo.bring(contender.pairs.values())
        return _found(contender, chooser.measured(contender), How.NAMED, 1, raw_bytes)
    choice, looked_at = searched(Shelf(repo), chooser)
    if choice is None or not choice.is_worth_it:
        return Found(looked_at=looked_at, raw_bytes=raw_bytes)
    return _found(choice.contender, choice, How.SEARCHED, looked_at, raw_bytes)


def searched(shelf: Shelf, chooser: "Chooser") -> tuple["Choice | None", int]:
    """The nearest of a store's models, and how many were looked at. Raises as :func:`base_for` does for an import."""
    models = shelf.models()
    choice, looked_at = chooser.nearest(models), len(models)
    while choice is not None and (more := shelf.around(choice.contender.model)):
        looked_at += len(more)
        models = sorted([choice.contender.model, *more], key=lambda model: model.order)
        nearer = chooser.nearest(models)
        if nearer is None or nearer.contender.model is choice.contender.model:
            break
        choice = nearer
    return choice, looked_at


def _found(contender: "Contender", choice: "Choice | None", how: How, looked_at: int, raw_bytes: int) -> Found:
    """What was found; nothing is promised of a base that cannot be read."""
    saved = (0, 0) if choice is None else (round(choice.estimate.alone_bytes), round(choice.estimate.against_bytes))
    return Found(contender.model.commit, how, contender.pairs, looked_at, raw_bytes, *saved)
