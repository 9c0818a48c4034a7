"""Reading objects: id → places → stored bytes → verified → decoded.

Chunks are read along the chain that the index tells of (``chains``), and only if that fails by trying every copy.

A copy that fails its check is marked bad and the next copy is tried; so it is after a copy that the disk does not
give, but that one is not marked: a controller that hiccups is no damage. A pack that went away between look-up and read
is looked up again, a bounded number of times. Nothing here takes a lock; threads may share a reader.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import NamedTuple, Protocol

from ..codec import Transform
from ..disk.files import Fingerprint
from ..errors import Corrupt, MoonclipError, NotFound
from ..format import whole
from ..format.objects import Commit, Kind, TreeNode
from ..format.pack import ObjectHeader
from ..ids import ChunkId, CommitId, ObjectId, PackId, TreeId, chunk_id, commit_id, short, tree_id
from ..index import Place
from ..index.depths import with_bases
from ..limits import LOOKUP_ATTEMPTS, MAX_CHAIN_DEPTH
from .chains import Chain, Kept, Link, decode_chain, read_ahead
from .decoding import decode_chunk
from .packs import PackGone, PackStore, Unreadable

Stored = tuple[ObjectHeader, memoryview]
"""An object as it is stored: header and payload."""


class Places(Protocol):
    """What a reader needs of an index; ``store.reading.lookup.Lookup`` gives it."""

    def places(self, object_id: ObjectId) -> list[Place]:
        """Copies, the cheapest to read first."""
        ...

    def places_of_each(self, object_ids: Collection[ObjectId]) -> dict[ObjectId, list[Place]]:
        """The same for many."""
        ...

    def mark_bad(self, object_id: ObjectId, pack: PackId) -> None:
        """Hear of a copy that failed its check. Raises nothing."""
        ...

    def places_in_packs(self, object_id: ObjectId) -> list[Place]:
        """Hear that a pack is not there which :meth:`places` goes on to name; gives copies in those that are there."""
        ...


class _Bad(NamedTuple):
    """A copy that failed its check, and the file that it was in."""

    place: Place
    fingerprint: Fingerprint | None


class ObjectReader:
    """Reads and verifies objects by id.

    Args:
        index: where objects are.
        packs: reads stored objects.
    """

    def __init__(self, index: Places, packs: PackStore) -> None:
        self._index = index
        self._packs = packs
        self._bad: dict[ObjectId, dict[PackId, _Bad]] = {}

    def commit(self, object_id: CommitId) -> Commit:
        """Read a commit.

        Raises:
            NotFound: no such object.
            Corrupt: no intact copy.
        """
        encoded = self._checked_commit(object_id, self._small(object_id, Kind.COMMIT))
        return Commit.decode(encoded, f"commit {short(object_id)}")

    def tree_node(self, object_id: TreeId) -> TreeNode:
        """Read one tree object.

        Raises:
            NotFound: no such object.
            Corrupt: no intact copy.
        """
        return TreeNode.decode(self.encoded_tree(object_id), f"tree {short(object_id)}")

    def encoded_tree(self, object_id: TreeId) -> bytes:
        """The canonical encoding of one tree object, not looked into. Raises as :meth:`tree_node` does."""
        return self._checked_tree(object_id, self._small(object_id, Kind.TREE))

    def encoded_trees(self, object_ids: Sequence[TreeId]) -> Iterator[bytes]:
        """The same of several, in order. Cost: half as much each; all are looked up in one transaction."""
        places = self._index.places_of_each(object_ids)
        for object_id in object_ids:
            yield self._checked_tree(object_id, self._small_among(object_id, Kind.TREE, places[object_id]))

    def encoded_commits(self, object_ids: Sequence[CommitId]) -> Iterator[bytes]:
        """Canonical encodings of several commits, in order, not looked into. Raises as :meth:`commit` does."""
        places = self._index.places_of_each(object_ids)
        for object_id in object_ids:
            yield self._checked_commit(object_id, self._small_among(object_id, Kind.COMMIT, places[object_id]))

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
        streamed: bool = False,
    ) -> None:
        """Decode a chunk into ``out``, which is as long as the chunk.

        Args:
            object_id: the chunk.
            out: writable, C-contiguous bytes; fully overwritten.
            verify_hash: also compare the BLAKE3 of the result with the id.
            chain: what :meth:`chain` gave for it, if that was asked before.
            kept: decoded bases that several reads have in common.
            streamed: nobody reads ``out`` soon.

        Raises:
            NotFound: the chunk or a delta base of it is nowhere.
            Corrupt: no intact copy, another length than ``out``, or a chain that is too deep.

        Cost: one read and one decode for each object of the delta chain.
        """
        try:
            streamed = streamed and not verify_hash
            decode_chain(self._packs, chain or self.chain(object_id), out, kept or Kept(), streamed=streamed)
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

    def reading_ahead(self, chains: Sequence[Chain]) -> AbstractContextManager[None]:
        """Read at once what is about to be decoded along these chains. See :func:`store.reading.chains.read_ahead`."""
        return read_ahead(self._packs, chains)

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
        gone: set[PackId] = set()
        unreadable: dict[PackId, Unreadable] = {}
        for _ in range(LOOKUP_ATTEMPTS):
            copies = self._copies(object_id, kind)
            if any(place.pack in gone for place in copies):  # places go before their packs do: the index is outdated
                copies = self._good(object_id, kind, self._index.places_in_packs(object_id))
            for place in copies:
                if place.pack in given or place.pack in unreadable:
                    continue
                try:
                    copy = self._packs.read(place.pack, place.offset, place.stored_bytes, object_id)
                except PackGone:
                    gone.add(place.pack)
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

    def _places_below(self, object_ids: Collection[ObjectId]) -> dict[ObjectId, list[Place]]:
        """Places of these objects, their bases, the bases of those, and so on."""
        return with_bases(object_ids, self._index.places_of_each)

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
            decode_chunk(header, payload, base, target)
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

    def _small_among(self, object_id: ObjectId, kind: Kind, known: list[Place]) -> bytes:
        """The same, of the best of some places if that is intact."""
        try:
            place = self._good(object_id, kind, known)[0]
            return decode_small(*self._packs.read(place.pack, place.offset, place.stored_bytes, object_id))
        except (NotFound, Corrupt):
            return self._small(object_id, kind)

    def _checked_tree(self, object_id: TreeId, encoded: bytes) -> bytes:
        if tree_id(encoded) != object_id:
            raise Corrupt(f"tree {object_id.hex()}: content does not match its id", object=object_id.hex())
        return encoded

    def _checked_commit(self, object_id: CommitId, encoded: bytes) -> bytes:
        if commit_id(encoded) != object_id:
            raise Corrupt(f"commit {object_id.hex()}: content does not match its id", object=object_id.hex())
        return encoded

    def _copies(self, object_id: ObjectId, kind: Kind) -> list[Place]:
        return self._good(object_id, kind, self._index.places(object_id))

    def _good(self, object_id: ObjectId, kind: Kind, known: list[Place]) -> list[Place]:
        bad = self._bad_copies(object_id)  # of which the index does not tell any more
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
        self._bad.setdefault(object_id, {})[place.pack] = _Bad(place, self._packs.fingerprint(place.pack))
        self._index.mark_bad(object_id, place.pack)

    def _bad_copies(self, object_id: ObjectId) -> dict[PackId, Place]:
        """Copies that failed their check, in packs that nobody has mended or replaced since."""
        noted = self._bad.get(object_id)
        if not noted:
            return {}
        for pack in [pack for pack, bad in noted.items() if self._packs.fingerprint(pack) != bad.fingerprint]:
            noted.pop(pack, None)
        return {pack: bad.place for pack, bad in noted.copy().items()}


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
