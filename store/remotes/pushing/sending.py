"""Sending packs: those that the remote lacks, each whole before its idx, which is what makes it count.

What is about to be deleted there counts as not there, and goes under another name: the old one may vanish any moment.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from ...ids import PackId
from ...limits import PUSH_PACKS_AT_ONCE
from ...repository import Repository
from ..names import PackName, pack_name
from ..packlist import Listed, listing
from ..remote import Remote
from ..storages.executing import DaemonExecutor
from .outpacks import OutPack, PackSource, idx_of

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many bytes of it are done, and how many there are; by any thread."""

_LISTED_FROM = 4
"""So many packs are looked for by listing all: a request for each 500 that are there, not one for each to be sent."""


@dataclass(slots=True)
class Sent:
    """What was sent.

    Attributes:
        names: what packs are called there, those among them that were there already.
        sent_bytes: what went over the wire.
        pack_count: packs that were sent.
        skipped_count: packs that were there.
    """

    names: dict[PackName, OutPack]
    sent_bytes: int = 0
    pack_count: int = 0
    skipped_count: int = 0


def send(
    repo: Repository,
    remote: Remote,
    packs: Sequence[OutPack],
    condemned: set[PackName],
    sent: Sent,
    progress: Progress | None,
) -> None:
    """Send packs, in order, and keep an account of it.

    Args:
        repo: the store.
        remote: where to.
        packs: the packs.
        condemned: packs that are about to be deleted there.
        sent: what was sent before, which is added to.
        progress: told of the bytes.

    Raises:
        Stale: something was not there any more as it was planned. Packs before it are sent.
        RemoteError: the remote failed. The same.
    """
    meter = _Meter(progress, sum(pack.size_bytes for pack in packs))
    found = listing(remote.storage) if len(packs) >= _LISTED_FROM else None
    sending = _Sending(repo, remote, sent, meter)
    try:
        for pack in packs:
            name = _name(pack.id, condemned)
            if name in sent.names:
                meter.advance(pack.size_bytes)
            else:
                there = _look(remote, name) if found is None else found.get(name, Listed())
                is_there = there.pack is not None and there.pack.size_bytes == pack.size_bytes
                sending.begin(name, pack, is_there=is_there, has_idx=there.idx is not None)
        sending.finish()
    finally:
        sending.close()


class _Begun(NamedTuple):
    """A pack on its way.

    Attributes:
        name: what it is called there.
        pack: the pack.
        upload: under way; ``None`` if the pack is there already.
        has_idx: whether its idx is there, too.
    """

    name: PackName
    pack: OutPack
    upload: Future[None] | None
    has_idx: bool


class _Sending:
    """Uploads packs, a few at once. Each gets its idx in order, so that what counts there never lacks its bases.

    Args:
        repo: the store.
        remote: where to.
        sent: the account of it.
        meter: counts bytes.
    """

    def __init__(self, repo: Repository, remote: Remote, sent: Sent, meter: "_Meter") -> None:
        self._repo = repo
        self._remote = remote
        self._sent = sent
        self._meter = meter
        self._begun: deque[_Begun] = deque()
        # Not those of concurrent.futures: the last push of a run may come when the interpreter ends.
        self._threads = DaemonExecutor(PUSH_PACKS_AT_ONCE)

    def begin(self, name: PackName, pack: OutPack, *, is_there: bool, has_idx: bool) -> None:
        """Begin with a pack, and see earlier ones through."""
        upload = None
        if is_there:
            self._meter.advance(pack.size_bytes)
        else:
            source = PackSource(self._repo, pack)
            upload = self._threads.submit(self._remote.storage.upload, name.pack_key, source, self._meter.advance)
        self._begun.append(_Begun(name, pack, upload, is_there and has_idx))
        if len(self._begun) >= PUSH_PACKS_AT_ONCE:
            self._see_through()

    def finish(self) -> None:
        """See all through."""
        while self._begun:
            self._see_through()

    def close(self) -> None:
        """End whatever is still under way, and wait for that."""
        self._meter.stop()
        self._threads.shutdown()

    def _see_through(self) -> None:
        name, pack, upload, has_idx = self._begun[0]
        if upload is None:
            self._sent.skipped_count += 1
        else:
            upload.result()
            self._sent.sent_bytes += pack.size_bytes
            self._sent.pack_count += 1
        if not has_idx:
            idx = idx_of(self._repo, pack)
            self._remote.storage.put(name.idx_key, idx)
            self._sent.sent_bytes += len(idx)
            self._remote.cache.keep_idx(pack.id, idx)  # what is fetched later need not ask for it
        self._sent.names[name] = pack
        self._begun.popleft()


def _look(remote: Remote, name: PackName) -> Listed:
    """A pack, if it is there. Whether it has its idx is not asked: that is soon sent again."""
    return Listed(remote.storage.stat(name.pack_key))


def _name(pack: PackId, condemned: set[PackName]) -> PackName:
    """What a pack is called there: by its id, unless that is about to be deleted. The same whenever it is asked."""
    name, number = pack_name(pack), 0
    while name in condemned:
        number += 1
        name = pack_name(pack, number.to_bytes(4, "big"))
    return name


class _Stopped(Exception):
    """Another pack could not be sent. Internal."""


class _Meter:
    """Counts bytes that went over, from any thread."""

    def __init__(self, progress: Progress | None, total_bytes: int) -> None:
        self._progress = progress
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._is_stopped = False
        self._lock = threading.Lock()

    def advance(self, count: int) -> None:
        if self._is_stopped:
            raise _Stopped
        with self._lock:
            self._done_bytes += count
            done_bytes = self._done_bytes
        if self._progress is not None:
            self._progress("uploading", min(done_bytes, self._total_bytes), self._total_bytes)

    def stop(self) -> None:
        """Have uploads that are under way end where they are."""
        self._is_stopped = True
