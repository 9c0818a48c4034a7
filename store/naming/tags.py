"""Putting tags on commits."""

from ..errors import Conflict
from ..ids import CommitId
from ..repository import Repository
from .refnames import tag_name


def set_tag(repo: Repository, name: str, commit: CommitId, *, overwrite: bool) -> None:
    """Put a tag on a commit.

    Args:
        repo: the store.
        name: short name.
        commit: the commit.
        overwrite: move the tag if it exists.

    Raises:
        Conflict: it exists and is not to be moved.
        Incompatible: no legal name.
    """
    if not overwrite:
        require_free_tag(repo, name)
    ref = tag_name(name)
    repo.set_ref(ref, repo.refs.read(ref) if overwrite else None, commit, "tag")


def require_free_tag(repo: Repository, name: str) -> None:
    """Raise unless a tag can be made.

    Raises:
        Conflict: it exists.
        Incompatible: no legal name.
    """
    if repo.refs.read(tag_name(name)) is not None:
        raise Conflict(f"tag {name!r} exists; choose another name or pass overwrite=True to move it", tag=name)
