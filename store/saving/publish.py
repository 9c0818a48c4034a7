"""The order in which a save becomes a commit that people see.

1. a lease is held from before the first pack exists until the ref is durable;
2. packs are made durable under their names;
3. one index transaction: everything the commit reaches is here; then places and commit are added;
4. reflog line, then compare-and-swap of the ref file: the single commit point.

A crash between any two steps leaves the old state, and packs that nothing refers to. docs/format.md §8 has the table.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from ..errors import Conflict, Corrupt, Incompatible
from ..format.objects import Commit, TreeNode
from ..format.pack import PackTable
from ..ids import SHORT_HEX, CommitId, ObjectId, PackId, TreeId, short
from ..index import BasesMissing, CommitRow, IndexWriter, Place, Version
from ..naming.refnames import branch_name
from ..naming.refs import RefStore
from ..reading.closure import missing_objects
from ..reading.lookup import Index

Approve = Callable[[CommitId], None]
"""Told of a commit that is durable and that nobody sees yet. What it raises keeps the branch from moving there."""

_KEPT_NAME_LENGTH = 40
"""A branch's name may be as long as a name can be: what is put behind it must still fit, also in four-byte letters."""


_HEX = frozenset("0123456789abcdef")


class HolesFound(Exception):
    """Something the commit needs was swept since it was found stored. Internal: the save stores it again.

    Attributes:
        packs: those that are gone, or hold a delta whose base is, or has become too deep.
        objects: what else is gone.
    """

    def __init__(self, message: str, *, packs: Sequence[PackId] = (), objects: Sequence[ObjectId] = ()) -> None:
        super().__init__(message)
        self.packs = frozenset(packs)
        self.objects = frozenset(objects)


class Added(NamedTuple):
    """What a save has added to the index.

    Attributes:
        places: of its objects; one of each.
        version: of the index since then; ``None`` if copies were found damaged meanwhile.
    """

    places: Mapping[ObjectId, tuple[Place]]
    version: Version | None


def add_to_index(
    index: Index,
    tables: Sequence[PackTable],
    is_there: Callable[[PackId], bool],
    commit: Commit,
    load: Callable[[TreeId], TreeNode],
    closed: Callable[[], Collection[TreeId]],
) -> Added:
    """Step 3: add the packs' places and the commit, in one transaction, if the commit is closed.

    Args:
        index: the index.
        tables: packs that hold the new objects.
        is_there: whether a pack has its name; gc may just have taken away one with the same content.
        commit: the commit; its object is in one of the packs.
        load: reads a tree object.
        closed: gives the trees of its parents that have to be whole. Asked within the transaction: one that is pruned
            before may be swept already, one that is pruned after keeps its objects, as this commit has them by then.

    Returns:
        What was added.

    Raises:
        HolesFound: a tree, chunk, pack or delta base is gone. Nothing was added.
    """

    def add(writer: IndexWriter) -> Added:
        # All of them are tried, so that whoever has to store something again is told at once.
        places: dict[ObjectId, tuple[Place]] = {}
        lost: list[PackId] = []
        for table in tables:
            added = _added(writer, table) if is_there(table.id) else None
            if added is None:
                lost.append(table.id)
            else:
                places |= added
        if lost:
            raise HolesFound(f"{len(lost)} packs are gone, or what they are stored against is", packs=lost)
        missing = missing_objects(commit.items.values(), load, writer.lacking, closed())
        if missing:
            raise HolesFound(f"{len(missing)} objects of the commit are gone", objects=missing)
        writer.add_commit(row_of(commit))
        return Added(places, writer.version)

    return index.write(add)


def _added(writer: IndexWriter, table: PackTable) -> dict[ObjectId, tuple[Place]] | None:
    """Add a pack's places and say which; ``None`` if a delta lacks its base or would be too deep by now."""
    try:
        return writer.add_pack(table.id, table.entries)
    except (BasesMissing, Incompatible):
        return None


def _keep(refs: RefStore, branch: str, commit: CommitId, message: str) -> str:
    """Put a branch of its own on a commit; returns its short name."""
    kept = f"{branch[:_KEPT_NAME_LENGTH]}+{short(commit)}"
    try:
        refs.update(branch_name(kept), None, commit, action="save", message=message)
    except Conflict:  # what is above it is a branch by now: only a name without directories is free for sure
        kept = kept.replace("/", "-")
        refs.update(branch_name(kept), None, commit, action="save", message=message)
    return kept


def is_kept_for(branch: str, name: str) -> bool:
    """Whether ``name`` is as those are under which commits are kept that could not go to ``branch``. Both short.

    Others may have such a name too: the commit that it ends in says for which branch it was made.
    """
    before, plus, ending = name.rpartition("+")
    wanted = branch[:_KEPT_NAME_LENGTH]
    is_short_id = len(ending) == SHORT_HEX and set(ending) <= _HEX
    return bool(plus) and before in (wanted, wanted.replace("/", "-")) and is_short_id


def row_of(commit: Commit) -> CommitRow:
    """What the index keeps of a commit; its sequence is given when it is added."""
    return CommitRow(commit.id, commit.parents, commit.step, commit.time_ns, commit.branch, sequence=0)


def move_branch(refs: RefStore, branch: str, expected: CommitId | None, commit: CommitId, message: str) -> None:
    """Step 4: move the branch from ``expected`` to the commit. Whoever has to approve of it did so before.

    Raises:
        Conflict: the branch is elsewhere by now.
        Corrupt: its file is damaged. In both cases the commit is kept on a branch of its own, which the error names.
        NotDurable: it moved, but the disk failed to make that durable.
        OSError: writing failed; the branch is where it was.
    """
    try:
        refs.update(branch_name(branch), expected, commit, action="save", message=message)
    except (Conflict, Corrupt) as error:
        kept = _keep(refs, branch, commit, message)
        why, ways = _told(error, branch, kept)
        raise type(error)(
            f"branch {branch!r} cannot be moved to this commit: {why}. The commit is kept as branch {kept!r}; {ways}",
            **{**error.details, "branch": branch, "kept": kept, "commit": commit.hex()},
        ) from error


def _told(error: Conflict | Corrupt, branch: str, kept: str) -> tuple[str, str]:
    """Why a branch could not be moved, and what to do. That it is elsewhere by now was somebody else's doing."""
    before, now = error.details.get("expected"), error.details.get("got")
    if not isinstance(error, Conflict) or "expected" not in error.details or now is None:
        return str(error), f"look at `moonclip log {kept}`, then continue from there or save again"
    was = "had no commit" if before is None else f"was at {before[:8]}"
    why = f"somebody else saved to it meanwhile, or moved it (it {was}, and is at {now[:8]} now)"
    look = f"look at `moonclip log --graph {branch} {kept}`"
    move = f"have {branch!r} go on from this commit with `moonclip reset --branch {branch} {kept}`"
    return why, f"{look}, then go on from either, or {move}"
