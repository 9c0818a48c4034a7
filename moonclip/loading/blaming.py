"""Damage, told by what people know: which tensors of which commit it has hit."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from store.errors import Corrupt, MoonclipError, NotFound
from store.format.entries import TensorEntry, ValueEntry
from store.format.objects import Commit
from store.ids import ChunkId, short
from store.repository import Repository

from .stored import full_name

_NAMED: Final = 5
"""Names in one message; a lost pack may hit all there are."""


@contextmanager
def telling_what_is_hit(repo: Repository, commit: Commit) -> Iterator[None]:
    """Put in front of what an error says about a chunk which tensors of a commit that is being read need it.

    Raises:
        Corrupt: as it was raised inside, and so is NotFound.
    """
    try:
        yield
    except (Corrupt, NotFound) as error:
        names = _hit(repo, commit, error.details.get("object"))
        if type(error) not in {Corrupt, NotFound} or not names:
            raise
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        whose = f"commit {short(commit.id)}, {', '.join(names[:_NAMED])}{more}"
        raise type(error)(
            f"{whose}: {error}", **{**error.details, "commit": commit.id.hex(), "names": names}
        ) from error


def _hit(repo: Repository, commit: Commit, object_id: str | None) -> list[str]:
    """Names of what needs a chunk, or one stored against it, or one that is lost too. None where nobody can tell."""
    if object_id is None:
        return []
    with suppress(MoonclipError, OSError):  # what was met first is what is told
        chunks = {full_name(item, name): of for item in repo.items(commit) for name, of in _chunks(repo, commit, item)}
        wanted = {chunk for of in chunks.values() for chunk in of}
        chains = repo.reader.chains(wanted)
        hit = {chunk for chunk, chain in chains.items() if any(link.id.hex() == object_id for link in chain)}
        hit |= wanted - chains.keys()
        return [name for name, of in chunks.items() if not hit.isdisjoint(of)]
    return []


def _chunks(repo: Repository, commit: Commit, item: str) -> Iterator[tuple[str, Collection[ChunkId]]]:
    for name, entry in repo.tree(commit, item):
        if isinstance(entry, TensorEntry | ValueEntry):
            yield name, entry.chunks
