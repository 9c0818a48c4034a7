"""A model directory as items of one commit, from which every file of it can be given back byte for byte.

Tensors become items, whatever files they lie in; the item ``files`` has a recipe for such a file and the bytes of a
small one; any other large one lies in the item ``blobs``, and has a recipe of one part. A recipe has the SHA-256 of its
file, which takes longer to make than anything else here: it is made while tensors are stored.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from store.beside.composed import to_plain
from store.beside.files import ITEM
from store.disk.files import Files, ReadHandle
from store.engine.placing import placed
from store.errors import Corrupt, Incompatible
from store.limits import KIB
from store.parallel import Threads
from store.saving.inputs import Input, ItemInput, MadeInput, MadeValueInput, ValueInput

from ..families.spots import cuts_of
from . import gguf, hub
from .grouping import together
from .listing import Found, Skipped, listed
from .ranges import FileRange, Ranges
from .readings import KeptFile, reading_ahead
from .recipes import Gap, Lying, Read, Told, blob, composed, outlined, whole_of
from .tensorfiles import SAFETENSORS, TORCH, read_files

BLOBS: Final = "blobs"
"""The item that large files are in which do not consist of tensors."""

GGUF: Final = ".gguf"
_KNOWN: Final = frozenset({SAFETENSORS, GGUF, *TORCH})
"""What a directory has to have a file of, to be one of a model."""

_MAX_SMALL_BYTES: Final = 64 * KIB
"""Of a file whose bytes are a value: one that is larger is cut, and read when its turn comes."""

Relate = Callable[[Sequence[ItemInput]], Sequence[ItemInput]]
"""Gives the items of tensors again, which say now what stored ones they resemble."""


@dataclass(frozen=True, slots=True)
class Given:
    """What there is to import.

    Attributes:
        items: all that is to be stored.
        files: files that are to come back byte for byte.
        kept: files of tensors that are kept as they are only, and why.
        skipped: what of a directory is not imported, and why.
    """

    items: list[ItemInput]
    files: list[KeptFile] = field(default_factory=list)
    kept: list[Skipped] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


def read_directory(
    directory: Path,
    ranges: Ranges,
    threads: Threads | None = None,
    told: Told = lambda _: None,
    relate: Relate | None = None,
) -> Given:
    """Look at all files of a directory. Reads those that are small, or cut by their content: others are read later.

    Args:
        directory: the directory, or one file that is to be kept as in one.
        ranges: reads tensors and blobs once they are stored.
        threads: read files; ``None`` for the caller's thread.
        told: told of so many more bytes of files that were read, now or later, in any thread.
        relate: called with the items of tensors before files are read, as they are cut as what they resemble; what it
            raises is raised.

    Raises:
        Incompatible: there is no file that holds a model, a name that is no UTF-8, or a link that leads nowhere.
        Corrupt: an index names a file that is not there, or is none.
        Conflict: a file was changed meanwhile.
        Unsafe: an index names a file elsewhere.
        OSError: a file cannot be read.

    Cost: the SHA-256 of what is read now, several files at once; memory of all small files. What is read later, by
    whoever asks or by :func:`~.readings.reading_ahead`, takes the memory of what lies between tensors.
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
    cuts = _cuts(tensors)
    returning = [_kept(found, outlines[found.name], cuts, ranges.files, told) for found in files]
    blobs = [file for file in returning if file.has_recipe and outlines[file.name] is None]
    items = [*tensors, *([_blobs(blobs, ranges, threads)] if blobs else []), _files(returning, ranges.files, told)]
    return Given(items, returning, kept, skipped)


def _require_shards(directory: Path, files: Files) -> None:
    """Refuse a directory that lacks files which its index names: they were not downloaded."""
    index = directory / hub.INDEX
    if not index.is_file() or (directory / hub.SINGLE).is_file():
        return
    lacking = sorted({name for name in hub.weight_map(index, files).values() if not (directory / name).is_file()})
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


def _kept(
    found: Found,
    outline: list[Gap | Lying] | None,
    cuts: Mapping[tuple[str, str], tuple[int, ...]],
    files: Files,
    told: Told,
) -> KeptFile:
    """A file, and how it is read unless it is small."""

    def read(also_told: Told) -> Read:
        def told_both(size_bytes: int) -> None:
            also_told(size_bytes)
            told(size_bytes)

        with files.open_read(found.path) as handle:
            if outline is not None:
                return composed(outline, cuts, found, handle, told_both)
            return blob(BLOBS, _known_cuts(found, handle), found, handle, told_both)

    is_small = outline is None and found.size_bytes <= _MAX_SMALL_BYTES
    return KeptFile(found, None if is_small else read)


def _known_cuts(found: Found, handle: ReadHandle) -> tuple[int, ...] | None:
    """Where a large file is cut, if that is not for its content to say."""
    return gguf.cuts(handle, found.size_bytes) if found.suffix == GGUF else None


def _blobs(files: Sequence[KeptFile], ranges: Ranges, threads: Threads | None) -> ItemInput:
    """Large files that do not consist of tensors, as an item. Reads those that their content says where to cut."""
    cuts: dict[str, tuple[int, ...]] = {}

    def blob_input(_name: str, position: int, file: KeptFile) -> Input:
        def make(start: int, stop: int) -> memoryview:
            return FileRange(file.found.path, start, stop - start).read(ranges.files)

        return MadeInput(position, "uint8", (file.found.size_bytes,), make, cuts[file.name])

    unknown: list[KeptFile] = []
    for file in files:
        with ranges.files.open_read(file.found.path) as handle:
            known = _known_cuts(file.found, handle)
        if known is None:
            unknown.append(file)
        else:
            cuts[file.name] = known
    thread_count = 0 if threads is None else threads.count
    with reading_ahead(unknown, thread_count, most=thread_count):
        for file in unknown:
            cuts[file.name] = file.read().cuts
    return placed(BLOBS, {file.name: file for file in files}, blob_input)


def _files(kept: Sequence[KeptFile], files: Files, told: Told) -> ItemInput:
    """All files as an item. Reads the small ones; recipes are made once tensors are stored."""

    def content(_name: str, position: int, file: KeptFile) -> Input:
        if file.has_recipe:
            return MadeValueInput(position, lambda: to_plain(file.read().recipe))
        with files.open_read(file.found.path) as handle:
            return ValueInput(position, whole_of(file.found, handle, told))

    return placed(ITEM, {file.name: file for file in kept}, content)
