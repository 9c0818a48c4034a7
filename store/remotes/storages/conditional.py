"""Whether a storage's conditional write can be relied on: found out with writers that race.

Servers that ignore conditions let every writer win, some let several win now and then, others refuse outright. Refs
that all stores share are safe with none of these.
"""

import os
import threading

from ...errors import Conflict, RemoteUnsupported
from ...limits import PROBE_RACERS, PROBE_ROUNDS
from ..names import SCRATCH
from .storage import Storage

_MAX_BYTES = 1024


def is_atomic(storage: Storage) -> bool:
    """Whether of writers that race to make or to replace a key exactly one wins, and what it wrote is there.

    Cost: some 60 requests, a few at a time; for the first push to a remote, and the answer may be kept.

    Raises:
        RemoteUnavailable: the storage fails otherwise, and so on, as all its methods.
    """
    made: list[str] = []
    try:
        return all(_is_round_right(storage, made) for _ in range(PROBE_ROUNDS))
    except RemoteUnsupported:
        return False
    finally:
        storage.delete(made)


def _is_round_right(storage: Storage, made: list[str]) -> bool:
    key = SCRATCH + os.urandom(16).hex()
    made.append(key)
    version = _winner(storage, key, None)
    return version is not None and _winner(storage, key, version) is not None


def _winner(storage: Storage, key: str, expected: str | None) -> str | None:
    """The version that the one winner of a race wrote; ``None`` if there is not one, or something else is there."""
    race = _Race(storage, key, expected)
    race.run()
    found = storage.get(key, _MAX_BYTES)
    return found[1] if len(race.won) == 1 and found == race.won[0] else None


class _Race:
    """Writers, one thread each, that all write at once, each something else.

    Attributes:
        won: what each of those wrote that were told that they had, and its version.
    """

    def __init__(self, storage: Storage, key: str, expected: str | None) -> None:
        self.won: list[tuple[bytes, str]] = []
        self._storage = storage
        self._key = key
        self._expected = expected
        self._start = threading.Barrier(PROBE_RACERS)
        self._errors: list[BaseException] = []

    def run(self) -> None:
        """Run the race to its end.

        Raises:
            BaseException: the first error of a writer, but for that it lost.
        """
        threads = [threading.Thread(target=self._write, daemon=True) for _ in range(PROBE_RACERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _write(self) -> None:
        data = os.urandom(16).hex().encode()
        self._start.wait()
        try:
            self.won.append((data, self._storage.put_if(self._key, data, self._expected)))
        except Conflict:
            pass
        except BaseException as error:  # noqa: BLE001 - carried to whoever runs the race
            self._errors.append(error)
