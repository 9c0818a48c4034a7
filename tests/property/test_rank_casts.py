"""Tensors that ranks store in a narrower dtype, each its boxes: it comes to what one process makes of the whole."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from store.boxes import Box
from store.errors import Incompatible
from store.format.canonical import decode, encode
from store.ids import CommitId
from store.parallel import Threads
from store.repository import Repository
from store.saving.inputs import ItemInput, TensorInput
from store.saving.phases import Phases
from store.saving.rankbases import RankMemory
from store.saving.ranks import save_rank
from store.saving.rankscales import (
    decode_largest,
    decode_scales,
    encode_largest,
    encode_scales,
    joined,
    largest,
)
from store.saving.saver import SaveRequest
from store.saving.scales import Scales
from store.saving.shards import BoxInput, RankItem, ShardsInput
from tests.arrays import entries_of, read
from tools.crash.ranks import request

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
SHAPES = ((4, 16), (300, 1500), (8, 200_000))
LAYOUTS = {"one": (1, 1), "rows": (2, 1), "quarters": (4, 1), "columns": (1, 2), "both": (2, 2)}


def boxes(shape: tuple[int, int], layout: tuple[int, int]) -> list[Box]:
    rows, columns = (size // count for size, count in zip(shape, layout, strict=True))
    return [Box((r * rows, c * columns), (rows, columns)) for r, c in product(*map(range, layout))]


def item(array: Array, own: list[Box], stored: str, *, by_row: bool) -> RankItem:
    inputs = []
    for box in own:
        index = tuple(slice(start, stop) for start, stop in zip(box.offsets, box.stops, strict=True))
        inputs.append(BoxInput(box, memoryview(array[index].tobytes())))
    return RankItem("model", {"w": ShardsInput(0, "float32", array.shape, tuple(inputs), stored, by_row)})


def scales_of(items: list[RankItem], threads: Threads) -> Scales:
    """As ranks find them, by way of messages."""
    told = [decode(encode(encode_largest(largest([each], threads, Phases()))), "m") for each in items]
    return decode_scales(decode(encode(encode_scales(joined([decode_largest(each) for each in told]))), "m"))


def alone(repo: Repository, branch: str, array: Array, stored: str, *, by_row: bool) -> CommitId:
    given = TensorInput(0, "float32", array.shape, memoryview(array.tobytes()), stored, by_row)
    return repo.save(SaveRequest([ItemInput("model", {"w": given})], branch=branch)).commit


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("stored", "by_row"), [("bfloat16", False), ("float8_e4m3fn", False), ("float8_e5m2", True)])
def test_shards_are_cast_as_the_whole_is(tmp_path: Path, shape: tuple[int, int], stored: str, by_row: bool) -> None:
    chance = np.random.default_rng(5)
    array = (chance.standard_normal(shape) * 2.0 ** chance.integers(-30, -9, (shape[0], 1))).astype(np.float32)
    array[0] = 0  # nothing to go by, on one rank
    arrays = [array, array.copy(), array.copy()]
    arrays[1][1:, 0] += 2.0**-20
    arrays[2][-1, -1] = np.inf  # fits into no scale: none is cast, on any rank
    with Repository.init(tmp_path / "s", thread_count=1) as repo:
        for name, layout in LAYOUTS.items():
            ranks = boxes(shape, layout)
            last: list[RankMemory | None] = [None] * len(ranks)
            for number, each in enumerate(arrays):
                items = [item(each, [box], stored, by_row=by_row) for box in ranks]
                scales = scales_of(items, repo.threads)
                assert None not in scales.values() or number == 2
                remember = number > 0
                with repo.create_snapshot(request(repo, name), len(ranks), ranks_remember=remember) as snapshot:
                    for rank, given in enumerate(items):
                        known = last[rank] if remember else None
                        saved = save_rank(
                            tmp_path / "s", snapshot.id, rank, [given], last=known, scales=scales, threads=repo.threads
                        )
                        last[rank] = saved.memory
                    commit = snapshot.finalize()
                whole = alone(repo, f"alone-{name}-{number}", each, stored, by_row=by_row)
                assert read(repo, commit) == read(repo, whole)
                entry, expected = (entries_of(repo, made)["w"] for made in (commit, whole))
                assert (entry.stored, entry.scale, entry.inline) == (expected.stored, expected.scale, expected.inline)
                if name == "one" or (name == "rows" and shape[0] == 8):  # cut on the grid
                    assert entry.chunks == expected.chunks


def test_what_is_unchanged_is_neither_cast_nor_stored_again(tmp_path: Path) -> None:
    array = np.random.default_rng(1).standard_normal((300, 1500)).astype(np.float32)
    given = item(array, boxes((300, 1500), (1, 1)), "float8_e4m3fn", by_row=False)
    with Repository.init(tmp_path / "s", thread_count=1) as repo:
        with repo.create_snapshot(request(repo), 1) as snapshot:
            memory = save_rank(tmp_path / "s", snapshot.id, 0, [given], threads=repo.threads).memory
            snapshot.finalize()
        with repo.create_snapshot(request(repo), 1) as snapshot:  # a rank that resumed
            counts = save_rank(tmp_path / "s", snapshot.id, 0, [given], threads=repo.threads).counts
            assert (counts.known_count, counts.stored_bytes) == (counts.chunk_count, 0)
            snapshot.finalize()
        with repo.create_snapshot(request(repo), 1, ranks_remember=True) as snapshot:
            saved = save_rank(tmp_path / "s", snapshot.id, 0, [given], last=memory, threads=repo.threads)
            assert saved.counts.unchanged_count == saved.counts.chunk_count > 0


def test_a_part_of_a_tensor_tells_no_scale(tmp_path: Path) -> None:
    array = np.ones((8, 100), np.float32)
    with Repository.init(tmp_path / "s", thread_count=1) as repo, repo.create_snapshot(request(repo), 2) as snapshot:
        for box in boxes((8, 100), (2, 1)):
            with pytest.raises(Incompatible, match="model::w: float8_e4m3fn takes the largest number of the whole"):
                save_rank(tmp_path / "s", snapshot.id, 0, [item(array, [box], "float8_e4m3fn", by_row=False)])
            with pytest.raises(Incompatible, match="model::w: float32 cannot be stored as 'float64'"):
                save_rank(tmp_path / "s", snapshot.id, 0, [item(array, [box], "float64", by_row=False)])
