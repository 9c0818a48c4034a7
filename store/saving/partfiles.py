"""Where ranks leave their parts of a snapshot: ``parts/<snapshot>/<rank>``, and what they are told, in ``snapshot``.

A snapshot's id is the name of its creator's lease. A directory whose lease is not held is that of a dead snapshot.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..disk.files import Files
from ..errors import PartsMissing, SnapshotGone
from ..format import fields
from ..ids import ID_BYTES, PackId
from .parts import HEAD, Part, decode_head

_ID: Final = re.compile(r"[0-9a-f]{32}")
_RANK: Final = re.compile(r"0|[1-9][0-9]*")
_DESCRIPTION: Final = "snapshot"


def snapshot_directories(root: Path, files: Files) -> list[Path]:
    """A directory for each snapshot, in the making or given up by the dead.

    Raises:
        OSError: ``parts/`` cannot be read.
    """
    try:
        names = files.list_directory(root / "parts")
    except FileNotFoundError:
        return []
    return [root / "parts" / name for name in names if _ID.fullmatch(name)]


def begin_parts(root: Path, files: Files, snapshot: str, description: bytes) -> None:
    """Make a snapshot's directory and tell its ranks what they need. Its lease is held.

    Raises:
        OSError: it could not be written; part of it may be there.
    """
    directory = _directory(root, snapshot)
    files.make_directory(directory)
    files.write_atomic(directory / _DESCRIPTION, description)


def read_description(root: Path, files: Files, snapshot: str) -> bytes:
    """What a snapshot's ranks are told.

    Raises:
        SnapshotGone: there is no such snapshot (any more).
        OSError: it cannot be read.
    """
    try:
        return files.read_bytes(_directory(root, snapshot) / _DESCRIPTION)
    except (FileNotFoundError, NotADirectoryError):
        raise gone(snapshot) from None


def write_part(root: Path, files: Files, snapshot: str, part: Part) -> None:
    """Hand a part in, durably, in place of what the rank may have handed in before.

    Raises:
        SnapshotGone: the snapshot is not in the making any more.
        OSError: it could not be written.
    """
    encoded = part.encode()
    directory = _directory(root, snapshot)
    try:
        files.write_atomic(directory / str(part.rank), encoded)
    except FileNotFoundError:
        raise gone(snapshot) from None
    finally:
        is_given_up = not files.exists(directory / _DESCRIPTION)
        if is_given_up:  # by somebody who may have listed what is there before this was
            release_parts(root, files, snapshot)
    if is_given_up:
        raise gone(snapshot)


def ranks_handed_in(root: Path, files: Files, snapshot: str) -> list[int]:
    """Ranks whose part is there, in order; none if the snapshot is not."""
    return sorted(int(path.name) for path in _part_paths(root, files, snapshot))


def read_parts(root: Path, files: Files, snapshot: str, world_size: int) -> list[Part]:
    """Every rank's part.

    Raises:
        PartsMissing: some are not there; names the ranks.
        Corrupt: one is damaged.
        OSError: one cannot be read.
    """
    there = ranks_handed_in(root, files, snapshot)
    missing = sorted(set(range(world_size)) - set(there))
    if missing:
        raise PartsMissing(
            f"of {world_size} ranks {len(missing)} have not stored their part of snapshot {snapshot}:"
            f" {', '.join(map(str, missing))}; finalize it once they have",
            snapshot=snapshot,
            ranks=missing,
        )
    return [_read(root, files, snapshot, rank) for rank in range(world_size)]


def packs_of_parts(root: Path, files: Files, snapshot: str) -> frozenset[PackId]:
    """Packs that a snapshot's parts name: as long as its lease is held, they are as if that named them.

    Raises:
        Corrupt: a part is damaged: what it keeps is not known.

    Cost: where there are no parts, one look into a directory that is not there; else one small read for each.
    """
    return frozenset(pack for path in _part_paths(root, files, snapshot) for pack in _packs(path, files))


def remove_parts(root: Path, files: Files, snapshot: str) -> None:
    """Remove a snapshot's directory; one that is gone is fine.

    Raises:
        OSError: something stays, perhaps because a rank was just handing its part in.
    """
    directory = _directory(root, snapshot)
    # The description first: no rank begins with what is going, and one that is at it sees that it has to clean up.
    with suppress(FileNotFoundError):
        files.remove(directory / _DESCRIPTION)
    with suppress(FileNotFoundError):
        for name in files.list_directory(directory):
            with suppress(FileNotFoundError):
                files.remove(directory / name)
        files.remove_directory(directory)


def is_there(root: Path, files: Files, snapshot: str) -> bool:
    """Whether a snapshot's directory is."""
    return files.exists(_directory(root, snapshot))


def release_parts(root: Path, files: Files, snapshot: str) -> None:
    """Remove a snapshot's directory as far as that can be done: what stays is found by its dead lease."""
    with suppress(OSError):
        remove_parts(root, files, snapshot)


def copy_part(root: Path, files: Files, apart: str, snapshot: str, rank: int) -> None:
    """Hand in, as a rank's part of a snapshot, what that rank stored as rank 0 of another.

    It stays where it was as well: at no moment are its packs named nowhere.

    Raises:
        SnapshotGone: one of the two is not there any more.
        Corrupt: the part is damaged.
        OSError: it could not be read or written.
    """
    try:
        part = _read(root, files, apart, 0)
    except FileNotFoundError:
        raise gone(apart) from None
    write_part(root, files, snapshot, part._replace(rank=rank))


def gone(snapshot: str) -> SnapshotGone:
    """The error for a snapshot that is not in the making."""
    return SnapshotGone(
        f"snapshot {snapshot} is not in the making (any more): it was published or given up, or its creator ended;"
        f" nothing of this part is kept; begin another",
        snapshot=snapshot,
    )


def _read(root: Path, files: Files, snapshot: str, rank: int) -> Part:
    what = f"part of rank {rank} of snapshot {snapshot}"
    part = Part.decode(files.read_bytes(_directory(root, snapshot) / str(rank)), what)
    fields.require(part.rank == rank, what, f"it is that of rank {part.rank}")
    return part


def _directory(root: Path, snapshot: str) -> Path:
    if not _ID.fullmatch(snapshot):  # comes from elsewhere, and becomes a path
        raise gone(snapshot)
    return root / "parts" / snapshot


def _part_paths(root: Path, files: Files, snapshot: str) -> list[Path]:
    directory = _directory(root, snapshot)
    try:
        names = files.list_directory(directory)
    except FileNotFoundError:
        return []
    return [directory / name for name in names if _RANK.fullmatch(name)]


def _packs(path: Path, files: Files) -> tuple[PackId, ...]:
    try:
        with files.open_read(path) as handle:
            head = handle.pread(0, HEAD.size)
            count = HEAD.unpack(head)[2] if len(head) == HEAD.size else 0
            data = head + handle.pread(HEAD.size, min(count * ID_BYTES, handle.size))
    except FileNotFoundError:
        return ()
    return decode_head(data, f"part {path}")[1]
