"""One save of all ranks in the background: each stores its part, rank 0 publishes, and all of them hear what became.

A rank that fails says so at once, and rank 0 tells all others without waiting for those that still store: so all hear
it, whose failure it was, and nothing is published.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

from store.disk.files import Files
from store.errors import MoonclipError, PartsOutdated, RankLost
from store.format.canonical import Node
from store.ids import CommitId, from_hex
from store.limits import RANK_ATTEMPTS
from store.parallel import Threads
from store.saving.phases import Phases
from store.saving.rankbases import RankMemory
from store.saving.ranks import RankSaved, save_rank
from store.saving.rankscales import Largest, largest
from store.saving.scales import Scales
from store.saving.shards import RankItem

from .group import OUTCOME, VERDICT, Group
from .messages import encoded, error_of, told

_PARTING_SECONDS: Final = 10.0
"""How long rank 0 waits, after a save that failed, for ranks that still store. A thread that hears from one while the
interpreter shuts down aborts the process."""


class Verdict(NamedTuple):
    """What became of a save, the same on all ranks.

    Attributes:
        branch: where the next one goes, and
        tip: what it comes after.
        commit: what was committed, if anything was.
        error: what failed; beside a commit, if that was made all the same.
    """

    branch: str
    tip: CommitId | None
    commit: CommitId | None = None
    error: BaseException | None = None

    def encode(self, rank: int) -> Node:
        """As a message."""
        return {
            "branch": self.branch,
            "tip": self.tip and self.tip.hex(),
            "commit": self.commit and self.commit.hex(),
            "error": None if self.error is None else told(self.error, rank),
        }

    @classmethod
    def decode(cls, node: Node) -> "Verdict":
        """Inverse of :meth:`encode`; the error is of the same class."""
        tip, commit = (None if each is None else CommitId(from_hex(each)) for each in (node["tip"], node["commit"]))
        return cls(node["branch"], tip, commit, None if node["error"] is None else error_of(node["error"]))


class RankPart:
    """What this rank stores of one save.

    Args:
        root: the store's directory.
        snapshot: the snapshot's id.
        rank: which rank this is.
        items: gives what it stores, once that is copied; if true, with the bytes of what it else calls unchanged.
        last: its last save, if that was committed and its bytes are still there.
        threads: encode.
        files: do the I/O, and keep the memory that packs go through from save to save.
        error: what already kept it from having anything to store.
        scaling: gives the scales of all ranks, from what looks for this one's largest numbers; ``None`` if no rank has
            any to find.

    Attributes:
        saved: what became of it.
        error: what ended it.
        captured_not: what already ended it when it was to be captured, which its caller is told himself.
    """

    def __init__(
        self,
        root: Path,
        snapshot: str,
        rank: int,
        items: Callable[[bool], Sequence[RankItem]],
        last: RankMemory | None,
        threads: Threads,
        files: Files,
        error: BaseException | None = None,
        scaling: Callable[[Callable[[], Sequence[Largest]]], Scales] | None = None,
    ) -> None:
        self._root = root
        self._snapshot = snapshot
        self._rank = rank
        self._items = items
        self._last = last
        self._threads = threads
        self._files = files
        self._scaling = scaling
        self._scales: Scales | None = {} if scaling is None else None
        self.error = error
        self.captured_not = error
        self.saved: RankSaved | None = None

    def store(self, *, again: bool = False) -> Node:
        """Store it; again in full, if it has been stored before.

        Returns:
            What is told of it.
        """
        try:
            if self._scaling is not None and self._scales is None:
                self._scales = self._scaling(self._largest)
            self.saved = save_rank(
                self._root,
                self._snapshot,
                self._rank,
                self._captured(in_full=again),
                last=None if again else self._last,
                again=again,
                scales=self._scales,
                files=self._files,
                threads=self._threads,
            )
        except BaseException as error:  # noqa: BLE001 - whatever ends it ends the save of all
            self.error = error
            return {"error": told(error, self._rank)}
        return {"error": None}

    def _largest(self) -> Sequence[Largest]:
        return largest(self._captured(), self._threads, Phases())

    def _captured(self, *, in_full: bool = False) -> Sequence[RankItem]:
        if self.error is not None:
            raise self.error
        return self._items(in_full)


def lead(
    group: Group,
    number: int,
    part: RankPart,
    publish: Callable[[], None],
    judge: Callable[[BaseException | None], Verdict],
    tell: Callable[[Verdict], None],
    lost: Verdict,
) -> None:
    """Rank 0's side of a save.

    Args:
        group: lines to the others.
        number: of the save.
        part: what rank 0 itself stores.
        publish: commits what all have stored.
        judge: what follows, from the error that ended it, if one did.
        tell: told of the verdict, after the others; storing may still go on then.
        lost: the verdict if ``judge`` gives none, but for the error.

    Returns once rank 0 stores no more, and has heard from the others, if they do not take long.
    """
    again: Sequence[int] | None = None
    for attempt in range(RANK_ATTEMPTS):
        tag = number * RANK_ATTEMPTS + attempt
        outcomes: SimpleQueue[Node] = SimpleQueue()
        own = threading.Thread(
            target=_store_into, args=(outcomes, part, _has_to_store(0, again), attempt > 0), daemon=True
        )
        own.start()
        hearing = [
            threading.Thread(target=_hear, args=(group, rank, tag, outcomes), daemon=True) for rank in group.others
        ]
        for thread in hearing:
            thread.start()
        failed = _first_failure(outcomes, group.world_size)
        error = part.error or (None if failed is None else error_of(failed))
        if error is None:
            try:
                publish()
            except PartsOutdated as outdated:
                if attempt + 1 < RANK_ATTEMPTS:
                    again = outdated.ranks
                    _tell_all(group, tag, {"again": list(again)})
                    continue
                error = outdated
            except BaseException as raised:  # noqa: BLE001 - whatever ends it ends the save of all
                error = raised
        verdict = _judged(judge, error, lost)
        _tell_all(group, tag, verdict.encode(group.rank))
        tell(verdict)
        own.join()
        _join_all(hearing, _PARTING_SECONDS)
        return


def _join_all(threads: Sequence[threading.Thread], within_s: float) -> None:
    until = time.monotonic() + within_s
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


def _judged(judge: Callable[[BaseException | None], Verdict], error: BaseException | None, lost: Verdict) -> Verdict:
    """The verdict, whatever keeps it from being found: the others wait for one."""
    try:
        return judge(error)
    except BaseException as raised:  # noqa: BLE001 - it ends the save of all
        if error is None:
            return lost._replace(error=raised)
        error.add_note(f"What follows from that could not be settled: {type(raised).__name__}: {raised}")
        return lost._replace(error=error)


def follow(group: Group, number: int, part: RankPart, tell: Callable[[Verdict], None], lost: Verdict) -> None:
    """Any other rank's side of a save.

    Args:
        group: lines to the others.
        number: of the save.
        part: what this rank stores.
        tell: told of the verdict; storing may still go on then.
        lost: the verdict if rank 0 gives none: whether it published is not known.

    Returns once this rank stores no more.
    """
    again: Sequence[int] | None = None
    for attempt in range(RANK_ATTEMPTS):
        tag = number * RANK_ATTEMPTS + attempt
        has_to = _has_to_store(group.rank, again)
        own = threading.Thread(target=_store_and_say, args=(group, tag, part, has_to, attempt > 0), daemon=True)
        own.start()
        try:
            message = group.receive(0, VERDICT, tag)
        except MoonclipError as error:
            tell(lost._replace(error=error))
            own.join()
            return
        if "again" not in message:
            verdict = Verdict.decode(message)
            if verdict.error is not None and isinstance(part.error, BaseException) and _is_of(verdict, group.rank):
                verdict = verdict._replace(error=part.error)
            tell(verdict)
            own.join()
            return
        again = message["again"]
        own.join()


def _has_to_store(rank: int, again: Sequence[int] | None) -> bool:
    return again is None or rank in again


def _is_of(verdict: Verdict, rank: int) -> bool:
    return isinstance(verdict.error, MoonclipError) and verdict.error.details.get("failed_rank") == rank


def _store_into(outcomes: "SimpleQueue[Node]", part: RankPart, has_to_store: bool, again: bool) -> None:  # noqa: FBT001 - a thread's target
    outcome: Node = {"error": None}
    try:
        if has_to_store:
            outcome = part.store(again=again)
    finally:
        outcomes.put(outcome)  # rank 0 waits for it without an end; what ended the part is in the part


def _store_and_say(group: Group, tag: int, part: RankPart, has_to_store: bool, again: bool) -> None:  # noqa: FBT001 - a thread's target
    outcome = part.store(again=again) if has_to_store else {"error": None}
    with suppress(RankLost):  # who waits for the verdict hears of that, too
        group.send(0, OUTCOME, tag, encoded(outcome))


def _hear(group: Group, rank: int, tag: int, outcomes: "SimpleQueue[Node]") -> None:
    """A thread for each rank: a wait cannot be for any of several, and hears of an end only of whom it waits for."""
    try:
        outcomes.put(group.receive(rank, OUTCOME, tag))
    except MoonclipError as error:
        outcomes.put({"error": told(error, rank)})


def _first_failure(outcomes: "SimpleQueue[Node]", count: int) -> Node | None:
    for _ in range(count):
        outcome = outcomes.get()
        if outcome["error"] is not None:
            return outcome["error"]
    return None


def _tell_all(group: Group, tag: int, message: Node) -> None:
    data = encoded(message)
    for rank in group.others:
        with suppress(RankLost):  # a dead one needs no telling
            group.send(rank, VERDICT, tag, data)
