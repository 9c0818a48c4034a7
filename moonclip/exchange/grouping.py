"""Which files of tensors are parts of one item, and what it is called. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from store.saving.inputs import ContainerInput, Input, ItemInput, StoredInput

from ..loading.stored import SEPARATOR
from ..state.names import METADATA, ROOT
from .recipes import Lying
from .tensorfiles import MODEL, SAFETENSORS, TensorFile

_ITEM_OF: Final = {"model": MODEL, "pytorch_model": MODEL, "adapter_model": "adapter"}
"""Items by what libraries call files."""

_SHARD: Final = re.compile(r"-\d+-of-\d+$")
"""What names of files end in that are one of several."""


class Together(NamedTuple):
    """Items, and where their tensors lie.

    Attributes:
        items: by name, in order.
        lying: tensors by the name of their file.
    """

    items: dict[str, ItemInput]
    lying: dict[str, list[Lying]]


def together(files: Sequence[TensorFile], taken: Sequence[str]) -> Together:
    """Put files together that are parts of one item. Pure.

    Numbered files become one item, unless they have a name twice. An item is called as its files are, ``model`` or
    ``adapter`` if they are called as libraries call these.

    Args:
        files: the files.
        taken: names that no item may have.
    """
    groups = _groups(files)
    names = _names(list(groups), taken)
    items: dict[str, ItemInput] = {}
    lying: dict[str, list[Lying]] = {}
    for key, group in groups.items():
        item = names[key]
        items[item] = _merged(item, group)
        for file in group:
            places = (Lying(start, size_bytes, item, name) for name, (start, size_bytes) in file.starts.items())
            lying.setdefault(file.found.name, []).extend(places)
    return Together(items, lying)


class _Key(NamedTuple):
    """What files have in common that are parts of one item: their name without number, suffix, and an item's name."""

    stem: str
    suffix: str
    item: str | None


def _groups(files: Sequence[TensorFile]) -> dict[_Key, list[TensorFile]]:
    """Files by what they are parts of, safetensors first: these name an item where both kinds of file are there."""
    groups: dict[_Key, list[TensorFile]] = {}
    for file in sorted(files, key=lambda file: file.found.suffix != SAFETENSORS):
        groups.setdefault(_Key(_SHARD.sub("", _stem(file)), file.found.suffix, file.item), []).append(file)
    return dict(chain.from_iterable(_apart(key, group) for key, group in groups.items()))


def _apart(key: _Key, group: list[TensorFile]) -> Iterator[tuple[_Key, list[TensorFile]]]:
    """A group, or each file of it alone if they cannot be one."""
    names = [name for file in group for name in file.entries if name not in {ROOT, METADATA}]
    are_mappings = all(isinstance(file.entries[ROOT], ContainerInput) for file in group)
    if len(group) == 1 or (are_mappings and len(set(names)) == len(names)):
        yield key, group
        return
    for file in group:
        yield key._replace(stem=_stem(file)), [file]


def _stem(file: TensorFile) -> str:
    return file.found.name[: -len(file.found.suffix)]


def _names(keys: Sequence[_Key], taken: Sequence[str]) -> dict[_Key, str]:
    found: dict[_Key, str] = {}
    used = set(taken)
    for key in keys:
        candidates = _candidates(key)
        found[key] = next(name for name in candidates if name not in used)
        used.add(found[key])
    if MODEL not in used and (only := _only_model(found)) is not None:
        found[only] = MODEL
    return found


def _candidates(key: _Key) -> Iterator[str]:
    if key.item is not None:
        yield key.item
    path = PurePosixPath(key.stem)
    known = _ITEM_OF.get(path.name, path.name)
    stem = key.stem.replace(SEPARATOR, ".")
    yield str(path.with_name(known)).replace(SEPARATOR, ".")
    yield stem
    yield stem + key.suffix
    number = 2
    while True:
        yield f"{stem}{key.suffix}.{number}"
        number += 1


def _only_model(names: Mapping[_Key, str]) -> _Key | None:
    """The one item of safetensors that is not below another directory, whatever it is called: that is the model."""
    here = [key for key, name in names.items() if key.suffix == SAFETENSORS and "/" not in key.stem]
    is_model = len(here) == 1 and here[0].item is None and names[here[0]] not in _ITEM_OF.values()
    return here[0] if is_model else None


def _merged(item: str, group: Sequence[TensorFile]) -> ItemInput:
    """One item of all its files, whose entries follow one another."""
    if len(group) == 1:
        return ItemInput(item, group[0].entries, group[0].ties)
    entries: dict[str, Input] = {}
    position = 0
    for file in group:
        outer = [name for name in file.entries if name != ROOT and "/" not in name]
        entries |= {name: _moved(name, given, position) for name, given in file.entries.items() if name not in entries}
        position += len(outer)
    return ItemInput(item, entries, tuple(tie for file in group for tie in file.ties))


def _moved(name: str, given: Input, by: int) -> Input:
    """An entry, so many places further; what lies in another container stays where it is in that."""
    if name == ROOT or "/" in name or isinstance(given, StoredInput):
        return given
    return given._replace(position=given.position + by)
