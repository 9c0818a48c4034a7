"""What a power cut could leave of a recorded directory.

The model is harsher than any real file system, within POSIX: a file's content is durable up to its last fsync, a name
up to the last sync of its directory (making a file durable does not make its name so). What came later may be there,
not be there, or, for content, be there in part, with zeros where the rest would be.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from random import Random

from .recording import (
    Event,
    FileNumber,
    Made,
    MadeDirectory,
    NameChange,
    Removed,
    RemovedDirectory,
    Renamed,
    Resized,
    Snapshot,
    Synced,
    SyncedDirectory,
    Wrote,
)

SECTOR_BYTES = 512
"""A disk writes this much wholly or not at all."""


class Loss(Enum):
    """What becomes of changes that were not synced."""

    EVERYTHING = "all lost"
    CONTENT = "names kept, content lost"
    NAMES = "content kept, names lost"
    NOTHING = "all kept"
    SOME = "each kept, lost or torn by chance"


@dataclass(slots=True)
class _File:
    durable: bytes = b""
    pending: list[Wrote | Resized] = field(default_factory=list)


@dataclass(slots=True)
class _Names:
    files: dict[Path, FileNumber]
    directories: set[Path]

    def change(self, change: NameChange) -> None:
        """Apply a change, unless an earlier one that it needs was lost."""
        match change:
            case Made(path, file) if path not in self.directories:
                self.files[path] = file
            case Renamed(source, target) if source in self.files and target not in self.directories:
                self.files[target] = self.files.pop(source)
            case Removed(path):
                self.files.pop(path, None)
            case MadeDirectory(path) if path not in self.files:
                self.directories.add(path)
            case RemovedDirectory(path):
                self.directories.discard(path)


def power_cut(start: Snapshot, log: Sequence[Event], target: Path, loss: Loss, random: Random | None = None) -> None:
    """Build what could be on disk if the power fails right after the last event of ``log``.

    Args:
        start: what was durable before the log.
        log: events, any prefix of a recording.
        target: where to build the like of the recorded directory; must not exist.
        loss: what becomes of changes that were not synced.
        random: decides for ``Loss.SOME``.
    """
    files, names, pending = _replay(start, log)
    chance = random or Random(0)
    for change in pending:
        if loss in (Loss.CONTENT, Loss.NOTHING) or (loss is Loss.SOME and _toss(chance)):
            names.change(change)
    target.mkdir()
    for path in sorted(names.directories):
        if _is_reachable(path, names, start.root):
            (target / path.relative_to(start.root)).mkdir()
    for path, number in names.files.items():
        if _is_reachable(path, names, start.root):
            (target / path.relative_to(start.root)).write_bytes(_content(files[number], loss, chance))


def _replay(start: Snapshot, log: Iterable[Event]) -> tuple[dict[FileNumber, _File], _Names, list[NameChange]]:
    """Files, durable names, and the changes of names that are not durable."""
    files = {number: _File(content) for number, content in start.contents.items()}
    names = _Names(dict(start.names), set(start.directories))
    pending: list[NameChange] = []
    for event in log:
        match event:
            case Wrote(number, _, _) | Resized(number, _):
                files[number].pending.append(event)
            case Synced(number):
                files[number] = _File(_apply(files[number].durable, files[number].pending))
            case SyncedDirectory(directory):
                for change in [change for change in pending if directory in _directories_of(change)]:
                    names.change(change)
                    pending.remove(change)
            case Made() | Renamed() | Removed() | MadeDirectory() | RemovedDirectory():
                pending.append(event)
                if isinstance(event, Made):
                    files[event.file] = _File()
    return files, names, pending


def _directories_of(change: NameChange) -> tuple[Path, ...]:
    if isinstance(change, Renamed):
        return (change.source.parent, change.target.parent)
    return (change.path.parent,)


def _apply(content: bytes, changes: Iterable[Wrote | Resized]) -> bytes:
    data = bytearray(content)
    for change in changes:
        if isinstance(change, Resized):
            del data[change.size_bytes :]
            data.extend(bytes(change.size_bytes - len(data)))
        else:
            data.extend(bytes(max(0, change.offset - len(data))))
            data[change.offset : change.offset + len(change.data)] = change.data
    return bytes(data)


def _content(file: _File, loss: Loss, chance: Random) -> bytes:
    if loss in (Loss.NAMES, Loss.NOTHING):
        return _apply(file.durable, file.pending)
    if loss is not Loss.SOME:
        return file.durable
    return _apply(file.durable, [left for change in file.pending for left in _torn(change, chance)])


def _torn(change: Wrote | Resized, chance: Random) -> list[Wrote | Resized]:
    """What is left of one change: all, nothing, or, of a write, some sectors and the length."""
    fate = chance.randrange(3)
    if fate == 0:
        return [change]
    if fate == 1 or isinstance(change, Resized):
        return []
    sectors = (change.data[at : at + SECTOR_BYTES] for at in range(0, len(change.data), SECTOR_BYTES))
    left = b"".join(sector if _toss(chance) else bytes(len(sector)) for sector in sectors)
    return [Wrote(change.file, change.offset, left)]


def _toss(chance: Random) -> bool:
    return chance.getrandbits(1) == 1


def _is_reachable(path: Path, names: _Names, root: Path) -> bool:
    above = path.parent
    return above == root or (above in names.directories and _is_reachable(above, names, root))
