"""Push: refs of a store to a remote, and first all that they need.

    refs -> what lacks, planned as packs -> packs, each before its idx -> absence records -> refs, one by one
         -> the list of condemned packs again: if it is another, all that the refs need is looked for, and sent again

If packs were sent, which may have taken long, the list is looked at before the refs move, too. So a ref is without what
a gc took away meanwhile, until that is sent again, only if it was taken between this look and the move.

Each step leaves a remote that is whole: until a ref moves, what was sent is only more than anybody needs. A push that
was killed is run again, and sends what is still missing.

Spec: docs/format.md, section on remotes.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ...errors import Conflict, Incompatible, NotFound
from ...ids import CommitId, ObjectId
from ...index.depths import resolve_depths
from ...limits import PUSH_ATTEMPTS
from ...naming.refnames import RefName, branch_name, describe, short_name, tag_name
from ...repository import Repository
from ...saving.leases import acquire_lease
from ...upkeep.absences import Absence, encode_record
from ..condemned import Condemned
from ..losses import forget, noted_losses
from ..names import PackName, RefKey
from ..refchanges import RefChange, decide
from ..refmerge import SHORT_STORE_DIGITS, tracking_name
from ..remote import Remote, RemoteRef
from .chainsthere import depths_there
from .outgoing import Outgoing, There, again, needed_by, outgoing
from .outpacks import OutPack, Stale, locate, plan_packs
from .sending import Progress, Sent, send

_ACTION = "push"

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Pushed:
    """What a push did, or would do.

    Attributes:
        remote: the remote's name.
        changes: what was done to each ref that was asked for.
        commit_count: commits that the remote lacked.
        hollow_count: those of them that went without all of their content, of which something is absent here too.
        object_count: objects that it lacked, commits among them.
        stored_bytes: what these take.
        sent_bytes: what went over the wire; of a dry run, what would if nothing of it is there already.
        pack_count: packs that were sent.
        skipped_packs: packs that were there already.
    """

    remote: str
    changes: list[RefChange] = field(default_factory=list)
    commit_count: int = 0
    hollow_count: int = 0
    object_count: int = 0
    stored_bytes: int = 0
    sent_bytes: int = 0
    pack_count: int = 0
    skipped_packs: int = 0

    def require_all(self) -> None:
        """See that no ref was rejected.

        Raises:
            Conflict: some were; the message says why, and what to do. The others moved.
        """
        rejected = [change for change in self.changes if change.why == "rejected"]
        if rejected:
            reasons = "; ".join(f"{describe(change.name)}: {change.reason}" for change in rejected)
            raise Conflict(f"not pushed: {reasons}", refs=[change.name for change in rejected])


def push(
    repo: Repository,
    remote: Remote,
    branches: Sequence[str] = (),
    *,
    every: bool = False,
    tags: Sequence[str] = (),
    delete: Sequence[str] = (),
    force_with_lease: bool = False,
    dry_run: bool = False,
    lost: Collection[ObjectId] = (),
    progress: Progress | None = None,
) -> Pushed:
    """Push refs to a remote, and all that it lacks of what they need.

    Args:
        repo: the store.
        remote: the remote.
        branches: short names; the current branch if nothing at all is named.
        every: push every branch.
        tags: short names of tags to push as well.
        delete: short names of branches to delete there, or of tags, as ``tags/<name>``.
        force_with_lease: move branches also backwards or sideways, from where they were last seen, and tags from
            wherever they are.
        dry_run: only find out what would be done.
        lost: objects that the remote is known to have lost, beside those that a check noted: not relied on, and sent
            again if they are here.
        progress: told of bytes.

    Returns:
        What was done. A ref that was rejected is among the changes, the others are pushed nevertheless: see
        :meth:`Pushed.require_all`.

    Raises:
        NotFound: there is no such branch or tag here.
        Conflict: a gc of the remote condemns packs as fast as they are sent.
        Pruned: a commit that is to be pushed is wholly absent here.
        Corrupt: something that has to be here is missing or damaged; no ref moved.
        ReadOnly: the store cannot be written from here.
        RemoteError: the remote cannot be reached, refuses, or fails. Refs may have moved, and are whole then.
        OSError: the disk failed.
    """
    repo.require_writable()
    wanted = _wanted(repo, branches, tags, delete, every=every)
    known_lost = noted_losses(repo, remote).union(lost)
    return _Push(repo, remote, known_lost, progress, force=force_with_lease).run(wanted, dry_run=dry_run)


def _wanted(
    repo: Repository, branches: Sequence[str], tags: Sequence[str], delete: Sequence[str], *, every: bool
) -> dict[RefName, CommitId | None]:
    names = [branch_name(each) for each in branches]
    if every:
        names += repo.refs.names("branches/")
    elif not (branches or tags or delete):
        names.append(branch_name(repo.refs.head()))
    names += [tag_name(each) for each in tags]
    wanted: dict[RefName, CommitId | None] = {}
    for name in names:
        commit = repo.refs.read(name)
        if commit is None:
            known = ", ".join(map(short_name, repo.refs.names(name.partition("/")[0] + "/"))) or "none"
            raise NotFound(f"there is no {describe(name)} here to push; there are: {known}", ref=name)
        wanted[name] = commit
    for each in delete:
        tag = each.removeprefix("tags/")
        wanted[tag_name(tag) if tag != each else branch_name(each)] = None
    return wanted


class _Push:
    """One push."""

    def __init__(
        self, repo: Repository, remote: Remote, lost: frozenset[ObjectId], progress: Progress | None, *, force: bool
    ) -> None:
        self._repo = repo
        self._remote = remote
        self._force = force
        self._lost = lost
        self._progress = progress
        self._pushed = Pushed(remote.name)
        self._sent = Sent({})

    def run(self, wanted: Mapping[RefName, CommitId | None], *, dry_run: bool) -> Pushed:
        repo, remote, pushed = self._repo, self._remote, self._pushed
        found = remote.refs() if remote.format() is not None else {}
        if remote.renew_if_copied(found):
            _log.warning(
                "%s: refs of this store were moved by another one with the same id: one is a copy of the other's"
                " directory. This one goes by another id now, %s; `moonclip fetch` shows what both have",
                remote.name,
                remote.store_id[:SHORT_STORE_DIGITS],
            )
        held = {name: found[key] for name in wanted if (key := remote.own_key(name)) in found} if found else {}
        commits = {name: ref.commit for name, ref in held.items() if ref.commit is not None}
        others = [key.name for key, ref in found.items() if ref.commit and key == remote.own_key(key.name)]
        pushed.changes = decide(repo, remote.name, wanted, commits, others=others, force_with_lease=self._force)
        moving = [change for change in pushed.changes if change.is_move]
        left = remote.cache.unchecked()
        here = self._lost_and_here()
        if not moving and not here and left is None:
            return pushed if dry_run else self._done()
        if not dry_run:
            remote.prepare()
        tips = [change.new for change in moving if change.new is not None]
        with acquire_lease(repo.layout.root, repo.files) as lease:
            for tip in tips:
                lease.add_commit(tip)
            version = self._send_all(tips, found, here, dry_run=dry_run)
            if dry_run:
                return pushed
            version, unchecked = self._about_to_move(tips, version, left)
            if self._sent.pack_count:
                version = self._recheck(unchecked, version)
            pushed.changes = [self._moved(change, held) if change.is_move else change for change in pushed.changes]
            self._recheck(unchecked, version)
            remote.cache.keep_unchecked(None, [])
        return self._done()

    # --- packs ------------------------------------------------------------------------------------------------------

    def _lost_and_here(self) -> frozenset[ObjectId]:
        """What the remote lost and can get from here. What the index does not know is not looked for at every push."""
        known = self._repo.index.places_of_each(self._lost) if self._lost else {}
        return frozenset(object_id for object_id, places in known.items() if places)

    def _send_all(
        self,
        tips: Sequence[CommitId],
        refs: Mapping[RefKey, RemoteRef],
        lost: frozenset[ObjectId],
        *,
        dry_run: bool,
    ) -> str | None:
        """Send all that the remote lacks of what some commits need.

        Returns:
            Version of the list of condemned packs that was heeded.
        """
        if not tips and not lost:
            return None
        remote = self._remote
        condemned = remote.condemned()
        doomed = self._objects_in(condemned)
        there = There(
            tips=[ref.commit for ref in refs.values() if ref.commit is not None],
            absent=_by_commit(remote.absent()) if refs else {},
            distrusted=self._lost | doomed,
            lost=lost,
            depths=lambda object_ids: depths_there(remote.cache, object_ids),
        )
        found = self._send(tips, there, condemned.names(), dry_run=dry_run)
        # What is both reached and condemned, another push just made so; what else it did, only a look at all can tell.
        return condemned.version if doomed.isdisjoint(found.objects) else None

    def _send(self, tips: Sequence[CommitId], there: There, doomed: set[PackName], *, dry_run: bool) -> Outgoing:
        """Send it, as planned, or else as planned anew from what is here by then."""
        for attempt in range(1, PUSH_ATTEMPTS + 1):
            try:
                found, packs = self._plan(tips, there)
                self._note(found, packs)
                if not dry_run:
                    send(self._repo, self._remote, packs, doomed, self._sent, self._progress)
                    self._say_absent(found)
            except Stale:
                if attempt == PUSH_ATTEMPTS:
                    raise
            else:
                return found
        raise AssertionError

    def _plan(self, tips: Sequence[CommitId], there: There) -> tuple[Outgoing, list[OutPack]]:
        found = outgoing(self._repo, tips, there)
        return found, list(plan_packs(locate(self._repo, found.objects)))

    def _note(self, found: Outgoing, packs: Sequence[OutPack]) -> None:
        self._pushed.commit_count = len(found.commits)
        self._pushed.hollow_count = len({record.commit for record in found.absent})
        self._pushed.object_count = len(found.objects)
        self._pushed.stored_bytes = sum(entry.stored_bytes for pack in packs for entry in pack.table.entries)
        self._pushed.pack_count = len(packs)
        self._pushed.sent_bytes = sum(pack.size_bytes for pack in packs)

    def _objects_in(self, condemned: Condemned) -> set[ObjectId]:
        idxs, faults = self._remote.idxs(condemned.names())
        for error in faults.values():
            if isinstance(error, Incompatible):
                raise error  # else it is gone already, or its idx is damaged: then nobody has what is in it
        return {entry.id for idx in idxs.values() for entry in idx.table.entries}

    def _say_absent(self, found: Outgoing) -> None:
        if found.absent:
            records = (encode_record(record._replace(origin="")) for record in found.absent)
            self._remote.add_absent(record.decode().rstrip("\n") for record in records)

    # --- refs -------------------------------------------------------------------------------------------------------

    def _moved(self, change: RefChange, held: Mapping[RefName, RemoteRef]) -> RefChange:
        """Move a ref, and remember where it is."""
        try:
            self._remote.swap_ref(self._remote.own_key(change.name), held.get(change.name), change.new)
        except Conflict as error:
            return change.rejected(str(error))
        return change

    def _done(self) -> Pushed:
        """Remember where the branches of the remote are, and tell what was done."""
        for change in self._pushed.changes:
            if change.why != "rejected":
                self._track(change.name, change.new)
        sent = self._sent
        self._pushed.sent_bytes, self._pushed.pack_count = sent.sent_bytes, sent.pack_count
        self._pushed.skipped_packs = sent.skipped_count
        if self._lost:
            forget(self._repo, self._remote, (entry.id for pack in sent.names.values() for entry in pack.table.entries))
        return self._pushed

    def _track(self, name: RefName, commit: CommitId | None) -> None:
        tracking = tracking_name(self._remote.name, name)
        if tracking is None:
            return
        known = self._repo.refs.read(tracking)
        if known == commit:
            return
        with suppress(Conflict):  # a fetch at the same time saw something later
            if commit is None:
                self._repo.refs.update(tracking, known, None, _ACTION)
            else:
                self._repo.set_ref(tracking, known, commit, _ACTION)

    # --- what was condemned meanwhile -------------------------------------------------------------------------------

    def _about_to_move(
        self, tips: Sequence[CommitId], version: str | None, left: tuple[str | None, list[CommitId]] | None
    ) -> tuple[str | None, list[CommitId]]:
        """Write down what is to be looked at again even if we are killed; gives it, and what an earlier push left."""
        commits = list(tips)
        if left is not None:
            version = left[0]  # the older list: if there is another by now, all is looked at
            commits += [each for each in left[1] if self._repo.lookup.commit(each) is not None]
        if commits:
            self._remote.cache.keep_unchecked(version, commits)
        return version, commits

    def _recheck(self, tips: Sequence[CommitId], version: str | None) -> str | None:
        """See that nothing that the refs need is about to be deleted: gc may have looked before they moved.

        Args:
            tips: what the refs name.
            version: of the list of condemned packs for which that is known.

        Returns:
            That of the list for which it is known now.

        Raises:
            Conflict: more was condemned each time.
            Corrupt: the remote lost what is not here either.
        """
        for _ in range(PUSH_ATTEMPTS):
            if not tips or (condemned := self._remote.condemned()).version == version:
                return version
            version = condemned.version
            doomed = condemned.names()
            readable, unusable = self._readable_there(doomed)
            absent = _by_commit(self._remote.absent())
            lacking = [each for each in needed_by(self._repo, tips, absent) if each not in readable]
            if lacking:
                found = again(self._repo, lacking, readable)
                packs = list(plan_packs(locate(self._repo, found.objects)))
                send(self._repo, self._remote, packs, doomed | unusable, self._sent, self._progress)
        raise Conflict(
            f"packs of {self._remote.name} are condemned faster than they can be sent again; end the gc of that remote,"
            " then push again",
            remote=self._remote.name,
        )

    def _readable_there(self, condemned: set[PackName]) -> tuple[dict[ObjectId, int], set[PackName]]:
        """Objects that can be read from packs that stay, and how deep they lie there; and packs without a sound idx."""
        there = self._remote.packs().keys()
        for name in self._sent.names.keys() - there:  # a gc may have removed, and forgotten, what was just sent
            del self._sent.names[name]
        sent = {name: pack.table for name, pack in self._sent.names.items() if name not in condemned}
        names = there - condemned - sent.keys()
        idxs, faults = self._remote.idxs(names)
        tables = [*sent.values(), *(idx.table for idx in idxs.values())]
        entries = [entry for table in tables for entry in table.entries]
        resolved = resolve_depths(entries, lambda _: None).resolved
        # Of several copies the shallowest, which is given first.
        return {entry.id: depth for entry, depth in reversed(resolved)}, set(faults)


def _by_commit(records: Sequence[Absence]) -> dict[CommitId, list[Absence]]:
    found: dict[CommitId, list[Absence]] = {}
    for record in records:
        found.setdefault(record.commit, []).append(record)
    return found
