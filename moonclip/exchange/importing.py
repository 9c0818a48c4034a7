"""Other tools' checkpoints as a commit: what is in their files, read while it is stored."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

from store.boxes import whole
from store.errors import Incompatible
from store.format.dtypes import dtype
from store.ids import CommitId
from store.naming.refnames import branch_name
from store.repository import Repository
from store.saving.inputs import ContainerInput, Input, ItemInput, MadeInput
from store.saving.saver import SaveRequest
from store.saving.underway import saving

from ..loading.stored import SEPARATOR
from ..state.names import ROOT, segment
from . import hub
from .ranges import FileRange, Part, Ranges
from .requirements import require_torch

_DCP: Final = ".metadata"
_SAFETENSORS: Final = ".safetensors"
_MODEL: Final = "model"

Told = Callable[[int], None]
"""Told of so many more bytes that are being stored, in any thread."""


@dataclass(frozen=True, slots=True)
class Source:
    """Something to import.

    Attributes:
        path: a directory of torch.distributed.checkpoint or of safetensors files, a ``.safetensors`` file, or a file of
            ``torch.save``.
        item: what to call it as one item; ``None`` if its own form decides whether it is one or several.
    """

    path: Path
    item: str | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to import, and where.

    Attributes:
        sources: what becomes one commit together.
        branch: branch to commit on, short name; made if it does not exist.
        message: what a person says of it.
        step: training step, if there is one.
    """

    sources: Sequence[Source]
    branch: str
    message: str = ""
    step: int | None = None


def import_files(repo: Repository, items: Sequence[ItemInput], wanted: Wanted) -> CommitId:
    """Commit what files hold, after what the branch holds now.

    Args:
        repo: the store.
        items: as :func:`items_of` found them.
        wanted: where to commit them.

    Raises:
        Incompatible: something that cannot be stored.
        Corrupt: a file is not what its header says. Refs are as before.
        Conflict: the branch moved meanwhile.
        ReadOnly: the store cannot be written from here.
        OSError: reading or writing failed.

    Cost: memory of one chunk, and what is made of it, for each thread. A shard that was written with other strides than
    those of C order is read whole.
    """
    repo.require_writable()
    request = SaveRequest(
        items=items,
        branch=wanted.branch,
        parent=repo.refs.read(branch_name(wanted.branch)),
        step=wanted.step,
        message=wanted.message or f"Import of {', '.join(source.path.name for source in wanted.sources)}",
    )
    with saving(repo.layout.root, repo.files, wanted.branch):
        return repo.save(request).commit


def items_of(sources: Sequence[Source], ranges: Ranges) -> list[ItemInput]:
    """What is in files, as items. Reads headers and values, no tensor.

    Args:
        sources: the files.
        ranges: reads the tensors once they are stored.

    Raises:
        Unsafe: reading it would run code, or it names files elsewhere. Nothing was run.
        Corrupt: it is not what it should be.
        Incompatible: there is nothing in it, something that cannot be stored, or an item twice.
        MoonclipError: reading it takes torch, which is not installed.
        OSError: it cannot be read.
    """
    found: dict[str, ItemInput] = {}
    for source in sources:
        for item in _items_in(source, ranges):
            if item.name in found:
                raise Incompatible(f"there are two items {item.name!r}; name one of them, as in other={source.path}")
            found[item.name] = item
    if not found:
        raise Incompatible("there is nothing to import in what was named")
    return list(found.values())


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
    if (path / _DCP).exists():
        require_torch("a directory of torch.distributed.checkpoint")
        from . import dcpreading

        return dcpreading.items_in(path, ranges, source.item)
    if path.suffix == _SAFETENSORS or hub.is_hub(path):
        return list(_safetensors(source, ranges))
    if path.is_dir():
        raise Incompatible(
            f"{path} holds no checkpoint that is known: neither {_DCP} of torch.distributed.checkpoint nor"
            f" {_SAFETENSORS} files; name a file in it",
            path=str(path),
        )
    require_torch("a file of torch.save")
    from . import pickling
    from .tensorinputs import by_item, input_of

    state = pickling.load(path, str(path))
    return [input_of(name, each) for name, each in by_item(state, source.item).items()]


def _safetensors(source: Source, ranges: Ranges) -> Iterator[ItemInput]:
    """Tensors by name; as several items where all of them are named ``item::name``, as our exports name them."""
    tensors = hub.tensors_in(source.path, ranges.files)
    is_several = source.item is None and all(SEPARATOR in name for name in tensors)
    items: dict[str, dict[str, Input]] = {}
    for name, (path, tensor) in tensors.items():
        item, _, key = name.partition(SEPARATOR) if is_several else (source.item or _MODEL, "", name)
        entries = items.setdefault(item, {ROOT: ContainerInput(0, "dict")})
        part = Part(whole(tensor.shape), FileRange(path, tensor.start, tensor.size_bytes))
        entries[segment(key)] = ranges.input(ranges.entry(len(entries) - 1, tensor.dtype, tensor.shape, [part]))
    for item, entries in items.items():
        yield ItemInput(item, entries)
