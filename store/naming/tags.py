"""Putting tags on commits."""

import math
from typing import NamedTuple

from ..errors import Conflict
from ..history.conditions import number_of
from ..ids import CommitId
from ..repository import Repository
from .refnames import tag_name


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

    def beats(self, repo: Repository, commit: CommitId | None, tag: str) -> bool:
        """Whether it is better than a commit's number; than none at all, and than NaN or infinity, any is.

        Args:
            repo: the store.
            commit: the commit that the tag is on; ``None`` if there is no such tag.
            tag: short name.

        Raises:
            Conflict: the commit has no such number.
        """
        if commit is None:
            return True
        known = number_of(repo.commit(commit).metadata.get(self.key))
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
