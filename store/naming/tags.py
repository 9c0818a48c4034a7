"""Putting tags on commits."""

import math
from typing import Final, NamedTuple

from ..errors import Conflict
from ..format.values import Plain
from ..history.conditions import number_of
from ..ids import CommitId
from ..repository import Repository
from .refnames import tag_name

BEST_BY: Final = "best_by"
"""Metadata of commits that were the best: which way, and by what: ``lower val_loss``."""


class Better(NamedTuple):
    """A tag is moved if a number is better than that of the commit it is on, whoever may have moved it meanwhile.

    Attributes:
        key: what the number is called in metadata.
        number: the new commit's; finite.
        is_lower: whether the lower is the better; else the higher.
    """

    key: str
    number: float
    is_lower: bool

    def metadata(self) -> dict[str, Plain]:
        """What the new commit says of itself, so that whoever compares with it later does so the same way."""
        return {self.key: self.number, BEST_BY: _best_by(self.key, is_lower=self.is_lower)}

    def beats(self, repo: Repository, commit: CommitId | None, tag: str) -> bool:
        """Whether it is better than a commit's number; than none at all, and than NaN or infinity, any is.

        Args:
            repo: the store.
            commit: the commit that the tag is on; ``None`` if there is no such tag.
            tag: short name.

        Raises:
            Conflict: the commit has no such number, or was the best the other way round.
        """
        if commit is None:
            return True
        said = repo.commit(commit).metadata
        if said.get(BEST_BY) == _best_by(self.key, is_lower=not self.is_lower):
            raise Conflict(
                f"tag {tag!r} is on {commit.hex()[:8]}, which is the best by {said[BEST_BY]}, not the other way round;"
                " leave lower_is_better out to go on so, or give what is meant now a tag of its own (tag=…)",
                tag=tag,
                commit=commit.hex(),
            )
        known = number_of(said.get(self.key))
        if known is None:
            raise Conflict(
                f"tag {tag!r} is on {commit.hex()[:8]}, which says nothing of {self.key!r}, so none is known to be"
                " better; give it a tag of its own (tag=…), or delete this one",
                tag=tag,
                commit=commit.hex(),
            )
        if not math.isfinite(known):
            return True
        return self.number < known if self.is_lower else self.number > known


def is_lower_better(repo: Repository, commit: CommitId | None, key: str) -> bool | None:
    """Which way a commit was the best by a number; ``None`` if there is none, or it does not say.

    Args:
        repo: the store.
        commit: the commit.
        key: what the number is called in metadata.
    """
    said = None if commit is None else repo.commit(commit).metadata.get(BEST_BY)
    return next((is_lower for is_lower in (True, False) if said == _best_by(key, is_lower=is_lower)), None)


def _best_by(key: str, *, is_lower: bool) -> str:
    return f"{'lower' if is_lower else 'higher'} {key}"


def set_tag(repo: Repository, name: str, commit: CommitId, *, overwrite: bool | Better) -> None:
    """Put a tag on a commit.

    Args:
        repo: the store.
        name: short name.
        commit: the commit.
        overwrite: move the tag if it exists; or only if the commit is better than what it is on.

    Raises:
        Conflict: it exists and is not to be moved.
        Incompatible: no legal name.
    """
    if isinstance(overwrite, Better):
        _overtake(repo, name, commit, overwrite)
        return
    if not overwrite:
        require_free_tag(repo, name)
    ref = tag_name(name)
    repo.set_ref(ref, repo.refs.read(ref) if overwrite else None, commit, "tag")


def _overtake(repo: Repository, name: str, commit: CommitId, better: Better) -> None:
    ref = tag_name(name)
    before = repo.refs.read(ref)
    while better.beats(repo, before, name):
        try:
            repo.set_ref(ref, before, commit, "tag")
        except Conflict:
            now = repo.refs.read(ref)
            if now == before:
                raise
            before = now  # somebody was faster: is it still better?
        else:
            return


def require_free_tag(repo: Repository, name: str) -> None:
    """Raise unless a tag can be made.

    Raises:
        Conflict: it exists.
        Incompatible: no legal name.
    """
    if repo.refs.read(tag_name(name)) is not None:
        raise Conflict(f"tag {name!r} exists; choose another name or pass overwrite=True to move it", tag=name)
