"""Getting commits from a remote, and what they hold.

1. The remote's refs are read, and what its packs hold as far as that takes to know all commits they reach.
2. What is wanted of these and is not here is got: trees, then chunks, and bases of deltas.
3. Commits are entered, and records say what may be missing.
4. Remote-tracking refs move, and tags are made; tags that are here stay where they are.

Whatever ends it leaves the refs as they were, or some of them moved, and a store that is whole; a rerun receives only
what lacks. Branches of which something is damaged on the remote stay where they are; the others are fetched.

Spec: docs/format.md, section on remotes.
"""

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import Busy, Corrupt, Incompatible, NotFound
from ...format.objects import Commit
from ...format.pack import OBJECT_HEADER_BYTES, Sealed, unseal
from ...ids import CommitId, short
from ...limits import FETCH_ATTEMPTS
from ...naming.refnames import BRANCHES, RefName, branch_name, short_name
from ...repository import Repository
from ...saving.leases import Lease, acquire_lease
from ...upkeep.absences import Absence, Why
from ..configured import remotes
from ..names import RefKey
from ..refchanges import RefChange
from ..refmerge import merge
from ..remote import Remote
from .catalogue import Catalogue
from .contents import Content, Wish, changes, content_of
from .gathering import Gathering, HolesFound, closed_by, give_up
from .lineage import Lineage
from .obtaining import Obtained, Obtaining, Progress
from .receiving import Receiver
from .settling import Settling
from .tracking import Tracking

_log = logging.getLogger(__name__)

_BRINGS_BACK = (Why.SHALLOW, Why.PARTIAL, Why.COLLECTED)


@dataclass(slots=True)
class Fetched:
    """What a fetch did, or would do.

    Attributes:
        remote: the remote's name.
        changes: refs here: remote-tracking branches and tags.
        commit_count: commits that are new here.
        object_count: objects that were received, and
        stored_bytes: what they take here.
        received_bytes: what was read of the remote's packs.
        most_bytes: of a dry run, what would be received at most.
        absent: commits of which something is absent, new records only.
        damaged: branches and tags of the remote that were not fetched, by full name there, and why.
        diverged: short names of branches on which stores went different ways.
    """

    remote: str
    changes: list[RefChange] = field(default_factory=list)
    commit_count: int = 0
    object_count: int = 0
    stored_bytes: int = 0
    received_bytes: int = 0
    most_bytes: int = 0
    absent: frozenset[CommitId] = frozenset()
    damaged: dict[RefName, str] = field(default_factory=dict)
    diverged: list[str] = field(default_factory=list)

    def require_sound(self) -> None:
        """See that nothing was damaged.

        Raises:
            Corrupt: something was; the message says what.
        """
        for name, why in self.damaged.items():
            raise Corrupt(f"{self.remote}: {name} was not fetched: {why}", ref=name, remote=self.remote)


def fetch(
    repo: Repository,
    remote: Remote,
    branches: Sequence[str] = (),
    *,
    commits: Collection[CommitId] = (),
    items: Sequence[str] | None = None,
    depth: int | None = None,
    lazy: bool | None = None,
    prune: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Fetched:
    """Get what a remote has.

    What is absent here since an earlier fetch left it out comes too, unless this one leaves it out as well. What was
    pruned here does not, unless ``commits`` names it.

    Args:
        repo: the store.
        remote: the remote.
        branches: short names of branches; all branches, and tags, if empty and ``commits`` too.
        commits: commits whose content is wanted, also if it was pruned here; not that of their ancestors.
        items: names of the items to fetch; of others only that they exist. All if ``None``.
        depth: how many commits of each line to fetch with their content; all if ``None``.
        lazy: fetch commits without any content; if ``None``, as the remote is configured, unless ``items`` are named.
        prune: remove remote-tracking branches of what was deleted there.
        dry_run: change nothing, only tell which commits and refs there are, and how much they take at most.
        progress: told how far it is.

    Returns:
        What was done.

    Raises:
        NotFound: the remote has no such branch, or no commit such an item.
        Incompatible: a depth below 1, or a remote that needs a newer version.
        ReadOnly: the store cannot be written from here.
        Busy: gc takes away what is here as fast as it is found.
        Corrupt: what is here is damaged; or a ref of the remote is; or something of ``commits`` that is not here.
        RemoteError: the remote failed. What was received by then need not be received again.
        OSError: the disk failed; likewise.
    """
    if depth is not None and depth < 1:
        raise Incompatible(f"a depth of {depth}: it must be at least 1")
    repo.require_writable()
    remote.format()
    is_all = not branches and not commits
    refs = _wanted(remote, {key: ref.commit for key, ref in remote.refs().items()}, branches, is_all=is_all)
    if lazy is None:
        config = remotes(repo.layout, repo.files).get(remote.name)
        lazy = items is None and not commits and config is not None and config.lazy
    wanted = frozenset(()) if lazy else None if items is None else frozenset(items)
    with acquire_lease(repo.layout.root, repo.files) as lease:
        job = _Fetch(repo, remote, lease, refs, frozenset(commits), progress)
        if dry_run:
            job.foresee()
        else:
            job.bring(wanted, depth)
        job.move(is_all=is_all, prune=prune, dry_run=dry_run)
    return job.done


class _Fetch:
    """One fetch."""

    def __init__(
        self,
        repo: Repository,
        remote: Remote,
        lease: Lease,
        refs: Mapping[RefKey, CommitId | None],
        named_commits: frozenset[CommitId],
        progress: Progress | None,
    ) -> None:
        self.done = Fetched(remote.name)
        self._repo = repo
        self._remote = remote
        self._lease = lease
        self._named = named_commits
        self._refs = refs
        self._tips = frozenset(commit for commit in refs.values() if commit is not None) | named_commits
        self._catalogue = Catalogue(remote)
        self._lineage = Lineage(repo, self._catalogue, remote.storage.url)
        self._lineage.add(self._tips)
        self._obtaining = Obtaining(repo, remote, self._catalogue, lease, progress)
        self.done.commit_count = sum(repo.index.commit(each) is None for each in self._lineage.commits)

    # --- content ----------------------------------------------------------------------------------------------------

    @property
    def _heads(self) -> frozenset[CommitId]:
        """Where a depth is counted from: a tag may name what is far behind."""
        branches = [commit for key, commit in self._refs.items() if key.name.startswith(f"{BRANCHES}/")]
        return self._named.union(commit for commit in branches if commit is not None)

    def foresee(self) -> None:
        """Say what it takes at most: what of the remote's objects is not here, whether or not these commits need it."""
        if self.done.commit_count or self._named:
            sizes = self._catalogue.sizes()
            self.done.most_bytes = sum(sizes[object_id] for object_id in self._obtaining.missing(sizes))

    def bring(self, items: frozenset[str] | None, depth: int | None) -> None:
        """Get content, and enter commits."""
        for commit_id in self._tips:
            self._lease.add_commit(commit_id)
        within: Collection[CommitId] | None = None if depth is None else self._lineage.within(self._heads, depth)
        if not self._refs:
            within = self._named  # these, and not what they are made on
        wish = Wish(self._remote.name, items, within, self._named, self._tips, time.time_ns())
        new, old = self._contents(wish)
        self._require_items(items, [*new.values(), *old.values()])
        for _ in range(FETCH_ATTEMPTS):
            try:
                return self._bring(new, old)
            except HolesFound as error:
                _log.info("gc is at work, so some of it is fetched again: %s", error)
        raise Busy("objects are swept as fast as this fetch finds them here; try again when gc is done")

    def _contents(self, wish: Wish) -> tuple[dict[CommitId, Content], dict[CommitId, Content]]:
        """What is to be here of new commits, and of old ones of which something was absent."""
        records = self._repo.absences.all()
        new = {
            commit_id: content_of(commit_id, commit, records.get(commit_id, ()), wish, is_new=True)
            for commit_id, commit in self._lineage.commits.items()
        }
        old: dict[CommitId, Content] = {}
        for commit_id in self._may_come_back(records):
            commit = self._repo.commit(commit_id)
            old[commit_id] = content_of(commit_id, commit, records[commit_id], wish, is_new=False)
        changed = changes(old, records)
        return new, {commit_id: content for commit_id, content in old.items() if commit_id in changed}

    def _may_come_back(self, records: Mapping[CommitId, Sequence[Absence]]) -> list[CommitId]:
        """Commits that wanted tips reach and of which something is absent that can be fetched."""
        absent = {
            commit_id
            for commit_id, known in records.items()
            if commit_id not in self._lineage.commits
            and (commit_id in self._named or any(record.why in _BRINGS_BACK for record in known))
        }
        if not absent:
            return []
        return sorted(absent & self._lineage.reached(self._tips))

    def _require_items(self, items: frozenset[str] | None, contents: Sequence[Content]) -> None:
        known = {item for commit in self._lineage.commits.values() for item in commit.items}
        unknown = sorted((items or frozenset()) - known)
        if unknown and contents and known:
            raise NotFound(
                f"no commit of {self._remote.name} that is new here has an item {unknown[0]!r}; they have"
                f" {', '.join(sorted(known))}",
                item=unknown[0],
            )

    def _bring(self, new: dict[CommitId, Content], old: dict[CommitId, Content]) -> None:
        parents = {parent for commit in self._lineage.commits.values() for parent in commit.parents}
        closed = closed_by(self._repo, sorted(parents & self._lineage.settled))
        gathering = Gathering(self._repo, self._obtaining, closed.trees)
        try:
            gathering.gather([*new.values(), *old.values()])
        finally:
            self._count(gathering.obtained)
        self._do_without(gathering, new, old)
        sound = self._lineage.sound()
        self._store_commits(sound)
        settling = Settling(self._repo, self._lease, closed)
        known = {commit_id: commit for commit_id, commit in sound.items() if self._repo.index.commit(commit_id)}
        settling.restore({**{each: self._repo.commit(each) for each in old}, **known}, new | old)
        settling.enter({commit_id: commit for commit_id, commit in sound.items() if commit_id not in known}, new)
        self.done.commit_count = sum(commit_id not in self._lineage.broken for commit_id in self._lineage.commits)
        self.done.absent = frozenset(each for each in sound if new[each].records)

    def _do_without(self, gathering: Gathering, new: dict[CommitId, Content], old: dict[CommitId, Content]) -> None:
        lacking = list(gathering.lacking(new | old))
        if not lacking:
            return
        permits: dict[CommitId, list[Absence]] = {}
        for record in self._remote.absent():
            permits.setdefault(record.commit, []).append(record)
        damaged = give_up(new | old, lacking, permits, self._remote.storage.url)
        for commit_id in old.keys() & {commit_id for commit_id, _, _ in lacking}:
            del old[commit_id]  # its records stand, which say what is absent
            if commit_id in damaged:
                _log.warning("%s", damaged[commit_id])
            if commit_id in self._named:
                raise Corrupt(
                    damaged.get(commit_id, f"{self._remote.name} lacks some of commit {short(commit_id)} too")
                )
        self._lineage.spoil({commit_id: why for commit_id, why in damaged.items() if commit_id in new})

    def _store_commits(self, commits: Mapping[CommitId, Commit]) -> None:
        sealed: list[Sealed] = []
        for commit_id in self._obtaining.missing(commits):
            stored = self._catalogue.stored_commit(CommitId(commit_id))
            if stored is not None:
                header, _ = unseal(stored, f"commit {short(commit_id)}")
                sealed.append(
                    Sealed(header, (stored,), len(stored), stored[OBJECT_HEADER_BYTES - 16 : OBJECT_HEADER_BYTES])
                )
        receiver = Receiver(self._repo, self._lease, self._remote.storage.url, frozenset())
        receiver.store(sealed)
        self._count(Obtained(receiver.received.object_count, receiver.received.stored_bytes))

    def _count(self, got: Obtained) -> None:
        self.done.object_count += got.object_count
        self.done.stored_bytes += got.stored_bytes
        self.done.received_bytes += got.read_bytes

    # --- refs -------------------------------------------------------------------------------------------------------

    def move(self, *, is_all: bool, prune: bool, dry_run: bool) -> None:
        """Move refs to what came."""
        merged = merge(self._refs, self._remote.store_id, self._lineage.contains)
        tracking = Tracking(self._repo, self._remote, self._lineage)
        if prune:  # first: what is gone may be in the way of what came, as exp is of exp/lr3
            tracking.prune(merged, is_all=is_all, dry_run=dry_run)
        tracking.move(merged, dry_run=dry_run)
        self.done.changes, self.done.damaged = tracking.changes, tracking.damaged
        self.done.diverged = merged.diverged


def _wanted(
    remote: Remote, refs: Mapping[RefKey, CommitId | None], branches: Sequence[str], *, is_all: bool
) -> dict[RefKey, CommitId | None]:
    """Of a remote's refs those of some branches; all if none is named.

    Raises:
        NotFound: there is no such branch.
    """
    if is_all:
        return dict(refs)
    wanted = {branch_name(branch) for branch in branches}
    known = {key.name for key, commit in refs.items() if commit is not None}
    for name in sorted(wanted - known):
        listed = ", ".join(sorted(short_name(each) for each in known if each.startswith(f"{BRANCHES}/"))) or "none"
        raise NotFound(f"{remote.storage.url} has no branch {short_name(name)!r}; it has: {listed}", ref=name)
    return {key: commit for key, commit in refs.items() if key.name in wanted}
