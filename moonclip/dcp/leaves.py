"""What is no tensor: objects that torch hands to storage as ``torch.save`` archives, and wants back as such.

An object whose planner is torch's own is taken as it is, before it becomes an archive. From anybody else's planner an
archive is opened with ``weights_only``, which runs no code of its. Either way it is stored as a typed value.
"""

import io
import pickle
from typing import Any, Final

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem

from store.errors import Incompatible, Unsafe

from ..state.policy import Policy

_ARCHIVE: Final = b"PK\x03\x04"


def leaf_of(planner: SavePlanner, item: WriteItem, policy: Policy) -> Any:
    """The object that an entry of a plan stands for.

    Args:
        planner: gives it.
        item: the entry, of type ``BYTE_IO``.
        policy: whether an archive may hold pickles.

    Raises:
        Incompatible: the planner gives bytes that are no archive.
        Unsafe: an archive holds a pickle, and the policy does not allow that.
    """
    if isinstance(planner, DefaultSavePlanner) and _archives_as_it_is(type(planner)):
        return planner.lookup_object(item.index)
    given = planner.resolve_data(item)
    if not isinstance(given, io.BytesIO):
        return given
    return _opened(given, item.index.fqn, policy)


def archived(value: object) -> io.BytesIO:
    """An object as the archive that a load planner opens."""
    archive = io.BytesIO()
    torch.save(value, archive)
    archive.seek(0)
    return archive


def _archives_as_it_is(kind: type[DefaultSavePlanner]) -> bool:
    """Whether what a planner hands over is what it looks up, in an archive."""
    own = DefaultSavePlanner
    return kind.resolve_data is own.resolve_data and kind.transform_object is own.transform_object


def _opened(archive: io.BytesIO, fqn: str, policy: Policy) -> Any:
    archive.seek(0)
    if archive.read(len(_ARCHIVE)) != _ARCHIVE:
        raise Incompatible(f"{fqn}: the planner gives bytes that are no archive of torch.save", name=fqn)
    archive.seek(0)
    try:
        return torch.load(archive, map_location="cpu", weights_only=not policy.allow_pickle)
    except pickle.UnpicklingError as error:
        raise Unsafe(
            f"{fqn}: it cannot be stored without unpickling it, and that runs code; save plain data instead, or if you"
            f" trust it, pass allow_pickle=True ({error})",
            name=fqn,
        ) from error
