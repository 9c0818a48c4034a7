"""Loading: everything is compared before anything is written, then all tensors are read at once."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from store.errors import Incompatible
from store.format.entries import ContainerEntry, TensorEntry
from store.format.objects import Commit
from store.ids import short
from store.repository import Repository
from store.upkeep.collector import collector_paused

from ..saving.reports import Loading
from ..specs import Resharder
from ..state.entries import LoadedTensor
from ..state.flattening import unflatten
from ..state.items import Prepared, is_stateful, prepare
from ..state.policy import Policy
from ..state.refusals import located
from .elsewhere import NOWHERE, Elsewhere
from .lazy import LazySource, LazyTensor
from .matching import Match, is_closed
from .nearby import item_elsewhere, telling_where_else
from .numbering import Parameters, parameter_names
from .plans import Plan
from .reading import read
from .stored import StoredItem, ancestors, full_name, items_matching, names_matching, read_item
from .targets import held_bytes

VERIFY: Final = ("fast", "full")
"""Levels of verification: what is stored against its checksum; and what it decodes to against the chunk's BLAKE3."""

_WAYS_OUT: Final = (
    "\n  To go on from a commit that has such an item, resume(rev=…, branch='new-name', …); to go on without it, do not"
    " ask for it, or say strict=False"
)
"""What to do about items that a commit lacks."""

_log = logging.getLogger("moonclip")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of a commit to load.

    Attributes:
        into: targets by item, or ``None`` for new objects.
        items: names or globs of items, or ``None`` for all (those of ``into``, if given).
        names: names or globs of tensors and values, ``item::name`` or ``name`` in any item; ``None`` for all.
        strict: whether names and dtypes have to agree exactly. If not, names that only one side has are passed over,
            and tensors are cast where torch casts them without changing their kind of number.
        verify_hash: whether every chunk is checked against its BLAKE3, too.
        resharders: by item, see :data:`~moonclip.specs.Resharder`.
        loading: keeps account of how it goes.
        elsewhere: what other ranks take.
        optional: items whose target stays as it is, with a warning, where the commit has none.
    """

    into: Mapping[str, Any] | None = None
    items: Sequence[str] | None = None
    names: Sequence[str] | None = None
    strict: bool = True
    verify_hash: bool = False
    resharders: Mapping[str, Resharder] = field(default_factory=dict)
    loading: Loading = field(default_factory=Loading)
    elsewhere: Elsewhere = NOWHERE
    optional: Collection[str] = ()


def verifies_hash(verify: str) -> bool:
    """Whether a level of verification includes chunks' BLAKE3.

    Raises:
        Incompatible: there is no such level.
    """
    if verify not in VERIFY:
        raise Incompatible(f"verify is 'fast' or 'full', not {verify!r}", verify=verify)
    return verify == "full"


def load(
    repo: Repository,
    commit: Commit,
    wanted: Wanted,
    policy: Policy,
    require: Callable[[Sequence[Plan]], None] | None = None,
) -> dict[str, Any]:
    """Load items of a commit.

    Args:
        repo: the store.
        commit: the commit.
        wanted: what of it, and where to.
        policy: what decoding may do.
        require: looks at what is about to be read, before anything is; what it raises ends the load.

    Returns:
        By item: the target, or what takes its place if it could not be altered; new objects without targets.

    Raises:
        Incompatible: something does not fit; the message lists it all, and no target was altered.
        NotFound: an item or name that is not there.
        Unsafe: it holds something that the policy does not allow.
        Corrupt: stored bytes are damaged. Tensors may be partly written, other objects have not been touched.

    Cost: proportional to the bytes that are wanted; trees aside, nothing else is read.
    """
    with collector_paused(), telling_where_else(repo, commit):
        return _load(repo, commit, wanted, policy, require)


def _load(
    repo: Repository, commit: Commit, wanted: Wanted, policy: Policy, require: Callable[[Sequence[Plan]], None] | None
) -> dict[str, Any]:
    loading = wanted.loading
    loading.commit = commit
    with loading.phase("compare"):
        prepared = _prepared(repo, commit, wanted, policy)
        plans = [_plan(one, wanted, policy) for one in prepared]
        if require is not None:
            require(plans)
        _tell_passed_over(plans)
    with loading.phase("read"):
        for plan in plans:
            plan.match.make_ready()
        _read(repo, plans, loading, verify_hash=wanted.verify_hash)
    with loading.phase("place"):
        built = [plan.built() for plan in plans]
        return {one.stored.name: one.finish(state) for one, state in zip(prepared, built, strict=True)}


def load_lazily(source: LazySource, commit: Commit, wanted: Wanted, policy: Policy) -> dict[str, Any]:
    """Items of a commit with a :class:`LazyTensor` in the place of each tensor.

    Args:
        source: where they will read from.
        commit: the commit.
        wanted: what of it; without targets.
        policy: what decoding may do.

    Raises:
        Incompatible: there are targets, or a dtype or class is not there.
        NotFound: an item or name that is not there.
        Unsafe: it holds something that the policy does not allow.
        Corrupt: stored bytes are damaged.

    Cost: reads trees and values, and tensors that are no entries of their own (arrays, sparse tensors).
    """
    if wanted.into is not None:
        raise Incompatible("lazy tensors read when they are looked at, so there can be no targets; pass one of the two")
    with telling_where_else(source.repo, commit):
        stored, _ = _stored(source.repo, commit, wanted)
        names = None if wanted.names is None else names_matching(stored, wanted.names)
    plans = [
        Plan(
            item,
            Match(item.name),
            None if names is None else names[item.name],
            policy,
            lazy=partial(_lazy_tensor, source, item.name),
        )
        for item in stored
        if names is None or item.name in names
    ]
    read(source.repo, [one for plan in plans for one in plan.reads()], verify_hash=source.verify_hash)
    return {plan.stored.name: plan.built() for plan in plans}


def load_tensors(
    repo: Repository,
    commit: Commit,
    names: Sequence[str],
    policy: Policy,
    *,
    verify_hash: bool = False,
    loading: Loading | None = None,
) -> dict[str, Any]:
    """Tensors by full name, ``item::name``.

    Args:
        repo: the store.
        commit: the commit.
        names: as in :class:`Wanted`; the name of a container asks for all tensors in it.
        policy: what decoding may do.
        verify_hash: as in :class:`Wanted`.
        loading: likewise.

    Raises:
        NotFound: a name that is no tensor's. Corrupt: stored bytes are damaged.
    """
    loading = loading or Loading()
    items = [_without_values(read_item(repo, commit, item)) for item in commit.items]
    with telling_where_else(repo, commit):
        found = names_matching(items, names)
    plans = [Plan(item, Match(item.name), found[item.name], policy) for item in items if item.name in found]
    with loading.phase("read"):
        _read(repo, plans, loading, verify_hash=verify_hash)
    return {name: tensor for plan in plans for name, tensor in _tensors(plan, policy)}


def _read(repo: Repository, plans: Sequence[Plan], loading: Loading, *, verify_hash: bool) -> None:
    reads = [one for plan in plans for one in plan.reads()]
    read(repo, reads, verify_hash=verify_hash)
    loading.read_bytes += sum(map(held_bytes, (one.out for one in reads)))


# --- planning -----------------------------------------------------------------------------------------------------


def _prepared(repo: Repository, commit: Commit, wanted: Wanted, policy: Policy) -> list[Prepared]:
    """Items and targets, compared; all that does not fit is told at once."""
    stored, problems = _stored(repo, commit, wanted)
    names = None if wanted.names is None else names_matching(stored, wanted.names)
    parameters = Parameters(parameter_names(wanted.into or {}), wanted.elsewhere.parameters)
    prepared = [
        _prepare(item, wanted, policy, None if names is None else names[item.name], parameters)
        for item in stored
        if names is None or item.name in names
    ]
    ways_out = _WAYS_OUT if problems else ""
    problems += [problem for one in prepared for problem in one.match.problems(strict=wanted.strict)]
    _require_none(commit, problems, ways_out)
    return prepared


def _stored(repo: Repository, commit: Commit, wanted: Wanted) -> tuple[list[StoredItem], list[str]]:
    """Items to load, and a line for each that should be there."""
    if wanted.into is None:
        return [read_item(repo, commit, item) for item in items_matching(commit, wanted.items)], []
    asked = list(wanted.into) if wanted.items is None else items_matching(commit, wanted.items)
    here = [item for item in asked if item in commit.items and item in wanted.into]
    absent = [item for item in asked if item not in commit.items]
    for item in absent:
        if item in wanted.optional:
            _log.warning("commit %s has no %s: it stays as it is; give it to save, too", short(commit.id), item)
    lacking = [item for item in absent if item not in wanted.optional] if wanted.strict else []
    problems = [
        f"{item}: no such item in the commit, which has {', '.join(commit.items)}{item_elsewhere(repo, commit, item)}"
        for item in lacking
    ]
    return [read_item(repo, commit, item) for item in here], problems


def _prepare(
    item: StoredItem, wanted: Wanted, policy: Policy, names: set[str] | None, parameters: Parameters
) -> Prepared:
    target = None if wanted.into is None else wanted.into[item.name]
    if target is None:
        return Prepared(item, names, Match(item.name), _itself)
    with located(item.name):
        resharder = wanted.resharders.get(item.name)
        prepared = prepare(
            item, target, policy, strict=wanted.strict, names=names, parameters=parameters, resharder=resharder
        )
    prepared.match.elsewhere.update(wanted.elsewhere.entries.get(item.name, ()))
    return prepared


def _plan(one: Prepared, wanted: Wanted, policy: Policy) -> Plan:
    target = None if wanted.into is None else wanted.into[one.stored.name]
    has_template = target is not None and not is_stateful(target)
    return Plan(one.stored, one.match, one.names, policy, has_template=has_template)


def _lazy_tensor(source: LazySource, item: str, name: str, entry: TensorEntry) -> LazyTensor:
    return LazyTensor(source, entry, full_name(item, name))


def _itself(loaded: Any) -> Any:
    return loaded


def _require_none(commit: Commit, problems: Sequence[str], ways_out: str) -> None:
    if problems:
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise Incompatible(
            f"commit {short(commit.id)} does not fit; nothing was changed:\n{lines}{ways_out}",
            commit=commit.id.hex(),
            problems=list(problems),
        )


def _tell_passed_over(plans: Sequence[Plan]) -> None:
    names = [full_name(plan.stored.name, name) for plan in plans for name in plan.passed_over]
    if names:
        _log.warning("%d names are on one side only and were passed over: %s", len(names), ", ".join(names))


# --- tensors by name ----------------------------------------------------------------------------------------------


def _without_values(item: StoredItem) -> StoredItem:
    entries = {name: entry for name, entry in item.entries.items() if isinstance(entry, TensorEntry | ContainerEntry)}
    return StoredItem(item.name, entries, item.ties, {})


def _tensors(plan: Plan, policy: Policy) -> list[tuple[str, Any]]:
    """Plain tensors, and composite ones built from theirs."""
    entries = plan.entries()
    closed = {name for name, entry in plan.stored.entries.items() if name in entries and is_closed(entry)}
    tensors: list[tuple[str, Any]] = []
    for name, entry in entries.items():
        if not closed.isdisjoint(ancestors(name)):
            continue
        if name in closed:
            tensors.append((full_name(plan.stored.name, name), unflatten(entries, (), policy, plan.stored.name, name)))
        elif isinstance(entry, LoadedTensor):
            tensors.append((full_name(plan.stored.name, name), entry.tensor))
    return tensors
