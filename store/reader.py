"""Reading objects: id → places → stored bytes → verified → decoded.

Chunks are read along the chain that the index tells of (``chains``), and only if that fails by trying every copy.

A copy that fails its check is marked bad and the next copy is tried; so it is after a copy that the disk does not
give, but that one is not marked: a controller that hiccups is no damage. A pack that went away between look-up and read
is looked up again, a bounded number of times. Nothing here takes a lock; threads may share a reader.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Protocol

from . import whole
from .chains import Chain, Kept, Link, decode_chain
from .codec import Transform, decode
from .errors import Corrupt, MoonclipError, NotFound
from .ids import ChunkId, CommitId, ObjectId, PackId, TreeId, chunk_id, commit_id, short, tree_id
from .index import Place
from .limits import LOOKUP_ATTEMPTS, MAX_CHAIN_DEPTH
from .objects import Commit, Kind, TreeNode
from .pack import ObjectHeader
from .packs import PackGone, PackStore, Unreadable

Stored = tuple[ObjectHeader, memoryview]
"""An object as it is stored: header and payload."""


class Places(Protocol):
    """What a reader needs of an index; ``store.lookup.Lookup`` gives it."""

    def places(self, object_id: ObjectId) -> list[Place]:
        """Copies, the cheapest to read first."""
        ...

    def places_of_each(self, object_ids: Collection[ObjectId]) -> dict[ObjectId, list[Place]]:
        """The same for many."""
        ...

    def mark_bad(self, object_id: ObjectId, pack: PackId) -> None:
        """Hear of a copy that failed its check. Raises nothing."""
        ...


class ObjectReader:
    """Reads and verifies objects by id.

    Args:
        index: where objects are.
        packs: reads stored objects.
    """

    def __init__(self, index: Places, packs: PackStore) -> None:
        self._index = index
        self._packs = packs
        self._bad: dict[ObjectId, dict[PackId, Place]] = {}

    def commit(self, object_id: CommitId) -> Commit:
        """Read a commit.

        Raises:
            NotFound: no such object.
            Corrupt: no intact copy.
        """
        encoded = self._small(object_id, Kind.COMMIT)
        if commit_id(encoded) != object_id:
            raise Corrupt(f"commit {object_id.hex()}: content does not match its id", object=object_id.hex())
        return Commit.decode(encoded, f"commit {short(object_id)}")

    def tree_node(self, object_id: TreeId) -> TreeNode:
        """Read one tree object.

        Raises:
            NotFound: no such object.
            Corrupt: no intact copy.
        """
        encoded = self._small(object_id, Kind.TREE)
        if tree_id(encoded) != object_id:
            raise Corrupt(f"tree {object_id.hex()}: content does not match its id", object=object_id.hex())
        return TreeNode.decode(encoded, f"tree {short(object_id)}")

    def chunk(self, object_id: ChunkId) -> bytearray:
        """Decode a chunk into memory of its own. Raises as :meth:`chunk_into` does."""
        out = bytearray(self.place(object_id, Kind.CHUNK).raw_bytes)
        self.chunk_into(object_id, memoryview(out))
        return out

    def chunk_into(
        self,
        object_id: ChunkId,
        out: memoryview,
        *,
        verify_hash: bool = False,
        chain: Chain | None = None,
        kept: Kept | None = None,
    ) -> None:
        """Decode a chunk into ``out``, which is as long as the chunk.

        Args:
            object_id: the chunk.
            out: writable, C-contiguous bytes; fully overwritten.
            verify_hash: also compare the BLAKE3 of the result with the id.
            chain: what :meth:`chain` gave for it, if that was asked before.
            kept: decoded bases that several reads have in common.

        Raises:
            NotFound: the chunk or a delta base of it is nowhere.
            Corrupt: no intact copy, another length than ``out``, or a chain that is too deep.

        Cost: one read and one decode for each object of the delta chain.
        """
        try:
            decode_chain(self._packs, chain or self.chain(object_id), out, kept or Kept())
        except (NotFound, Corrupt):
            self._decode_any(object_id, out)
        if verify_hash and chunk_id(out) != object_id:
            raise Corrupt(f"chunk {object_id.hex()}: content does not match its id", object=object_id.hex())

    def chain(self, object_id: ChunkId) -> Chain:
        """The chunk and the bases it takes to decode it, of each the copy that is cheapest to read. Reads none.

        Raises:
            NotFound: the chunk or a delta base of it is nowhere.
            Corrupt: all copies are bad, or the chain is too deep.
        """
        return self._chain_among(object_id, self._places_below([object_id]))

    def chains(self, object_ids: Iterable[ChunkId]) -> dict[ChunkId, Chain]:
        """:meth:`chain` of each, without those that have none: reading them says why.

        Cost: 6 µs an object of the chains.
        """
        wanted = list(object_ids)
        places = self._places_below(wanted)
        found: dict[ChunkId, Chain] = {}
        for object_id in wanted:
            with suppress(NotFound, Corrupt):
                found[object_id] = self._chain_among(object_id, places)
        return found

    def place(self, object_id: ObjectId, kind: Kind) -> Place:
        """Where the best copy of an object is.

        Raises:
            NotFound: no copy is known.
            Corrupt: all copies are bad, or it is of another kind.
        """
        return self._copies(object_id, kind)[0]

    def stored(self, object_id: ObjectId, kind: Kind) -> Stored:
        """Header and payload of an intact copy, checked against its checksum.

        Raises:
            NotFound: no copy is known.
            Corrupt: all copies are bad, or it is of another kind.
        """
        return next(self._intact(object_id, kind))

    # --- how --------------------------------------------------------------------------------------------------------

    def _intact(self, object_id: ObjectId, kind: Kind) -> Iterator[Stored]:
        """Intact copies, the cheapest first; at least one. Raises as :meth:`stored` does."""
        given: set[PackId] = set()
        unreadable: dict[PackId, Unreadable] = {}
        for _ in range(LOOKUP_ATTEMPTS):
            for place in self._copies(object_id, kind):
                if place.pack in given or place.pack in unreadable:
                    continue
                try:
                    copy = self._packs.read(place.pack, place.offset, place.stored_bytes, object_id)
                except PackGone:
                    break  # gc or repack moved it: the index knows the new place by now
                except Unreadable as error:
                    unreadable[place.pack] = error
                except Corrupt:
                    self._mark_bad(object_id, place)  # the next copy; _copies raises once none is left
                else:
                    given.add(place.pack)
                    yield copy
            else:
                if given or unreadable:
                    break
        if given:
            return
        if unreadable:
            raise next(iter(unreadable.values()))
        raise NotFound(
            f"{kind.name.lower()} {object_id.hex()}: its packs vanish as they are looked up; run `moonclip fsck`",
            object=object_id.hex(),
        )

    def _places_below(self, object_ids: Iterable[ObjectId]) -> dict[ObjectId, list[Place]]:
        """Places of these objects, their bases, the bases of those, and so on."""
        places: dict[ObjectId, list[Place]] = {}
        sought = set(object_ids)
        while sought:
            found = self._index.places_of_each(sought)
            places |= found
            sought = {place.base for copies in found.values() for place in copies if place.base} - places.keys()
        return places

    def _chain_among(self, object_id: ChunkId, places: Mapping[ObjectId, list[Place]]) -> Chain:
        links: list[Link] = []
        sought: ObjectId | None = object_id
        while sought is not None:
            if len(links) > MAX_CHAIN_DEPTH:
                raise _too_deep(object_id)
            links.append(Link(sought, self._good(sought, Kind.CHUNK, places[sought])[0]))
            sought = links[-1].place.base
        return tuple(links)

    def _decode_any(self, object_id: ChunkId, out: memoryview) -> None:
        """The same by way of whatever copies are intact, however long it takes."""
        chain = self._intact_chain(object_id)
        if chain[0][0].raw_bytes != len(out):
            raise Corrupt(
                f"chunk {object_id.hex()} has {chain[0][0].raw_bytes} bytes where {len(out)} belong",
                object=object_id.hex(),
            )
        base: memoryview | None = None
        while chain:
            header, payload = chain.pop()
            target = memoryview(bytearray(header.raw_bytes)) if chain else out
            _decode(header, payload, base, target)
            base = target

    def _intact_chain(self, object_id: ObjectId) -> list[Stored]:
        """The stored object, then its base, and so on to one that needs none; of copies the first that lead there."""
        failed: dict[ObjectId, MoonclipError] = {}  # however many copies there are, each object is tried once

        def follow(sought: ObjectId, depth: int) -> list[Stored]:
            if sought in failed:
                raise failed[sought]
            if depth > MAX_CHAIN_DEPTH:
                raise too_deep
            failed[sought] = too_deep  # for as long as it is being looked at: who comes back here is in a cycle
            for copy in self._intact(sought, Kind.CHUNK):
                if copy[0].base is None:
                    return [copy]
                try:
                    return [copy, *follow(copy[0].base, depth + 1)]
                except (NotFound, Corrupt) as error:
                    failed[sought] = error
            raise failed[sought]

        too_deep = _too_deep(object_id)
        return follow(object_id, 0)

    def _small(self, object_id: ObjectId, kind: Kind) -> bytes:
        return decode_small(*self.stored(object_id, kind))

    def _copies(self, object_id: ObjectId, kind: Kind) -> list[Place]:
        return self._good(object_id, kind, self._index.places(object_id))

    def _good(self, object_id: ObjectId, kind: Kind, known: list[Place]) -> list[Place]:
        bad = self._bad.get(object_id, {})  # of which the index does not tell any more
        good = [place for place in known if place.pack not in bad]
        if bad and not good:
            self._raise_bad(object_id, kind, list(bad.values()))
        if not good:
            raise NotFound(
                f"{kind.name.lower()} {object_id.hex()} is in no pack of this store; run `moonclip fsck`",
                object=object_id.hex(),
            )
        if any(place.kind != kind for place in good):
            raise Corrupt(f"object {object_id.hex()} is not a {kind.name.lower()}", object=object_id.hex())
        return good

    def _raise_bad(self, object_id: ObjectId, kind: Kind, places: list[Place]) -> None:
        where = ", ".join(f"pack {place.pack.hex()} at offset {place.offset}" for place in places)
        raise Corrupt(
            f"{kind.name.lower()} {object_id.hex()} is damaged ({where}); run `moonclip fsck` to see what it affects",
            object=object_id.hex(),
            packs=[place.pack.hex() for place in places],
            offset=places[0].offset,
        )

    def _mark_bad(self, object_id: ObjectId, place: Place) -> None:
        self._bad.setdefault(object_id, {})[place.pack] = place
        self._index.mark_bad(object_id, place.pack)


def _too_deep(object_id: ObjectId) -> Corrupt:
    return Corrupt(
        f"chunk {object_id.hex()}: its delta chain is too deep or a cycle; run `moonclip fsck`",
        object=object_id.hex(),
    )


def decode_small(header: ObjectHeader, payload: memoryview) -> bytes:
    """Content of a tree or commit, which are stored raw or as one zstd frame.

    Raises:
        Corrupt: the payload is something else.
    """
    if header.transform == Transform.RAW:
        return bytes(payload)
    return whole.decompress(payload, header.raw_bytes, f"{header.kind.name.lower()} {short(header.id)}")


def _decode(header: ObjectHeader, payload: memoryview, base: memoryview | None, out: memoryview) -> None:
    decode(header.transform, header.grouped, header.element, payload, header.raw_bytes, base, out)
