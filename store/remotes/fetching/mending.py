"""A remote as the place where a repair gets lost objects from. Nothing of the store is read or written here."""

from ...errors import Corrupt, Incompatible, NotFound
from ...format.objects import Kind
from ...ids import ObjectId
from ...reading.decoding import decode_chunk
from ..remote import Remote
from .catalogue import Catalogue
from .incoming import RemoteCopy, choose
from .verifying import small_content, unsealed


class RemoteSource:
    """Gives objects of a remote; see ``store.fsck.sources``. For one thread.

    Args:
        remote: the remote; open as long as this is in use.
    """

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._catalogue = Catalogue(remote)

    def get(self, object_id: ObjectId, kind: Kind) -> bytes | bytearray | None:
        """Content of an object, by whichever copies are intact there.

        Raises:
            RemoteError: the remote failed.

        Cost: a request for it, and one for each base below it.
        """
        while True:
            self._catalogue.find_chains([object_id], lambda _: frozenset())
            chain = choose([object_id], self._catalogue.copies, {}).copies
            if not chain or chain[-1].entry.kind != kind:
                return None
            raw: bytes | bytearray | None = None
            for copy in chain:
                try:
                    raw = self._decoded(copy, raw)
                except (NotFound, Corrupt, Incompatible):
                    self._catalogue.spoil(copy)
                    break
            else:
                return raw

    def _decoded(self, copy: RemoteCopy, base: bytes | bytearray | None) -> bytes | bytearray:
        entry = copy.entry
        stored = memoryview(bytearray(entry.stored_bytes))
        self._remote.storage.read_into(copy.pack.pack_key, entry.offset, stored, lambda _: None)
        header, payload = unsealed(copy, stored)
        if header.kind != Kind.CHUNK:
            return small_content(copy, header, payload)
        out = bytearray(header.raw_bytes)
        below = None if header.base is None or base is None else memoryview(base)
        decode_chunk(header, payload, below, memoryview(out))
        return out
