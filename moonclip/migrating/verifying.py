"""Whether a commit holds just what was to be saved: every bit of every tensor, read back from the store."""

from collections.abc import Iterator, Mapping
from typing import Final

from store.errors import Corrupt
from store.format import values
from store.format.entries import ContainerEntry, Entry, TensorEntry, ValueEntry
from store.ids import CommitId
from store.repository import Repository

from ..loading.stored import full_name
from ..state.entries import FlatContainer, FlatEntry, FlatState, FlatTensor, FlatValue

_SHOWN: Final = 5


def verify(repo: Repository, commit_id: CommitId, states: Mapping[str, FlatState]) -> None:
    """Read a commit and compare it with what it was made of.

    Args:
        repo: the store.
        commit_id: the commit.
        states: what it was made of, by item.

    Raises:
        Corrupt: something differs; the message names it.
        NotFound: a chunk is missing.

    Memory: the largest tensor, twice.
    """
    commit = repo.commit(commit_id)
    differing = sorted(commit.items.keys() ^ states.keys())
    for item in commit.items.keys() & states.keys():
        tree = repo.tree(commit, item)
        differing += _differing(repo, item, states[item], dict(tree))
        if _groups(tree.ties) != _groups(states[item].ties):
            differing.append(f"{item}: which names are one tensor")
    if differing:
        raise Corrupt(
            f"what was read back is not what was to be stored: {', '.join(sorted(differing)[:_SHOWN])}; the branch is"
            " where it was; run `moonclip fsck --full`, and look after the disk",
            commit=commit_id.hex(),
            names=differing,
        )


def _differing(repo: Repository, item: str, state: FlatState, stored: Mapping[str, Entry]) -> Iterator[str]:
    for name in state.entries.keys() | stored.keys():
        entry, kept = state.entries.get(name), stored.get(name)
        if entry is None or kept is None or not _is_same(repo, entry, kept):
            yield full_name(item, name)


def _is_same(repo: Repository, entry: FlatEntry, kept: Entry) -> bool:
    if isinstance(entry, FlatTensor) and isinstance(kept, TensorEntry):
        source = entry.source
        if (source.dtype, source.shape, None) != (kept.dtype, kept.shape, kept.stored):
            return False
        expected = bytearray(source.size_bytes)
        source.copy_into(memoryview(expected))
        return expected == repo.read_tensor(kept)
    if isinstance(entry, FlatValue) and isinstance(kept, ValueEntry):
        return values.encode(entry.value) == values.encode(repo.read_value(kept))
    if isinstance(entry, FlatContainer) and isinstance(kept, ContainerEntry):
        return entry.container == kept.container and values.encode(entry.info) == values.encode(kept.info)
    return False


def _groups(ties: tuple[tuple[str, ...], ...]) -> set[frozenset[str]]:
    return {frozenset(names) for names in ties}
