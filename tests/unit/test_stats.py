"""Where the bytes went."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.errors import NotFound
from store.gc import collect as gc
from store.history.stats import Stats, collect
from store.naming.refnames import branch_name
from store.repository import Repository
from store.saving.inputs import ItemInput, ValueInput
from store.saving.saver import SaveRequest
from store.upkeep.prune import Pruner
from store.upkeep.retention import Keep
from tests.arrays import Array, chunk_of, drifted, noise, pack_file, save

ZEROS = Array("float32", (5000,), bytes(20_000))
STATE = {"noise": noise("w", 3000), "zeros": ZEROS, "tiny": noise("t", 5)}
TENSOR_BYTES = 12_000 + 20_000 + 20


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        yield repo


def require_balance(stats: Stats) -> None:
    """Every byte that was saved is accounted for once."""
    assert stats.tensor_bytes == (
        stats.inline_bytes
        + stats.shared_bytes
        + stats.delta_saved_bytes
        + stats.compression_saved_bytes
        + stats.chunk_stored_bytes
    )
    beside_bytes = stats.base_bytes + stats.gc_bytes + stats.repack_bytes + stats.rest_bytes + stats.table_bytes
    assert stats.pack_bytes == stats.chunk_stored_bytes + stats.tree_stored_bytes + beside_bytes


def test_an_empty_store(repo: Repository) -> None:
    assert collect(repo) == Stats(*[0] * 17)


def test_one_commit(repo: Repository) -> None:
    saved = save(repo, STATE)
    stats = collect(repo)
    require_balance(stats)
    assert (stats.commit_count, stats.chunk_count, stats.delta_count, stats.pack_count) == (1, 2, 0, 1)
    assert (stats.tensor_bytes, stats.inline_bytes, stats.shared_bytes) == (TENSOR_BYTES, 20, 0)
    assert stats.compression_saved_bytes > 19_000  # the zeros
    assert stats.chunk_stored_bytes + stats.tree_stored_bytes == saved.counts.stored_bytes


def test_what_is_shared_counts_as_shared(repo: Repository) -> None:
    first = save(repo, STATE)
    save(repo, STATE, last=first.last)
    repo.set_ref(branch_name("other"), None, first.commit, "branch")
    save(repo, {**STATE, "copy": ZEROS}, branch="other")
    stats = collect(repo)
    require_balance(stats)
    assert stats.commit_count == 3
    assert stats.tensor_bytes == 3 * TENSOR_BYTES + 20_000
    assert stats.shared_bytes == 2 * 32_000 + 20_000
    assert stats.chunk_count == 2


def test_what_deltas_save_counts_as_theirs(repo: Repository) -> None:
    saved, array, delta_count = None, noise("w", 3000), 0
    for number in range(4):
        saved = save(repo, {"w": array}, last=saved.last if saved else None)
        delta_count += saved.counts.delta_count
        array = drifted(array, number, share=0.1)
    stats = collect(repo)
    require_balance(stats)
    assert stats.delta_count == delta_count > 0
    assert stats.delta_saved_bytes > 6000 * delta_count


def test_values_count_too(repo: Repository) -> None:
    given = {"short": ValueInput(0, 7), "long": ValueInput(1, "x" * 50_000)}
    repo.save(SaveRequest([ItemInput("extra", given)], branch="main"))
    stats = collect(repo)
    require_balance(stats)
    assert stats.tensor_bytes > 50_000
    assert stats.chunk_count == 1


def test_only_what_is_reached_counts_but_all_packs(repo: Repository) -> None:
    save(repo, STATE)
    alone = collect(repo)
    save(repo, {"w": noise("x", 4000)}, branch="gone")
    repo.delete_ref(branch_name("gone"))
    (repo.layout.root / "logs" / "refs" / "branches" / "gone").unlink()
    after = collect(repo)
    assert (after.commit_count, after.tensor_bytes) == (alone.commit_count, alone.tensor_bytes)
    assert after.pack_bytes > alone.pack_bytes + 16_000
    assert after.gc_bytes == gc(repo, dry_run=True).freed_bytes > 14_000


def test_what_deltas_need_counts_as_bases(repo: Repository) -> None:
    saved, array = None, noise("w", 3000)
    for number in range(4):
        saved = save(repo, {"w": array}, last=saved.last if saved else None)
        array = drifted(array, number, share=0.1)
    pruner = Pruner(repo)
    pruner.apply(pruner.by_policy(Keep(last=1)))
    told = collect(repo)
    require_balance(told)
    assert told.base_bytes > told.chunk_stored_bytes > 0
    given_back = gc(repo).freed_bytes
    after = collect(repo)
    require_balance(after)
    assert after.base_bytes == told.base_bytes
    assert told.pack_bytes - after.pack_bytes == given_back


def test_a_missing_chunk_is_named(repo: Repository) -> None:
    saved = save(repo, STATE)
    chunk = chunk_of(repo, saved.commit, "noise")
    (place,) = repo.index.places(chunk)
    repo.index.mark_bad(chunk, place.pack)
    pack_file(repo, place.pack).unlink()
    with pytest.raises(NotFound, match=chunk.hex()):
        collect(repo)
