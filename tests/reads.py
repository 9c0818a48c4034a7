"""How much a store is asked for at once."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from store.reading.copies import Copy
from store.repository import Repository


@contextmanager
def counted() -> Iterator[list[int]]:
    """Bytes that each call asks a repository to read, in order, while it is answered."""
    asked: list[int] = []
    read_copies = Repository.read_copies

    def counting(self: Repository, copies: Iterable[Copy], *, verify_hash: bool = False) -> None:
        listed = list(copies)
        asked.append(sum(len(copy.out) for copy in listed))
        read_copies(self, listed, verify_hash=verify_hash)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Repository, "read_copies", counting)
        yield asked
