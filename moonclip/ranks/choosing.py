"""Rank 0's work for a save: it says who writes what, and publishes what all have written."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from store.format.canonical import Node
from store.ids import CommitId
from store.naming import tags
from store.repository import Repository
from store.saving.bases import LastSave
from store.saving.inputs import ItemInput
from store.saving.publish import Approve
from store.saving.saver import SaveRequest, require_legal
from store.saving.snapshots import Snapshot
from store.saving.underway import saving

from ..saving.binding import Binding
from ..saving.wishes import Wish
from ..state.policy import Policy
from .plan import Offer, joined_told, shares, to_put_together
from .replicas import Copies, copies_of, encode_copies
from .saving import Verdict


class Chooser:
    """What rank 0 knows of all ranks. Not thread-safe; on others there is one that is never asked.

    Args:
        repo: the store.
        binding: the branch to commit to.
        policy: whether unknown objects may be pickled.
        world_size: how many ranks there are.
        approve: told of each commit before anybody sees it; what it raises ends the save. ``None`` if nobody is.
        checks_copies: whether ranks compare what they have copies of.
    """

    def __init__(
        self,
        repo: Repository,
        binding: Binding,
        policy: Policy,
        world_size: int,
        approve: Approve | None = None,
        *,
        checks_copies: bool = False,
    ) -> None:
        self._checks_copies = checks_copies
        self._approve = approve
        self._repo = repo
        self._binding = binding
        self._policy = policy
        self._world_size = world_size
        self._offers: dict[int, Offer] = {}
        self._last: LastSave | None = None
        self._begun: tuple[Snapshot, SaveRequest] | None = None

    def answers(self, wish: Wish, said: Sequence[Node]) -> list[Node]:
        """A snapshot for all to store into, and what :meth:`agreed` gives. Or that alone, if offers are made once more.

        Args:
            wish: what rank 0 was asked to commit.
            said: what each rank holds, ``None`` if that did not change, and whether it remembers its last save.

        Raises:
            Conflict: the tag exists.
            Incompatible: something cannot be stored, or what the ranks hold does not fit together.
            OSError: writing failed.
        """
        if wish.tag is not None and not wish.overwrite:
            tags.require_free_tag(self._repo, wish.tag)
        request = replace(wish.request(self._binding, self._policy), last=self._last)
        require_legal(request)
        told = self.agreed(said)
        if "together" in told[0]:
            return told
        self._give_up()
        remember = all(each["remembers"] for each in said)
        snapshot = self._repo.create_snapshot(request, self._world_size, ranks_remember=remember)
        self._begun = snapshot, request
        common = {
            "snapshot": snapshot.id,
            "remember": remember,
            "scaled": any(offer.needs_scales for offer in self._offers.values()),
            "checks": self._checks_copies,
        }
        return [{**common, **own} for own in told]

    def agreed(self, said: Sequence[Node]) -> list[Node]:
        """What each rank writes, if that is not what it last was.

        Or, instead: what all ranks have to make their offers with, once more.

        Args:
            said: what each rank holds, ``None`` if that did not change.

        Raises:
            Incompatible: what the ranks hold does not fit together.
        """
        changed = {rank: Offer.decode(each["offer"]) for rank, each in enumerate(said) if each["offer"] is not None}
        self._offers |= changed
        together = to_put_together(self._in_order()) if changed else None
        if together is not None:
            return [{"together": joined_told(together)}] * self._world_size
        return self._shares() if changed else [{"share": None} for _ in said]

    def forget(self) -> None:
        """Have all ranks tell what they hold, next time; and give up a save that not all of them began."""
        self._offers.clear()
        self._give_up()

    @contextmanager
    def publishing(self, wish: Wish) -> "Iterator[Publisher]":
        """The save that was begun, to be published inside of this, or given up after it."""
        assert self._begun is not None
        (snapshot, request), self._begun = self._begun, None
        last, self._last = self._last, None
        with snapshot:
            yield Publisher(self._repo, self._binding, wish, snapshot, request, self._approve)
        self._last = snapshot.last or last

    def _give_up(self) -> None:
        """A save that was begun and never came to be published, as after an interrupt, holds a lease."""
        if self._begun is not None:
            self._begun[0].abandon()
            self._begun = None

    def _shares(self) -> list[Node]:
        offers = self._in_order()
        copies: list[Copies] = [{} for _ in offers]
        if self._checks_copies:
            copies = copies_of([offer.holdings for offer in offers], [offer.others for offer in offers])
        return [
            {"share": share.encode(), "copies": encode_copies(own)}
            for share, own in zip(shares(offers), copies, strict=True)
        ]

    def _in_order(self) -> list[Offer]:
        return [self._offers[rank] for rank in range(self._world_size)]


class Publisher:
    """Publishes one save, and says what follows from how that went.

    Args:
        repo: the store.
        binding: the branch; moves with the commit.
        wish: what was asked for.
        snapshot: holds what all ranks have stored.
        request: what it was begun with.
        approve: see :class:`Chooser`.

    Attributes:
        branch: where it is committed.
        commit: the commit, once it is made.
    """

    def __init__(
        self,
        repo: Repository,
        binding: Binding,
        wish: Wish,
        snapshot: Snapshot,
        request: SaveRequest,
        approve: Approve | None,
    ) -> None:
        self._approve = approve
        self._repo = repo
        self._binding = binding
        self._wish = wish
        self._snapshot = snapshot
        self._request = request
        self.branch = request.branch
        self.commit: CommitId | None = None

    def publish(self) -> None:
        """Commit it, and tag that.

        Raises:
            PartsOutdated: ranks have to store theirs again.
            MoonclipError: whatever else :meth:`~store.saving.snapshots.Snapshot.finalize` raises, or the tag could not
                be set: then the commit is made all the same.
            OSError: writing failed.
        """
        wish = self._wish
        with saving(self._repo.layout.root, self._repo.files, self._request.branch, self._approve) as ask:
            self.commit = self._snapshot.finalize(ask)
            self._binding.bind(self._request.branch, self.commit)
            if wish.tag is not None:
                tags.set_tag(self._repo, wish.tag, self.commit, overwrite=wish.overwrite)

    def judge(self, error: BaseException | None) -> Verdict:
        """What all ranks are told, from the error that ended the save, if one did."""
        if error is not None and self.commit is None:
            self._snapshot.abandon()
            asked = replace(self._request, items=[ItemInput(item, {}) for item in self._wish.items])
            self._binding.follow(asked, error)
        return Verdict(self._binding.branch, self._binding.tip, self.commit, error)
