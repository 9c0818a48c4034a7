"""What ranks decide together: rank 0 does, and all of them hear the same."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from store.errors import MoonclipError, RankLost
from store.format.canonical import Node

from .group import ASK, REPLY, Group
from .messages import encoded, error_of, told


class Talk:
    """Decisions of all ranks. Every rank has to call the same methods in the same order; not thread-safe.

    Args:
        group: lines to the others.
        kinds: of messages to rank 0, and of those from it: no two of these talk at the same time by the same ones.
    """

    def __init__(self, group: Group, kinds: tuple[int, int] = (ASK, REPLY)) -> None:
        self.group = group
        self._ask, self._reply = kinds
        self._pid = os.getpid()
        self._number = 0

    def decide(self, choose: Callable[[], Node]) -> Node:
        """Have rank 0 choose.

        Args:
            choose: called on rank 0 only.

        Returns:
            What it gave.

        Raises:
            MoonclipError: what ended it on rank 0, on all ranks.
            RankLost: rank 0 cannot be reached.
        """
        return self.exchange(None, lambda _: [choose()] * self.group.world_size)

    def exchange(self, offer: Callable[[], Node] | None, reply: Callable[[Sequence[Node]], Sequence[Node]]) -> Node:
        """Have rank 0 answer to what all ranks say.

        Args:
            offer: gives what this rank says; ``None`` if nobody says anything.
            reply: called on rank 0 only: from what each rank said to the answer for each.

        Returns:
            The answer for this rank.

        Raises:
            MoonclipError: what ended ``offer`` on any rank, or ``reply``, on all ranks; or this is a forked child.
            RankLost: a rank cannot be reached.
        """
        if self._pid != os.getpid():
            raise MoonclipError("a forked child is none of the ranks: it can neither save nor load by this manager")
        number, self._number = self._number, self._number + 1
        if self.group.rank == 0:
            return self._lead(number, offer, reply)
        failure: BaseException | None = None
        if offer is not None:
            message, failure = self._said(offer)
            self.group.send(0, self._ask, number, message)
        answer = self.group.receive(0, self._reply, number)
        if failure is not None:
            raise failure
        if "error" in answer:
            raise error_of(answer["error"])
        return answer["answer"]

    def _lead(
        self, number: int, offer: Callable[[], Node] | None, reply: Callable[[Sequence[Node]], Sequence[Node]]
    ) -> Node:
        group = self.group
        try:
            said = [] if offer is None else self._gathered(number, offer)
            answers = reply(said)
            messages = self._messages(answers)
        except BaseException as error:
            message = encoded({"error": told(error, group.rank)})
            for rank in group.others:
                with suppress(RankLost):
                    group.send(rank, self._reply, number, message)
            raise
        for rank in group.others:
            with suppress(RankLost):  # raised here, the others would wait for us; whatever comes next meets it again
                group.send(rank, self._reply, number, messages[rank])
        return answers[0]

    def _gathered(self, number: int, offer: Callable[[], Node]) -> list[Node]:
        """What all ranks say: all are heard before an error is raised, so that no message is left over."""
        own: Node = None
        failure: BaseException | None = None
        try:
            own = offer()
        except BaseException as error:  # noqa: BLE001 - raised below
            failure = error
        said = [self._heard(rank, number) for rank in self.group.others]
        if failure is not None:
            raise failure
        errors = [each["error"] for each in said if "error" in each]
        if errors:
            raise error_of(errors[0])
        return [own, *(each["offer"] for each in said)]

    def _heard(self, rank: int, number: int) -> Node:
        try:
            return self.group.receive(rank, self._ask, number)
        except MoonclipError as error:
            return {"error": told(error, rank)}

    def _said(self, offer: Callable[[], Node]) -> tuple[bytes, BaseException | None]:
        """What this rank says, and what kept it from its offer: that may also be what cannot be sent."""
        try:
            return encoded({"offer": offer()}), None
        except BaseException as error:  # noqa: BLE001 - the others wait for an answer, whatever it was
            return encoded({"error": told(error, self.group.rank)}), error

    def _messages(self, answers: Sequence[Node]) -> dict[int, bytes]:
        """Answers as they are sent, by rank. One that is for several is encoded once."""
        once: dict[int, bytes] = {}
        for rank in self.group.others:
            answer = answers[rank]
            if id(answer) not in once:
                once[id(answer)] = encoded({"answer": answer})
        return {rank: once[id(answers[rank])] for rank in self.group.others}
