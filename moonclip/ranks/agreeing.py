"""What ranks agree on before a save: who writes what, and that what several have copies of is the same."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from store.errors import Incompatible
from store.format.canonical import Node

from ..saving.wishes import Wish
from ..specs import Schema
from .choosing import Chooser
from .holdings import Holdings, Shared, Terms
from .plan import Share, digest
from .replicas import Copies, decode_copies, require_same
from .talk import Talk

Answers = Callable[[Sequence[Node]], Sequence[Node]]
"""Called on rank 0: from what each rank said to the answer for each."""


class Agreement:
    """Of one rank's manager. Collective; not thread-safe. What did not change since the last time is not told again.

    Args:
        talk: decisions of all ranks.
        chooser: decides, on rank 0.
        terms: how this rank takes items apart.
        schema: what was said of items beforehand.
    """

    def __init__(self, talk: Talk, chooser: Chooser, terms: Terms, schema: Schema) -> None:
        self._talk = talk
        self._chooser = chooser
        self._terms = terms
        self._schema = schema
        self._told: bytes | None = None
        self._share: Share | None = None
        self._copies: Copies = {}

    def begin(self, wish: Wish, *, remembers: bool, skips: bool) -> tuple[Shared, Node]:
        """Begin a save of what all ranks have.

        Args:
            wish: what is to be committed; rank 0's counts, but for the items.
            remembers: whether this rank remembers its last save.
            skips: whether what is as it was is skipped.

        Returns:
            What this rank writes, and the answer of :meth:`~moonclip.ranks.choosing.Chooser.answers` to it.

        Raises:
            MoonclipError: what keeps any rank from it, on all ranks.
        """
        with self._or_told_again():
            answers = self._chooser.answers
            holdings, answer = self._agreed(wish.items, lambda said: answers(wish, said), remembers=remembers)
            if answer["checks"]:
                self._talk.exchange(lambda: holdings.digests(self._copies), self._compared)
        return self._shared(holdings, skips=skips), answer

    def share_out(self, items: Mapping[str, Any]) -> Shared:
        """What this rank would write of items. Raises as :meth:`begin` does."""
        with self._or_told_again():
            holdings, _ = self._agreed(items, self._chooser.agreed, remembers=False)
        return self._shared(holdings, skips=False)

    # --- how --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _or_told_again(self) -> Iterator[None]:
        """If what ranks agree on here fails, on every rank, all of it is told again the next time."""
        try:
            yield
        except BaseException:
            self._told = None
            self._chooser.forget()
            raise

    def _agreed(self, items: Mapping[str, Any], answers: Answers, *, remembers: bool) -> tuple[Holdings, Node]:
        """What this rank has of the items, and what rank 0 answers once all have told alike."""
        holdings, answer = self._offered(items, answers, remembers=remembers)
        if "together" in answer:
            self._terms = self._terms._replace(together=answer["together"])
            holdings, answer = self._offered(items, answers, remembers=remembers)
        if answer["share"] is not None:  # else it is what it last was
            self._share = Share.decode(answer["share"])
            self._copies = decode_copies(answer["copies"])
        return holdings, answer

    def _offered(self, items: Mapping[str, Any], answers: Answers, *, remembers: bool) -> tuple[Holdings, Node]:
        """What this rank has of the items, and what rank 0 answers to that."""
        made: list[tuple[Holdings, bytes]] = []

        def offer() -> Node:
            if not items:
                raise Incompatible("there is nothing to save; name at least one item, as in save(model=model)")
            self._schema.require(items, "the save")
            holdings = Holdings(items, self._terms)
            node = holdings.offer().encode()
            made.append((holdings, digest(node)))
            return {"offer": None if made[0][1] == self._told else node, "remembers": remembers}

        answer = self._talk.exchange(offer, answers)
        [(holdings, self._told)] = made
        return holdings, answer

    def _shared(self, holdings: Holdings, *, skips: bool) -> Shared:
        assert self._share is not None
        return holdings.share(self._share, skips=skips)

    def _compared(self, said: Sequence[Node]) -> list[Node]:
        require_same(said)
        return [None] * self._talk.group.world_size
