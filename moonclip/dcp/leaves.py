"""What is no tensor: objects that torch hands to storage as ``torch.save`` archives, and wants back as such.

An object whose planner is torch's own is taken as it is, before it becomes an archive. From anybody else's planner an
archive is opened with ``weights_only``, which runs no code but that of classes that the policy lists. Either way it is
stored as a typed value.
"""

import io
import pickle
import sys
import threading
from typing import Any, Final

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem

from store.errors import Incompatible, Unsafe

from ..state.policy import Policy

_ARCHIVE: Final = b"PK\x03\x04"

_listing: Final = threading.Lock()
"""For what torch is told of classes: it holds for the whole process."""


def leaf_of(planner: SavePlanner, item: WriteItem, policy: Policy) -> Any:
    """The object that an entry of a plan stands for.

    Args:
        planner: gives it.
        item: the entry, of type ``BYTE_IO``.
        policy: whether an archive may hold pickles, and of which classes.

    Raises:
        Incompatible: the planner gives bytes that are no archive, or a damaged one.
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
        with _listing, torch.serialization.safe_globals(_listed(policy)):
            return torch.load(archive, map_location="cpu", weights_only=not policy.allow_pickle)
    except pickle.UnpicklingError as error:
        raise Unsafe(
            f"{fqn}: it cannot be stored without unpickling it, and that runs code; save plain data instead, or if you"
            f" trust it, pass allow=[...] or allow_pickle=True ({error})",
            name=fqn,
        ) from error
    except Exception as error:  # zips, pickles and what they hold may raise anything
        raise Incompatible(
            f"{fqn}: the planner gives an archive that torch.load cannot read: {error!r:.200}", name=fqn
        ) from error


def _listed(policy: Policy) -> list[Any]:
    """Classes that the policy lists, of modules that are imported: objects in archives have just been those of some."""
    named = (text.rpartition(".") for text in policy.classes)
    found = (vars(sys.modules[module]).get(name) for module, _, name in named if module in sys.modules)
    return [each for each in found if isinstance(each, type)]
