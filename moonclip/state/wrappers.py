"""Names without what wrappers put in front of them: a model is the same one compiled, replicated or checkpointed.

``torch.compile``, data parallelism, activation checkpointing and FSDP wrap a module in another, which shows in the
names of its state dict: ``_orig_mod.``, ``module.``, and so on. Pure.
"""

import re
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

_PRIVATE: Final = re.compile(r"(?<![^.])(?:(?:_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.)+")
_ANY: Final = re.compile(r"(?<![^./])(?:(?:_orig_mod|module|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.)+")
_FRONT: Final = "module."
_DIGITS: Final = re.compile(r"-?[0-9]+")


def canonical_names(names: Collection[str]) -> dict[str, str]:
    """What the names of a module's state dict are without wrappers.

    A module of one's own may be called ``module``, but no name of one's own begins like torch's private ones. So
    ``module.`` is taken off only where it is in front of every name, as data parallelism puts it.

    Args:
        names: all keys of one state dict.

    Returns:
        The canonical name of each; itself for all if two of them would become one.
    """
    depth = _front_depth(names)
    canonical = {name: _unwrapped(name, depth) for name in names}
    return canonical if len(set(canonical.values())) == len(canonical) else {name: name for name in names}


def canonical_state(state: Any) -> Any:
    """A module's state dict under canonical names; anything else as it is.

    It is known by the ``_metadata`` that torch hangs on it: keys of a dict of one's own are nobody else's business.
    """
    metadata = getattr(state, "_metadata", None)
    if type(state) is not OrderedDict or not isinstance(metadata, dict) or not _may_be_wrapped(state):
        return state
    canonical = canonical_names(state.keys())
    if all(name == given for given, name in canonical.items()):
        return state
    renamed: Any = OrderedDict((canonical[name], value) for name, value in state.items())
    depth = _front_depth(state.keys())
    renamed._metadata = type(metadata)(  # the innermost of several modules that come to have one path
        (_unwrapped(f"{path}.", depth).removesuffix("."), versions) for path, versions in metadata.items()
    )
    return renamed


def bare(name: str) -> str:
    """A stored name without anything that a wrapper may have put there, wherever it is: to compare by, not to keep."""
    if _ANY.search(name) is None:
        return name
    return "/".join(map(_bare_segment, name.split("/")))


def respelling(stored: Collection[str], wanted: Iterable[str]) -> dict[str, str]:
    """How a target spells stored names that differ from its own by wrappers only.

    Args:
        stored: names of a commit's item.
        wanted: names of its target.

    Returns:
        The target's name for each stored one that has another; none for those that could be two.
    """
    known = set(wanted)
    lacking = _by_bare(known.difference(stored))
    if not lacking:
        return {}
    spare = _by_bare(name for name in stored if name not in known)
    return {spare[name][0]: lacking[name][0] for name in lacking if len(lacking[name]) == len(spare.get(name, ())) == 1}


def respelled_paths(metadata: Mapping[str, Any], paths: Iterable[str]) -> OrderedDict[str, Any]:
    """What a state dict says of modules, with what it says of wrapped ones also under the paths that they have here.

    Args:
        metadata: by stored path.
        paths: of the modules that it is for.
    """
    known = {_bare_path(path): versions for path, versions in metadata.items()}
    found = OrderedDict(metadata)
    for path in paths:
        if path not in found and (plain := _bare_path(path)) in known:
            found[path] = known[plain]
    return found


def _bare_path(path: str) -> str:
    return bare(f"{path}.") if path else ""


def _by_bare(names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(bare(name), []).append(name)
    return found


def _bare_segment(segment: str) -> str:
    stripped = _ANY.sub("", segment)
    is_number_now = stripped != segment and _DIGITS.fullmatch(stripped) is not None
    return f"~s{stripped}" if is_number_now else stripped  # as names tell the text "0" from the number


def _may_be_wrapped(names: Iterable[Any]) -> bool:
    """Whether there is anything to take off; seen at a tenth of the cost of doing so."""
    return all(type(name) is str for name in names) and any("module." in name or "_orig_mod." in name for name in names)


def _front_depth(names: Collection[str]) -> int:
    """How many ``module.`` are in front of every name, once private prefixes are gone."""
    depth = 0
    while names and all(_unwrapped(name, depth).startswith(_FRONT) for name in names):
        depth += 1
    return depth


def _unwrapped(name: str, depth: int) -> str:
    plain = _PRIVATE.sub("", name)
    for _ in range(depth):
        plain = plain.removeprefix(_FRONT)
    return plain
