"""What keeps things: the roots that gc marks from, that fsck starts at, and that pruning spares.

Refs, what reflogs name within their expiry, pins, and what the leases of living writers name. Everything that these
reach by way of parents is live: commits, their trees and chunks, but for what absence records permit to be missing.
Whatever a commit's parents are, its object and its row in the index stay for ever.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..history.walks import CommitSource, newest_first
from ..ids import CommitId, PackId
from ..index import CommitRow
from ..limits import REFLOG_EXPIRY_NS
from ..naming.refnames import BRANCHES, RefName
from ..repository import Repository
from ..saving.leases import living_leases


@dataclass(frozen=True, slots=True)
class Roots:
    """Roots, by what makes them so.

    Attributes:
        leased: commits that living writers are making or about to name.
        packs: packs that they are making.
        refs: branches, tags and remote-tracking branches.
        pins: pinned commits.
        logged: what lines of reflogs name that have not expired, by full name of the ref, or ``HEAD``; such lines among
            them as may be about to come true, or never did.
    """

    leased: frozenset[CommitId]
    packs: frozenset[PackId]
    refs: Mapping[RefName, CommitId]
    pins: frozenset[CommitId]
    logged: Mapping[str, frozenset[CommitId]]

    @property
    def branches(self) -> dict[RefName, CommitId]:
        """Of the refs, those that are branches of this store."""
        return {name: commit for name, commit in self.refs.items() if name.startswith(f"{BRANCHES}/")}

    @property
    def commits(self) -> frozenset[CommitId]:
        """All of them."""
        return self.leased.union(self.refs.values(), self.pins, *self.logged.values())


def read_roots(repository: Repository) -> Roots:
    """Read the roots. Takes no lock.

    In this order, in which nothing is missed that moves from one kind to another meanwhile: a lease is held until its
    ref is durable, refs that go are in a reflog, and so are those that are made.

    Raises:
        Corrupt: a ref, reflog, pin or lease is damaged: what it keeps is not known.
    """
    leases = living_leases(repository.layout.root, repository.files)
    refs = repository.refs.list()
    for name in repository.refs.logged_names():
        if name not in refs:
            repository.refs.read(name)  # deleted, or it has lost its file, and what it keeps is not known
    pins = repository.pins.all()
    logged = repository.refs.logged_since(time.time_ns() - REFLOG_EXPIRY_NS)
    return Roots(
        leased=frozenset[CommitId]().union(*(lease.commits for lease in leases)),
        packs=frozenset[PackId]().union(*(lease.packs for lease in leases)),
        refs=refs,
        pins=frozenset(pins),
        logged={name: frozenset(commits) for name, commits in logged.items()},
    )


def live_commits(source: CommitSource[CommitRow], roots: Iterable[CommitId]) -> Iterator[CommitRow]:
    """Everything that some commits reach, each once and before its parents."""
    return newest_first(source, roots)
