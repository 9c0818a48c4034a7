"""What is in other tools' checkpoints, as items that a save reads while it stores them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

from store.disk.files import Files
from store.errors import Incompatible
from store.format.dtypes import dtype
from store.parallel import Threads
from store.saving.inputs import Input, ItemInput, MadeInput

from . import hub
from .directories import GGUF, Given, Relate, read_directory
from .listing import listed
from .ranges import Ranges
from .recipes import Told
from .requirements import require_torch
from .tensorfiles import MODEL, SAFETENSORS, tensors_by_item

_DCP: Final = ".metadata"


@dataclass(frozen=True, slots=True)
class Source:
    """Something to import.

    Attributes:
        path: a directory of torch.distributed.checkpoint or of a model, a ``.safetensors`` or ``.gguf`` file, or a file
            of ``torch.save``.
        item: what to call it as one item, of a model directory its safetensors files alone; ``None`` if its own form
            decides whether it is one or several.
    """

    path: Path
    item: str | None = None

    @property
    def name(self) -> str:
        """What messages call it: the last part of its path, also where that is ``.`` or ``..``."""
        return self.path.name if self.path.name not in {"", ".."} else self.path.resolve().name


def items_of(sources: Sequence[Source], ranges: Ranges) -> list[ItemInput]:
    """What is in files, as items: those of :func:`given_in`, which says more."""
    return given_in(sources, ranges).items


def given_in(
    sources: Sequence[Source],
    ranges: Ranges,
    threads: Threads | None = None,
    told: Told = lambda _: None,
    relate: Relate | None = None,
) -> Given:
    """What is in files, as items. Reads headers and values, and what is not cut as tensors are.

    Args:
        sources: the files.
        ranges: reads the tensors once they are stored.
        threads: read files of directories; ``None`` for the caller's thread.
        told: told of so many more bytes of these that were read, now or later, in any thread.
        relate: called once with the items of tensors, before files are read; ``None`` if they resemble nothing.

    Raises:
        Unsafe: reading it would run code, or it names files elsewhere. Nothing was run.
        Corrupt: it is not what it should be.
        Conflict: a file was changed meanwhile.
        Incompatible: there is nothing in it, something that cannot be stored, or an item twice.
        MoonclipError: reading it takes torch, which is not installed.
        OSError: it cannot be read.
    """
    given = Given([])
    within = relate if len(sources) == 1 and _is_model(sources[0]) else None
    for source in sources:
        found = _given_in(source, ranges, threads, told, within)
        for item in found.items:
            if any(item.name == known.name for known in given.items):
                raise Incompatible(f"there are two items {item.name!r}; name one of them, as in other={source.path}")
        given.items.extend(found.items)
        given.files.extend(found.files)
        given.kept.extend(found.kept)
        given.skipped.extend(found.skipped)
    if not given.items:
        raise Incompatible("there is nothing to import in what was named")
    if relate is not None and within is None:
        given.items[:] = relate(given.items)
    return given


def _given_in(source: Source, ranges: Ranges, threads: Threads | None, told: Told, relate: Relate | None) -> Given:
    if source.path.exists() and not (source.path.is_file() or source.path.is_dir()):
        raise Incompatible(f"{source.path} is no file, but a pipe, a socket or a device", path=str(source.path))
    if not _is_model(source):
        return Given(_items_in(source, ranges))
    return read_directory(source.path, ranges, threads, told, relate)


def directory_bytes(sources: Sequence[Source]) -> int:
    """Bytes of all files of models that :func:`given_in` would read.

    Raises:
        Incompatible: a name that is no UTF-8, or a link that leads nowhere.
        OSError: a directory cannot be read.
    """
    listings = (listed(source.path, Files()) for source in sources if _is_model(source))
    return sum(found.size_bytes for listing in listings for found in listing.files)


def _is_model(source: Source) -> bool:
    path = source.path
    return source.item is None and (path.suffix == GGUF or (path.is_dir() and not (path / _DCP).is_file()))


def tensor_bytes(items: Sequence[ItemInput]) -> int:
    """Bytes of all tensors that are to be read."""
    return sum(prod(given.shape) * dtype(given.dtype).item_bytes for given in _tensors(items))


def telling(items: Sequence[ItemInput], told: Told) -> list[ItemInput]:
    """The same items, which tell how much of them has been read."""
    return [
        item._replace(entries={name: _telling(given, told) for name, given in item.entries.items()}) for item in items
    ]


def _tensors(items: Sequence[ItemInput]) -> Iterator[MadeInput]:
    return (given for item in items for given in item.entries.values() if isinstance(given, MadeInput))


def _telling(given: Input, told: Told) -> Input:
    if not isinstance(given, MadeInput):
        return given

    def make(start: int, stop: int) -> memoryview:
        data = given.make(start, stop)
        told(stop - start)
        return data

    return given._replace(make=make)


def _items_in(source: Source, ranges: Ranges) -> list[ItemInput]:
    path = source.path
    if (path / _DCP).is_file():
        require_torch("a directory of torch.distributed.checkpoint")
        from . import dcpreading

        return dcpreading.items_in(path, ranges, source.item)
    if path.suffix == SAFETENSORS or hub.is_hub(path):
        return list(_safetensors(source, ranges))
    if path.is_dir():
        raise Incompatible(
            f"{path} holds no checkpoint that is known: neither {_DCP} of torch.distributed.checkpoint nor"
            f" {SAFETENSORS} files; name a file in it",
            path=str(path),
        )
    require_torch("a file of torch.save")
    from . import pickling
    from .tensorinputs import by_item, input_of

    state = pickling.load(path, str(path))
    return [input_of(name, each) for name, each in by_item(state, source.item).items()]


def _safetensors(source: Source, ranges: Ranges) -> Iterator[ItemInput]:
    tensors = hub.tensors_in(source.path, ranges.files)
    for item, held in tensors_by_item(tensors, ranges, may_be_several=source.item is None).items():
        yield ItemInput(source.item or MODEL if item is None else item, held.entries)
