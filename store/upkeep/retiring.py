"""Taking a pack away of which the index has no place left.

A writer may be making a pack of just the same bytes, and so of the same name, at this very moment. It looks within the
transaction that indexes its packs whether they are there; we take the name away within one of ours. So either the
writer's is there and indexed, and stays, or the writer finds that it went, and stores its objects again.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ..disk.files import Files
from ..ids import ObjectId, PackId
from ..index import IndexWriter
from ..layout import Layout
from ..reading.lookup import Index
from ..reading.packs import PackStore, pack_path
from ..saving.leases import Lease, living_leases


class Store(Protocol):
    """What this takes of a store; ``store.repository.Repository`` has it."""

    index: Index
    layout: Layout
    files: Files
    packs: PackStore


def retire_pack(store: Store, lease: Lease, pack: PackId, object_ids: Collection[ObjectId]) -> bool:
    """Forget and remove a pack, as :func:`take_away` does, and close it here."""
    is_gone = take_away(store.index, store.layout, store.files, lease, pack, object_ids)
    if is_gone:
        store.packs.forget(pack)
    return is_gone


def take_away(
    index: Index, layout: Layout, files: Files, lease: Lease, pack: PackId, object_ids: Collection[ObjectId]
) -> bool:
    """Forget and remove a pack, unless a place refers to it or another living writer names it.

    Args, result and errors are those of :func:`move_away`, without where to.
    """
    aside = layout.packs / f"tmp-{lease.name}-{int.from_bytes(pack)}"

    def rename(path: Path) -> Path:
        files.rename_durable(path, aside)
        return aside

    is_gone = move_away(index, layout, files, lease, pack, object_ids, rename)
    if is_gone and files.exists(aside):
        files.remove(aside)
    return is_gone


def move_away(
    index: Index,
    layout: Layout,
    files: Files,
    lease: Lease,
    pack: PackId,
    object_ids: Collection[ObjectId],
    move: Callable[[Path], Path],
) -> bool:
    """Forget a pack and move its file, unless a place refers to it or another living writer names it.

    For the holder of ``gc.lock``, and for whoever made the pack under ``lease``.

    Args:
        index: the index, which may not know the pack.
        layout: where things lie.
        files: does the I/O.
        lease: the caller's: whatever it leaves if it dies bears that name.
        pack: the pack.
        object_ids: all that its table names.
        move: gives its file another name, durably, and says which.

    Returns:
        Whether it is gone.

    Raises:
        OSError: the disk failed. The pack is there, or is forgotten and perhaps not removed.
    """
    path = pack_path(layout.packs, pack)
    moved: list[Path] = []

    def forget(writer: IndexWriter) -> bool:
        others = [each for each in living_leases(layout.root, files) if each.name != lease.name]
        if any(pack in each.packs for each in others) or not writer.remove_pack(pack, object_ids):
            return False
        if files.exists(path):  # not so if this runs a second time, since the index had to grow
            moved.append(move(path))
        return True

    try:
        return index.write(forget)
    except BaseException:
        for aside in moved:
            _put_back(files, aside, path)
        raise


def _put_back(files: Files, aside: Path, path: Path) -> None:
    """Undo what a transaction did that came to nothing: the index may go on to name the pack."""
    with suppress(OSError):  # the first error is the one to report
        if files.exists(aside):
            files.rename_durable(aside, path)
