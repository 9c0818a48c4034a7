"""A model directory as items of one commit, from which every file of it can be given back byte for byte.

Tensors become items, whatever files they lie in; the item ``files`` has a recipe for such a file and the bytes of a
small one; any other large one lies in the item ``blobs``, and has a recipe of one part.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from store.beside.composed import Composed, Run, to_plain
from store.beside.files import ITEM
from store.disk.files import Files, ReadHandle
from store.engine.placing import placed
from store.errors import Corrupt, Incompatible
from store.format.values import Plain
from store.limits import KIB
from store.parallel import Threads
from store.saving.inputs import Input, ItemInput, MadeInput, ValueInput

from . import gguf, hub
from .listing import Found, Skipped, listed
from .ranges import FileRange, Ranges
from .recipes import Gap, Lying, blob, composed, outlined, whole_of
from .tensorfiles import SAFETENSORS, TORCH, read_files, together

BLOBS: Final = "blobs"
"""The item that large files are in which do not consist of tensors."""

GGUF: Final = ".gguf"
_KNOWN: Final = frozenset({SAFETENSORS, GGUF, *TORCH})
"""What a directory has to have a file of, to be one of a model."""

_MAX_SMALL_BYTES: Final = 64 * KIB
"""Of a file whose bytes are a value: one that is larger is cut, and read when its turn comes."""

Told = Callable[[int], None]
"""Told of so many more bytes that were read, in any thread."""

Meanwhile = Callable[[Sequence[ItemInput]], None]
"""What is done with the items of tensors while files are read."""


@dataclass(frozen=True, slots=True)
class Directory:
    """What a directory holds.

    Attributes:
        items: all that is to be stored.
        files: the files, as they were found.
        kept: files of tensors that are kept as they are only, and why.
        skipped: what is not imported, and why.
    """

    items: list[ItemInput]
    files: list[Found]
    kept: list[Skipped]
    skipped: list[Skipped]


def read_directory(
    directory: Path,
    ranges: Ranges,
    threads: Threads | None = None,
    told: Told | None = None,
    meanwhile: Meanwhile | None = None,
) -> Directory:
    """Look at all files of a directory. Reads all of them once, for their SHA-256.

    Args:
        directory: the directory, or one file that is to be kept as in one.
        ranges: reads tensors and blobs once they are stored.
        threads: read the files; ``None`` for the caller's thread.
        told: told of so many more bytes that were read, in any thread.
        meanwhile: called with the items of tensors while files are read; what it raises is raised.

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
    reader = _Reader(ranges.files, outlines, told or (lambda _: None))
    tensors = list(held.items.values())
    _beside(reader, files, threads, lambda: None if meanwhile is None else meanwhile(tensors))
    return Directory([*tensors, *_items(files, reader, ranges)], files, kept, skipped)


def _beside(reader: "_Reader", files: Sequence[Found], threads: Threads | None, meanwhile: Callable[[], None]) -> None:
    """Read files and do something else at once, and wait for both. Raises what either raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            reader.read_all(files, threads)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            errors.append(error)

    thread = threading.Thread(target=run, name="moonclip-hash", daemon=True)
    thread.start()
    try:
        meanwhile()
        thread.join()
    except BaseException:
        reader.stop()  # whoever interrupts this does not wait until all of a model is read
        thread.join()
        raise
    if errors:
        raise errors[0]


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
        kept.append(Skipped(found.name, "its tensors overlap, or most of it is none"))
    return outline


class _StoppedError(Exception):
    """Nobody waits for what is being read any more."""


class _Reader:
    """Reads files, in any thread.

    Attributes:
        contents: by name: bytes, or the recipe.
        cuts: of those that become blobs, by name.
    """

    def __init__(self, files: Files, outlines: Mapping[str, list[Gap | Lying] | None], told: Told) -> None:
        self.contents: dict[str, bytes | Composed] = {}
        self.cuts: dict[str, tuple[int, ...]] = {}
        self._files = files
        self._outlines = outlines
        self._told = told
        self._is_stopped = False

    def stop(self) -> None:
        """Read no more than what is being read."""
        self._is_stopped = True

    def read_all(self, files: Sequence[Found], threads: Threads | None) -> None:
        """Read all of them, the largest first, so that threads end together."""
        ordered = sorted(files, key=lambda found: -found.size_bytes)
        if threads is not None:
            threads.run(self.read, ordered)
            return
        for found in ordered:
            self.read(found)

    def read(self, found: Found) -> None:
        """Read one."""
        with self._files.open_read(found.path) as handle:
            self.contents[found.name] = self._content(found, handle)

    def _content(self, found: Found, handle: ReadHandle) -> bytes | Composed:
        outline = self._outlines[found.name]
        if outline is not None:
            return composed(outline, found, handle, self._count)
        if found.size_bytes <= _MAX_SMALL_BYTES:
            return whole_of(found, handle, self._count)
        cuts = gguf.cuts(handle) if found.suffix == GGUF else None
        digest, self.cuts[found.name] = blob(found, handle, cuts, self._count)
        return Composed(found.size_bytes, digest, (Run(BLOBS, found.name, 0, found.size_bytes),))

    def _count(self, size_bytes: int) -> None:
        if self._is_stopped:
            raise _StoppedError
        self._told(size_bytes)


def _items(files: Sequence[Found], reader: _Reader, ranges: Ranges) -> list[ItemInput]:
    contents, cuts = reader.contents, reader.cuts
    blobs = {found.name: found for found in files if found.name in cuts}

    def blob_input(_name: str, position: int, found: Found) -> Input:
        def make(start: int, stop: int) -> memoryview:
            return FileRange(found.path, start, stop - start).read(ranges.files)

        return MadeInput(position, "uint8", (found.size_bytes,), make, cuts[found.name])

    told = {found.name: _plain(contents[found.name]) for found in files}
    made = [placed(ITEM, told, lambda _name, position, value: ValueInput(position, value))]
    return [placed(BLOBS, blobs, blob_input), *made] if blobs else made


def _plain(content: bytes | Composed) -> Plain:
    return content if isinstance(content, bytes) else to_plain(content)
