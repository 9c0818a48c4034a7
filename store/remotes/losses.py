"""What a check of a remote found to be lost, noted here so that the next push sends it again.

    lost    JSON: the remote's URL, objects that its refs need and that it lacks, and copies on it that are damaged

The file lies under ``remotes/<name>/`` of the store. What it says of another URL does not count. An object is struck
off once it was sent; copies stay, since a damaged copy is damaged for good: gc must not give up an intact one for it.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ..ids import ObjectId, from_hex
from ..repository import Repository
from .cache import directory_of
from .remote import Remote

_FILE: Final = "lost"

Spot = tuple[str, ObjectId]
"""A copy: the name of the pack that it is in, and the object."""


@dataclass(frozen=True, slots=True)
class Losses:
    """What was found.

    Attributes:
        objects: objects that refs of the remote need and that it lacks.
        copies: copies that are damaged.
    """

    objects: frozenset[ObjectId] = field(default_factory=frozenset)
    copies: frozenset[Spot] = field(default_factory=frozenset)


def noted(repo: Repository, remote: Remote) -> Losses:
    """What the last check of a remote found. What cannot be read was not found."""
    try:
        said = json.loads(repo.files.read_bytes(_path(repo, remote.name)))
        if said["url"] != remote.storage.url:
            return Losses()
        objects = frozenset(from_hex(text) for text in said["objects"])
        copies = frozenset((str(pack), from_hex(text)) for pack, text in said["copies"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Losses()
    return Losses(objects, copies)


def noted_losses(repo: Repository, remote: Remote) -> frozenset[ObjectId]:
    """Objects to be sent again: what a push takes as ``lost``."""
    return noted(repo, remote).objects


def note(repo: Repository, remote: Remote, losses: Losses) -> None:
    """Remember these instead.

    Raises:
        OSError: they could not be written.
    """
    if losses == Losses():
        forget_all(repo, remote.name)
        return
    path = _path(repo, remote.name)
    said = {
        "url": remote.storage.url,
        "objects": sorted(object_id.hex() for object_id in losses.objects),
        "copies": sorted([pack, object_id.hex()] for pack, object_id in losses.copies),
    }
    repo.files.make_directory(path.parent)
    repo.files.write_atomic(path, (json.dumps(said) + "\n").encode())


def forget_all(repo: Repository, name: str) -> None:
    """Forget what was found of a remote.

    Raises:
        OSError: the disk failed.
    """
    with suppress(FileNotFoundError):
        repo.files.remove(_path(repo, name))


def forget(repo: Repository, remote: Remote, objects: Iterable[ObjectId]) -> None:
    """Hear that objects were sent again.

    Raises:
        OSError: it could not be written.
    """
    known = noted(repo, remote)
    if known.objects:
        note(repo, remote, Losses(known.objects.difference(objects), known.copies))


def _path(repo: Repository, name: str) -> Path:
    return directory_of(repo.layout, name) / _FILE
