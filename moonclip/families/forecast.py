"""What models would take that are not stored yet: each beside a store, if there is one, and beside those before it.

All bytes are read, to know by their hash what is there already. What is new is told from samples, with the base that an
import would find. Nothing is written.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from store.codec import encode_blob
from store.format import values
from store.format.chunking import blob_cuts
from store.format.entries import Piece, TensorEntry
from store.format.pack import OBJECT_HEADER_BYTES
from store.format.values import Plain
from store.ids import ChunkId, chunk_id
from store.limits import MAX_INLINE_BYTES, MAX_INLINE_VALUE_BYTES
from store.parallel import Threads
from store.repository import Repository
from store.saving.inputs import ItemInput, MadeInput, MadeValueInput, ValueInput

from .choosing import Choice, Chooser
from .expected import Forecast, Sum
from .models import Model, Run, Shelf, part_of
from .pairing import Kind, against
from .sampling import Sampler
from .spots import Place, Spot, Wanted, chunks_of, cuts_of, spread, wanted_of

_SPOTS: Final = 256
"""New chunks that are sampled."""

_Ids = dict[Place, ChunkId]
"""Ids of chunks."""


class Forecaster:
    """Looks at one model after another.

    Args:
        repo: the store that they would go into; ``None`` for a new one.
        threads: read, hash and decode.
    """

    def __init__(self, repo: Repository | None, threads: Threads) -> None:
        self._repo = repo
        self._threads = threads
        self._models: list[Model] = [] if repo is None else Shelf(repo).models()
        self._seen: set[ChunkId] = set()
        self._lock = threading.Lock()

    def add(self, name: str, items: Sequence[ItemInput]) -> Forecast:
        """What a model would take after those before it.

        Args:
            name: what to call it.
            items: what an import would store.

        Raises:
            Corrupt: a file is not what it should be.
            OSError: it cannot be read.
        """
        chooser = Chooser(wanted_of(items), self._threads)
        choice = chooser.nearest(self._models)
        if choice is not None and not choice.is_worth_it:
            choice = None
        given = list(items) if choice is None else against(items, choice.contender.pairs)
        tensors = list(_tensors(given))
        ids = self._hashed(tensors)
        held = list(_values(given))  # before anything counts as seen: what cannot be read is left out
        parts = [self._tensors(tensors, ids, choice), *map(self._value, held)]
        self._models.append(_model(name, self._next_order(), tensors, ids))
        base = None if choice is None else choice.contender.model.name
        return Forecast(name, base, Sum(*map(sum, zip(*parts, strict=True))))

    def _next_order(self) -> int:
        return 1 + max((model.order for model in self._models), default=0)

    def _hashed(self, tensors: Sequence[Wanted]) -> _Ids:
        ids: _Ids = {}

        def look(chunk: Spot) -> None:
            found = chunk_id(chunk.tensor.make(chunk.start, chunk.stop))
            with self._lock:
                ids[chunk.place] = found

        self._threads.run(look, chunks_of(tensors))
        return ids

    def _tensors(self, tensors: Sequence[Wanted], ids: _Ids, choice: Choice | None) -> Sum:
        chunks = [chunk for chunk in chunks_of(tensors) if chunk.tensor.size_bytes > MAX_INLINE_BYTES]
        new_ids = self._new(ids[chunk.place] for chunk in chunks)
        new = list({ids[chunk.place]: chunk for chunk in reversed(chunks) if ids[chunk.place] in new_ids}.values())
        new_bytes = sum(chunk.size_bytes for chunk in new)
        chunk_bytes = sum(chunk.size_bytes for chunk in chunks)
        raw_bytes = sum(tensor.size_bytes for tensor in tensors)
        added_bytes = self._expected(new[::-1], choice) + OBJECT_HEADER_BYTES * len(new)
        return Sum(raw_bytes, chunk_bytes - new_bytes, raw_bytes - chunk_bytes + added_bytes)

    def _expected(self, new: Sequence[Spot], choice: Choice | None) -> int:
        """What new chunks take: as those of them that are sampled, and the very short ones as they are."""
        spots, sampler = spread(new, _SPOTS), Sampler(self._threads)
        (estimate,) = sampler.estimates([choice.contender], spots) if choice is not None else [None]
        estimate = sampler.alone(spots) if estimate is None else estimate
        return round(sum(chunk.size_bytes for chunk in new) - estimate.raw_bytes + estimate.against_bytes)

    def _value(self, value: Plain) -> Sum:
        encoded = values.encode(value)
        if len(encoded) <= MAX_INLINE_VALUE_BYTES:
            return Sum(len(encoded), 0, encode_blob(encoded).size_bytes)
        cuts = blob_cuts(encoded)
        parts = [encoded[stop - cut : stop] for cut, stop in zip(cuts, accumulate(cuts), strict=True)]
        by_id = {chunk_id(part): part for part in parts}
        new = [by_id[chunk] for chunk in self._new(by_id)]
        added_bytes = sum(OBJECT_HEADER_BYTES + encode_blob(part).size_bytes for part in new)
        return Sum(len(encoded), len(encoded) - sum(map(len, new)), added_bytes)

    def _new(self, chunks: Iterable[ChunkId]) -> set[ChunkId]:
        """Those that are neither in the store nor were met before; they are met now."""
        found = set(chunks) - self._seen
        self._seen |= found
        if self._repo is None:
            return found
        places = self._repo.index.places_of_each(found)
        return {chunk for chunk in found if not places.get(chunk)}


def _tensors(items: Sequence[ItemInput]) -> Iterator[Wanted]:
    for item in items:
        for name, given in item.entries.items():
            if isinstance(given, MadeInput):
                kind = Kind(given.dtype, given.shape)
                yield Wanted((item.name, name), kind, given.make, cuts_of(given))


def _values(items: Sequence[ItemInput]) -> Iterator[Plain]:
    for item in items:
        for given in item.entries.values():
            if isinstance(given, MadeValueInput):
                yield given.make()
            elif isinstance(given, ValueInput):
                yield given.value


def _model(name: str, order: int, tensors: Sequence[Wanted], ids: _Ids) -> Model:
    """A model that was looked at, for those behind it to be stored against."""
    entries: dict[str, dict[str, TensorEntry]] = {}
    makes: dict[tuple[ChunkId, ...], Callable[[int, int], memoryview]] = {}
    for tensor in tensors:
        if tensor.size_bytes > MAX_INLINE_BYTES:
            item, own = tensor.key
            chunks = tuple(ids[chunk.place] for chunk in chunks_of([tensor]))
            piece = Piece((0,) * len(tensor.kind.shape), tensor.kind.shape, tensor.cuts, chunks)
            entries.setdefault(item, {})[own] = TensorEntry(0, *tensor.kind, (piece,))
            makes[chunks] = tensor.make

    def read(runs: Sequence[Run]) -> None:
        for entry, start, out in runs:
            out[:] = makes[entry.chunks](start, start + len(out))

    return Model(name, None, order, {item: part_of(held) for item, held in entries.items()}, read)
