"""Files of a model directory that hold tensors: which entries of which items are in them, and where tensors lie."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from store.boxes import whole
from store.errors import Incompatible, MoonclipError
from store.format.entries import check_name
from store.format.trees import Ties
from store.saving.inputs import ContainerInput, Input

from ..loading.stored import SEPARATOR
from ..state.names import ROOT, segment
from . import safetensors
from .listing import Found, Skipped
from .ranges import FileRange, Part, Ranges
from .requirements import has_torch

SAFETENSORS: Final = ".safetensors"
TORCH: Final = frozenset({".bin", ".pt", ".pth", ".ckpt"})

MODEL: Final = "model"


@dataclass(frozen=True, slots=True)
class TensorFile:
    """A file, and what of an item lies in it.

    Attributes:
        found: the file.
        item: name of an item that the file itself gives, if it holds several; else ``None``.
        entries: entries of the item.
        starts: where tensors lie in the file, by name.
        ties: groups of names of one tensor.
    """

    found: Found
    item: str | None
    entries: Mapping[str, Input]
    starts: Mapping[str, tuple[int, int]]
    ties: Ties = ()


def read_files(found: Sequence[Found], ranges: Ranges, kept: list[Skipped]) -> list[TensorFile]:
    """Look into files that hold tensors.

    Args:
        found: the files of a directory.
        ranges: reads the tensors once they are stored.
        kept: gets files that are kept as they are only, and why.

    Raises:
        OSError: a file cannot be read.
    """
    files: list[TensorFile] = []
    for each in found:
        reader = _reader(each)
        if reader is None:
            continue
        try:
            looked_into = reader(each, ranges)
            for file in looked_into:
                _check_names(file)
            files += looked_into
        except MoonclipError as error:
            kept.append(Skipped(each.name, _reason(each, error)))
    return files


class Held(NamedTuple):
    """What safetensors files hold of an item.

    Attributes:
        entries: its entries.
        starts: where its tensors lie, and how many bytes each has, by name.
    """

    entries: dict[str, Input]
    starts: dict[str, tuple[int, int]]


def tensors_by_item(
    tensors: Mapping[str, tuple[Path, safetensors.Located]], ranges: Ranges, *, may_be_several: bool = True
) -> dict[str | None, Held]:
    """Tensors of safetensors files, by what items the files say they are of: ``None`` if they name none.

    They name several where all of them are called ``item::name``, as our exports call them.

    Args:
        tensors: by name; the file of each, and where it lies there.
        ranges: reads them once they are stored.
        may_be_several: whether it matters what they are called.
    """
    are_several = may_be_several and all(SEPARATOR in name for name in tensors)
    found: dict[str | None, Held] = {}
    for name, (path, tensor) in tensors.items():
        item, _, key = name.partition(SEPARATOR) if are_several else (None, "", name)
        entries, starts = found.setdefault(item, Held({ROOT: ContainerInput(0, "dict")}, {}))
        part = Part(whole(tensor.shape), FileRange(path, tensor.start, tensor.size_bytes))
        entries[segment(key)] = ranges.input(ranges.entry(len(entries) - 1, tensor.dtype, tensor.shape, [part]))
        starts[segment(key)] = (tensor.start, tensor.size_bytes)
    return found


# --- reading --------------------------------------------------------------------------------------------------------


def _reader(found: Found) -> Callable[[Found, Ranges], list[TensorFile]] | None:
    if found.suffix == SAFETENSORS:
        return _safetensors
    return _torch if found.suffix in TORCH and found.size_bytes else None


def _check_names(file: TensorFile) -> None:
    """Refuse a file whose names a store does not take, before it stops all of the import."""
    for name in (file.item or "", *file.entries):
        check_name(name)


def _reason(found: Found, error: MoonclipError) -> str:
    """Why a file is kept as it is, without its name."""
    text = str(error)
    for name in (str(found.path), found.path.name):
        text = text.removeprefix(f"{name}: ").removeprefix(f"{name} is ").removeprefix(f"{name} ")
    return text


def _safetensors(found: Found, ranges: Ranges) -> list[TensorFile]:
    tensors = safetensors.read_header(found.path, ranges.files)
    by_item = tensors_by_item({name: (found.path, tensor) for name, tensor in tensors.items()}, ranges)
    return [TensorFile(found, item, held.entries, held.starts) for item, held in by_item.items()]


def _torch(found: Found, ranges: Ranges) -> list[TensorFile]:
    if not has_torch():
        raise Incompatible("torch is not installed, which is what reads it")
    from ..state.entries import FlatTensor
    from ..state.flattening import flatten
    from .tensorinputs import input_of_state
    from .torchzips import NotSimple, unzipped

    try:
        zipped = unzipped(found.path, ranges)
    except NotSimple as error:
        raise Incompatible(str(error)) from None
    flat = flatten(zipped.state, item=found.name, is_target=True)
    item = input_of_state(found.name, flat, ranges, zipped.stand_ins)
    starts = {
        name: (zipped.starts[id(entry.source.tensor)], entry.source.size_bytes)
        for name, entry in flat.entries.items()
        if isinstance(entry, FlatTensor)
    }
    return [TensorFile(found, None, item.entries, starts, item.ties)]
