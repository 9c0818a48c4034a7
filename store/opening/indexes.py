"""Opening the index that fits: on disk, rebuilt, read without its lock, or in memory.

| the directory | the index |
|---|---|
| can be written | the one in use; rebuilt from the packs when it is missing, broken, or behind them |
| lies on a file system that nobody can write to | the one in use, without LMDB's lock |
| cannot be written by us, but perhaps by others | in memory, from the packs: LMDB is not safe without its lock |

Other hosts take no part in LMDB's lock: on a network file system the store must be used from one host at a time, or
its index put elsewhere by ``index`` in the store's ``config``.
"""

import json
import logging
import os
from collections.abc import Collection
from hashlib import blake2s
from pathlib import Path
from typing import Final

from ..disk.files import Files
from ..disk.mounts import Mount, mount_of
from ..errors import Corrupt, Incompatible
from ..ids import PackId
from ..index import BrokenIndex, LmdbIndex, MemoryIndex
from ..layout import Layout
from ..naming.refs import RefStore
from ..reading.lookup import Index
from ..reading.packs import PackStore
from .generations import Fill, Generations
from .reindex import Digest, digest_packs, fill, place_all

_log = logging.getLogger(__name__)


def open_index(layout: Layout, files: Files, packs: PackStore, refs: RefStore, *, read_only: bool) -> Index:
    """Open the index of a store, by the table above.

    Args:
        layout: the store.
        files: does the I/O.
        packs: what the index is a digest of.
        refs: what it must know of.
        read_only: do not write, even where we could.

    Raises:
        Incompatible: the ``config`` file cannot be understood.
        OSError: the disk failed or is full.
    """
    directory = index_directory(layout, files)
    mount = mount_of(directory)
    _warn_of_network(mount, directory)
    if not os.access(layout.root, os.W_OK):
        return _unwritable_index(directory, files, packs, mount)
    generations = Generations(directory, files, lambda: _filling(digest_packs(packs)))
    try:
        return _open(generations, packs, refs, read_only=read_only)
    except PermissionError:  # another user's files in a directory that is ours
        return memory_index(packs)


def rebuild_index(layout: Layout, files: Files, packs: PackStore, *, without: Collection[PackId] = ()) -> Digest:
    """Build an index from all packs and put it in place of the one in use, once nobody writes into that.

    Args:
        layout: the store.
        files: does the I/O.
        packs: reads the packs.
        without: packs that are left out.

    Returns:
        What was read for it.

    Raises:
        Incompatible: the ``config`` file cannot be understood.
        OSError: the disk failed or is full; the one in use is as before.
    """
    digests: list[Digest] = []

    def read() -> Fill:
        only = [pack for pack in packs.pack_ids() if pack not in without] if without else None
        digests.append(digest_packs(packs, only))
        return _filling(digests[-1])

    Generations(index_directory(layout, files), files, read).rebuild()
    return digests[-1]


def memory_index(packs: PackStore) -> MemoryIndex:
    """An index in memory. Cost: as ``digest_packs``."""
    digest = digest_packs(packs)
    return MemoryIndex(digest.tables.items(), digest.rows)


def index_in_use(layout: Layout, files: Files) -> Path:
    """Directory of the LMDB environment that is in use, whether or not it can be opened.

    Raises:
        BrokenIndex: there is none.
        Incompatible: the ``config`` file cannot be understood.
    """
    return Generations(index_directory(layout, files), files, _no_digest).in_use()


def index_directory(layout: Layout, files: Files) -> Path:
    """Where the index lies: in the store, or in a directory of its own below ``index`` of the ``config`` file.

    Raises:
        Incompatible: the file cannot be understood.
    """
    try:
        config = json.loads(files.read_bytes(layout.config))
        place = Path(config["index"]) if "index" in config else None
    except FileNotFoundError:
        place = None
    except (ValueError, TypeError) as error:
        raise Incompatible(f"{layout.config} cannot be understood ({error})", path=str(layout.config)) from error
    if place is None:
        return layout.root / "index"
    if not place.is_absolute():
        raise Incompatible(f"{layout.config}: index must be an absolute path, not {place}", path=str(layout.config))
    root = layout.root.resolve()
    # By path and not by the store's id, which a copy of the store has as well.
    return place / f"{root.name}-{blake2s(os.fsencode(root), digest_size=8).hexdigest()}"


_READS_PACKS: Final = "packs are read instead, until whoever writes next, or `moonclip reindex`, rebuilds it"


def _open(generations: Generations, packs: PackStore, refs: RefStore, *, read_only: bool) -> Index:
    index, is_broken = None, False
    try:
        index = generations.open(writable=not read_only)
        if not _is_behind(index, packs, refs):
            return index
    except BrokenIndex as error:
        _log.warning("%s; %s", error, _READS_PACKS if read_only else "it is rebuilt from the packs")
        is_broken = True
    seen = index.path if index else None
    if index:
        index.close()
    if read_only:
        return memory_index(packs)
    generations.renew(seen, is_broken=is_broken)
    return generations.open(writable=True)


def _unwritable_index(directory: Path, files: Files, packs: PackStore, mount: Mount | None) -> Index:
    if mount is not None and mount.is_read_only and not mount.is_network:
        try:
            return Generations(directory, files, _no_digest, locked=False).open(writable=False)
        except BrokenIndex as error:
            _log.warning("%s", error)
    return memory_index(packs)


def _no_digest() -> Fill:
    raise BrokenIndex("an index that cannot be written is not rebuilt")


def _filling(digest: Digest) -> Fill:
    placed = place_all(digest)
    for problem in digest.problems:
        _log.warning("left out of the index: %s", problem)
    return lambda writer: fill(writer, digest, placed)


def _is_behind(index: LmdbIndex, packs: PackStore, refs: RefStore) -> bool:
    """Whether a ref names what the index has not heard of, and packs what it has not read: so does one from a backup.

    Without unread packs another index would be no better: what the ref names is lost.
    """
    try:
        tips = set(refs.list().values())
    except Corrupt:
        return False  # a damaged ref is no fault of the index; it is reported where it is used
    unknown = [tip for tip in tips if index.commit(tip) is None]
    return bool(unknown) and not set(packs.pack_ids()) <= set(index.packs())


def _warn_of_network(mount: Mount | None, directory: Path) -> None:
    if mount is not None and mount.is_network:
        _log.warning(
            "the index %s lies on a network file system (%s): use this store from one host at a time, or set `index` in"
            " its config file to a local directory",
            directory,
            mount.kind,
        )
