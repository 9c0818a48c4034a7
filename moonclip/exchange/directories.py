"""A model directory as items of one commit, from which every file of it can be given back byte for byte.

Tensors become items, whatever files they lie in; the item ``files`` has a recipe for such a file and the bytes of a
small one; any other large one lies in the item ``blobs``, and has a recipe of one part.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from store.beside.composed import to_plain
from store.beside.files import ITEM
from store.disk.files import Files
from store.engine.placing import placed
from store.errors import Corrupt, Incompatible
from store.format.values import Plain
from store.limits import KIB
from store.parallel import Threads
from store.saving.inputs import Input, ItemInput, MadeInput, ValueInput

from ..families.spots import cuts_of
from . import gguf, hub
from .grouping import together
from .listing import Found, Skipped, listed
from .ranges import FileRange, Ranges
from .recipes import Gap, Lying, Read, blob, composed, outlined, whole_of
from .tensorfiles import SAFETENSORS, TORCH, read_files

BLOBS: Final = "blobs"
"""The item that large files are in which do not consist of tensors."""

GGUF: Final = ".gguf"
_KNOWN: Final = frozenset({SAFETENSORS, GGUF, *TORCH})
"""What a directory has to have a file of, to be one of a model."""

_MAX_SMALL_BYTES: Final = 64 * KIB
"""Of a file whose bytes are a value: one that is larger is cut, and read when its turn comes."""

Told = Callable[[int], None]
"""Told of so many more bytes that were read, in any thread."""

Relate = Callable[[Sequence[ItemInput]], Sequence[ItemInput]]
"""Gives the items of tensors again, which say now what stored ones they resemble."""


@dataclass(frozen=True, slots=True)
class Given:
    """What there is to import.

    Attributes:
        items: all that is to be stored.
        files: files that are to come back byte for byte, as they were found.
        kept: files of tensors that are kept as they are only, and why.
        skipped: what of a directory is not imported, and why.
    """

    items: list[ItemInput]
    files: list[Found] = field(default_factory=list)
    kept: list[Skipped] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


def read_directory(
    directory: Path,
    ranges: Ranges,
    threads: Threads | None = None,
    told: Told | None = None,
    relate: Relate | None = None,
) -> Given:
    """Look at all files of a directory. Reads all of them once, for their SHA-256.

    Args:
        directory: the directory, or one file that is to be kept as in one.
        ranges: reads tensors and blobs once they are stored.
        threads: read the files; ``None`` for the caller's thread.
        told: told of so many more bytes that were read, in any thread.
        relate: called with the items of tensors before files are read, as they are cut as what they resemble; what it
            raises is raised.

    Raises:
        Incompatible: there is no file that holds a model, a name that is no UTF-8, or a link that leads nowhere.
        Corrupt: an index names a file that is not there, or is none.
        Conflict: a file was changed meanwhile.
        Unsafe: an index names a file elsewhere.
        OSError: a file cannot be read.

    Cost: the SHA-256 of all files, several at once; memory of all small files and of what lies between tensors.
    """
    files, skipped = listed(directory, ranges.files)
    if not any(found.suffix in _KNOWN for found in files):
        kinds = ", ".join(sorted(_KNOWN))
        raise Incompatible(
            f"{directory} holds no checkpoint that is known: neither .metadata of torch.distributed.checkpoint nor a"
            f" file that ends in {kinds}",
            path=str(directory),
        )
    _require_shards(directory, ranges.files)
    kept: list[Skipped] = []
    held = together(read_files(files, ranges, kept), (ITEM, BLOBS))
    outlines = {found.name: _outline(found, held.lying.get(found.name, ()), kept) for found in files}
    tensors = list(held.items.values())
    if relate is not None:
        tensors = list(relate(tensors))
    reader = _Reader(ranges.files, outlines, _cuts(tensors), told or (lambda _: None))
    reader.read_all(files, threads)
    return Given([*tensors, *_items(files, reader, ranges)], reader.checked(files), kept, skipped)


def _require_shards(directory: Path, files: Files) -> None:
    """Refuse a directory that lacks files which its index names: they were not downloaded."""
    index = directory / hub.INDEX
    if not index.exists() or (directory / hub.SINGLE).exists():
        return
    lacking = sorted({name for name in hub.weight_map(index, files).values() if not (directory / name).exists()})
    if lacking:
        raise Corrupt(
            f"{directory} has no {lacking[0]}, as {hub.INDEX} says; was all of it downloaded?", path=str(directory)
        )


def _outline(found: Found, lying: Sequence[Lying], kept: list[Skipped]) -> list[Gap | Lying] | None:
    """What a file consists of; ``None`` if it is kept as it is."""
    if not lying:
        return None
    outline = outlined(lying, found.size_bytes)
    if outline is None and found.size_bytes > _MAX_SMALL_BYTES:
        kept.append(Skipped(found.name, "its tensors overlap, or too much of it is none"))
    return outline


def _cuts(items: Sequence[ItemInput]) -> dict[tuple[str, str], tuple[int, ...]]:
    """Where a save cuts tensors, by item and name."""
    return {
        (item.name, name): cuts_of(given)
        for item in items
        for name, given in item.entries.items()
        if isinstance(given, MadeInput)
    }


class _Reader:
    """Reads files, in any thread.

    Attributes:
        small: bytes of small files, by name.
        read: what came of all others.
    """

    def __init__(
        self,
        files: Files,
        outlines: Mapping[str, list[Gap | Lying] | None],
        cuts: Mapping[tuple[str, str], tuple[int, ...]],
        told: Told,
    ) -> None:
        self.small: dict[str, bytes] = {}
        self.read: dict[str, Read] = {}
        self._files = files
        self._outlines = outlines
        self._cuts = cuts
        self._told = told

    def read_all(self, files: Sequence[Found], threads: Threads | None) -> None:
        """Read all of them, the largest first, so that threads end together."""
        ordered = sorted(files, key=lambda found: -found.size_bytes)
        if threads is not None:
            threads.run(self._read_one, ordered)
            return
        for found in ordered:
            self._read_one(found)

    def checked(self, files: Sequence[Found]) -> list[Found]:
        """Files with the ids of the chunks that were read of them."""
        return [
            found._replace(chunks=self.read[found.name].chunks) if found.name in self.read else found for found in files
        ]

    def content(self, found: Found) -> Plain:
        """What the item of files holds of one."""
        return to_plain(self.read[found.name].recipe) if found.name in self.read else self.small[found.name]

    def _read_one(self, found: Found) -> None:
        outline = self._outlines[found.name]
        with self._files.open_read(found.path) as handle:
            if outline is not None:
                self.read[found.name] = composed(outline, self._cuts, found, handle, self._told)
            elif found.size_bytes <= _MAX_SMALL_BYTES:
                self.small[found.name] = whole_of(found, handle, self._told)
            else:
                cuts = gguf.cuts(handle) if found.suffix == GGUF else None
                self.read[found.name] = blob(BLOBS, cuts, found, handle, self._told)


def _items(files: Sequence[Found], reader: _Reader, ranges: Ranges) -> list[ItemInput]:
    blobs = {found.name: found for found in files if found.name in reader.read and reader.read[found.name].cuts}

    def blob_input(_name: str, position: int, found: Found) -> Input:
        def make(start: int, stop: int) -> memoryview:
            return FileRange(found.path, start, stop - start).read(ranges.files)

        return MadeInput(position, "uint8", (found.size_bytes,), make, reader.read[found.name].cuts)

    told = {found.name: reader.content(found) for found in files}
    made = [placed(ITEM, told, lambda _name, position, value: ValueInput(position, value))]
    return [placed(BLOBS, blobs, blob_input), *made] if blobs else made
