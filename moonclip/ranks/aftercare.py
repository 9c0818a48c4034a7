"""What rank 0 does after saves, when all ranks have been told of them: it drops what is not kept, and pushes."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from store.errors import PushFailed
from store.ids import CommitId
from store.repository import Repository
from store.saving.saver import SaveRequest
from store.upkeep.retention import Keep
from store.worker.collecting import Collector
from store.worker.messages import Order, Outcome
from store.worker.pushes import Pushes
from store.worker.tidying import Tidier

from ..saving.wishes import Wish


class Aftercare:
    """Of one manager. Other ranks than 0 have one that has nothing to do. For one thread at a time.

    Args:
        repo: the store.
        keep: what to keep of all commits after each save; ``None`` for everything.
        pushes: pushes that follow saves; ``None`` if none do.
    """

    def __init__(self, repo: Repository, keep: Keep | None, pushes: Pushes | None) -> None:
        self._keep = keep
        self._pushes = pushes
        self._tidier = Tidier(repo)
        self._collector = Collector(repo)

    @property
    def may_push(self) -> bool:
        """Whether pushes follow saves: then the end of a run is to be waited for."""
        return self._pushes is not None

    @contextmanager
    def making_way(self) -> Iterator[None]:
        """Have gc and pushes stand still while a save is made."""
        with self._collector.standing_still():
            if self._pushes is None:
                yield
            else:
                with self._pushes.making_way():
                    yield

    def follow(self, wish: Wish, branch: str, commit: CommitId, stored_bytes: int) -> None:
        """Do what follows a save. Raises nothing.

        Args:
            wish: what was asked for.
            branch: where it was committed.
            commit: the commit.
            stored_bytes: about what it took, on all ranks together.
        """
        if self._pushes is not None:
            order = self._pushes.marked(Order(SaveRequest((), branch=branch), 0, None, wish.tag))
            self._pushes.note(order, Outcome(commit), by_worker=False)
            self._pushes.start_here()
        self._tidier.note(self._keep, stored_bytes)
        self._tidier.prune()
        if not self._collector.is_running and self._tidier.takes_gc():
            self._collector.start()

    def by_hand(self) -> AbstractContextManager[None]:
        """No push follows what is saved meanwhile."""
        return nullcontext() if self._pushes is None else self._pushes.by_hand()

    def await_room(self) -> None:
        """Wait while the remote is too far behind, and getting on."""
        if self._pushes is not None:
            self._pushes.await_room()

    def hurry(self) -> None:
        """From now on no save waits for the remote."""
        if self._pushes is not None:
            self._pushes.hurry()

    def await_pushes(self) -> None:
        """Wait until the pushes that have come due have ended. Raises nothing for those that failed."""
        if self._pushes is not None:
            self._pushes.await_all()

    def finish(self) -> None:
        """There will be no more saves: push what is left. Raises nothing."""
        self._collector.end()
        if self._pushes is not None:
            self._pushes.finish()

    @property
    def has_failure(self) -> bool:
        """Whether a push failed, and nobody was told of it."""
        return self._pushes is not None and self._pushes.has_failure

    def taken_failure(self) -> PushFailed | None:
        """What went wrong with the last push, if nobody was told of it; from now on somebody was."""
        return None if self._pushes is None else self._pushes.taken_failure()
