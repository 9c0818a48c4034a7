"""Garbage collection of a remote: packs that no ref of any store needs are condemned, and a later run deletes them.

1. Read the list of condemned packs, then the refs of all stores, then what packs there are and what is in them.
2. Mark what the refs need. If anything of that cannot be read, nothing is removed: what is needed is not known then.
3. Packs that nothing needs and that are older than the grace are *condemned*: written to ``gc/condemned``. Whoever
   pushes counts them as absent from then on, and whoever began before looks at the list before and after moving a ref.
4. Of packs that were condemned a grace ago, those that still nothing needs are *doomed* in that list, which nothing
   takes back, then deleted: first the idx, so that the pack is not there for anybody, then the pack. Their names stay
   listed for another grace.

Every time is the remote's own clock. Parts of packs and uploads that nobody finished go the same way. Whatever ends a
run leaves a remote of which everything that refs name can be read, and another run completes it.

Where the server does not compare and swap, two runs at once may overwrite each other's list: run it from one place.

Spec: docs/format.md, section on remotes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from uuid import uuid4

from ...errors import Busy, Conflict, Corrupt
from ...limits import MAX_CONDEMNED_PACKS, MAX_REMOTE_KEYS, REMOTE_GC_ATTEMPTS, REMOTE_GRACE_SECONDS
from ...naming.refnames import describe
from ...repository import Repository
from ..condemned import Condemned, encode_condemned
from ..holdings import Holdings, read_holdings
from ..losses import noted
from ..names import CONDEMNED, SCRATCH, PackName, RefKey
from ..packlist import Listing, all_keys, listing
from ..remote import Remote, RemoteRef
from .dead import Sentence, needed_packs, sentence
from .marks import Marks, Permits, mark
from .treereading import TreeReading

__all__ = ["Progress", "RemoteCollected", "remote_gc"]

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is to do. What it raises ends gc."""

_NS: int = 1_000_000_000


@dataclass(slots=True)
class RemoteCollected:
    """What gc did on a remote, or would do.

    Attributes:
        is_dry_run: whether it only told.
        commit_count: commits that refs of whichever store reach.
        pack_count: packs that were there, parts of packs aside.
        pack_bytes: what they took.
        removed_count: packs and parts of packs that are gone, since they were condemned a grace ago.
        freed_bytes: what they took.
        condemned_count: those that are condemned now; the next run after the grace removes them.
        condemned_bytes: what they take.
        pardoned_count: those that were condemned, and are needed again.
        aborted_count: unfinished uploads that were ended.
        wait_seconds: until the first of the condemned ones may be removed; 0 if there are none.
    """

    is_dry_run: bool
    commit_count: int = 0
    pack_count: int = 0
    pack_bytes: int = 0
    removed_count: int = 0
    freed_bytes: int = 0
    condemned_count: int = 0
    condemned_bytes: int = 0
    pardoned_count: int = 0
    aborted_count: int = 0
    wait_seconds: float = 0.0


def remote_gc(
    repo: Repository,
    remote: Remote,
    *,
    grace_seconds: float = REMOTE_GRACE_SECONDS,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RemoteCollected:
    """Remove from a remote what no ref of any store leads to.

    Args:
        repo: a store that knows the remote; what it has need not be read from there.
        remote: the remote.
        grace_seconds: what is newer is left alone, and what is condemned stays for so long. It has to be longer than
            any push takes from its beginning to its end.
        dry_run: change nothing, only tell.
        progress: told how far it is.

    Returns:
        What was done. The first run condemns, a later one removes.

    Raises:
        Corrupt: something that a ref needs is missing or damaged on the remote. Nothing was removed.
        Incompatible: a newer version wrote something there. Nothing was removed.
        Busy: the remote changes all the time. Nothing was removed.

    Cost: a request for each idx, and for 8 MiB of trees, that are not here; half a kilobyte of memory an object.
    """
    gc = _RemoteGc(repo, remote, round(grace_seconds * _NS), progress or _nobody_watches)
    done = RemoteCollected(is_dry_run=dry_run)
    if remote.format() is None:  # nothing was ever pushed there: whatever lies there is none of ours
        return done
    for _ in range(REMOTE_GC_ATTEMPTS):
        seen = gc.look()
        if dry_run:
            return gc.tell(seen, done)
        try:
            gc.condemn(seen)
        except Conflict:  # another gc was faster
            continue
        gc.remove(seen)
        done.aborted_count = gc.tidy(seen)
        return gc.tell(seen, done)
    raise Busy(f"{remote.storage.url}: its refs or condemned packs changed each time they were looked at; run gc again")


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one look showed."""

    now_ns: int
    condemned: Condemned
    refs: dict[RefKey, RemoteRef]
    packs: Listing
    marks: Marks
    verdict: Sentence
    stay: set[PackName]


class _RemoteGc:
    """One run."""

    def __init__(self, repo: Repository, remote: Remote, grace_ns: int, progress: Progress) -> None:
        self._repo = repo
        self._remote = remote
        self._storage = remote.storage
        self._grace_ns = grace_ns
        self._progress = progress

    # --- looking ----------------------------------------------------------------------------------------------------

    def look(self) -> _Seen:
        """Find out what is needed, and decide.

        Raises:
            Corrupt: that cannot be found out.
        """
        condemned = self._remote.condemned()
        refs = self._remote.refs()
        now_ns = self._storage.now_ns()
        packs = listing(self._storage)
        self._progress("reading what packs hold", 0, len(packs))
        doomed = [name for name in condemned.names() if name.text in condemned.doomed]
        holdings = read_holdings(self._remote, packs, without=doomed)
        holdings.drop(noted(self._repo, self._remote).copies)
        self._progress("reading what packs hold", len(packs), len(packs))
        marks = self._mark(refs, holdings)
        young = [name for name, listed in packs.items() if now_ns - listed.modified_ns < self._grace_ns]
        stay = needed_packs(holdings, packs, marks.required | marks.permitted, young) - set(doomed)
        verdict = sentence(packs.keys() - stay, condemned, now_ns, self._grace_ns, MAX_CONDEMNED_PACKS)
        return _Seen(now_ns, condemned, refs, packs, marks, verdict, stay)

    def _mark(self, refs: dict[RefKey, RemoteRef], holdings: Holdings) -> Marks:
        tips = {ref.commit: key for key, ref in refs.items() if ref.commit is not None}
        self._progress("marking", 0, len(tips))
        trees = TreeReading(self._repo, self._remote, holdings)
        readable = holdings.readable()
        permits = Permits(self._remote.absent())
        marks = mark(tips, self._repo, holdings, permits, trees, readable)
        lost = marks.lost(readable) | marks.unreadable.keys()
        if lost:
            first = min(lost)
            why = marks.unreadable.get(first, f"object {first.hex()} is in no pack there, or what it is stored against")
            raise Corrupt(
                f"{self._storage.url} lacks {len(lost)} objects that its refs ({_some(tips.values())}) need, so nothing"
                f" is removed: {why}; see `moonclip fsck --remote {self._remote.name}`, push from a store that has"
                " them, then run gc again",
                objects=[object_id.hex() for object_id in sorted(lost)],
            )
        self._progress("marking", len(tips), len(tips))
        return marks

    # --- removing ---------------------------------------------------------------------------------------------------

    def condemn(self, seen: _Seen) -> None:
        """Write down what is about to go, unless that is known.

        Raises:
            Conflict: refs or the list are not what they were.
        """
        before, verdict = seen.condemned, seen.verdict
        if verdict.condemned == dict(before.packs) and verdict.doomed == dict(before.doomed):
            return
        if verdict.doomed.keys() - before.doomed.keys() and self._remote.refs() != seen.refs:
            raise Conflict(f"refs of {self._storage.url} moved meanwhile")
        data = encode_condemned(verdict.condemned, verdict.doomed, uuid4().hex)
        found = self._remote.format()
        if found is not None and found.refs == "shared":
            self._storage.put_if(CONDEMNED, data, before.version)
        else:
            self._storage.put(CONDEMNED, data)

    def remove(self, seen: _Seen) -> None:
        """Delete what is doomed. Their names stay listed until the next run after the grace."""
        due = seen.verdict.due
        if due:
            self._progress("removing packs", 0, len(due))
            self._storage.delete([name.idx_key for name in due])
            self._storage.delete([name.pack_key for name in due])
            self._progress("removing packs", len(due), len(due))

    def tidy(self, seen: _Seen) -> int:
        """Remove what probes and uploads left that nobody finished; returns how many uploads."""
        old_ns = seen.now_ns - self._grace_ns
        probes = [stat.key for stat in all_keys(self._storage, SCRATCH, MAX_REMOTE_KEYS) if stat.modified_ns <= old_ns]
        if probes:
            self._storage.delete(probes)
        old = [upload for upload in self._storage.unfinished() if upload.started_ns <= old_ns]
        for upload in old:
            self._storage.abort(upload)
        return len(old)

    def tell(self, seen: _Seen, done: RemoteCollected) -> RemoteCollected:
        """Say what was done."""
        due, packs, waiting = seen.verdict.due, seen.packs, seen.verdict.waiting
        whole = [listed for listed in packs.values() if listed.is_whole]
        done.commit_count = len(seen.marks.commits)
        done.pack_count, done.pack_bytes = len(whole), sum(listed.size_bytes for listed in whole)
        done.removed_count, done.freed_bytes = len(due), sum(packs[name].size_bytes for name in due)
        done.condemned_count = len(waiting)
        done.condemned_bytes = sum(listed.size_bytes for name, listed in packs.items() if name.text in waiting)
        done.pardoned_count = sum(name.text in seen.condemned.packs for name in seen.stay)
        if waiting:
            done.wait_seconds = max(0, min(waiting.values()) + self._grace_ns - seen.now_ns) / _NS
        return done


def _some(refs: Iterable[RefKey]) -> str:
    named = sorted({describe(key.name) for key in refs})
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")


def _nobody_watches(_name: str, _done: int, _total: int) -> None:
    """Nobody asked to be told."""
