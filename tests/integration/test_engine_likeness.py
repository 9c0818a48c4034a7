"""Tensors that resemble stored ones: what they take, and that they come back whatever is done with the store."""

import errno
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from store import codec
from store.disk.calls import Disk
from store.disk.files import Files
from store.errors import Corrupt, Incompatible
from store.format.entries import Piece, TensorEntry
from store.fsck import fsck
from store.fsck.repair import repair
from store.gc import collect
from store.ids import CommitId
from store.layout import FEATURES, VIEWS, encode_format
from store.limits import MAX_CHUNK_BYTES, SAVE_CHAIN_DEPTH
from store.naming.refnames import branch_name
from store.opening.indexes import rebuild_index
from store.remotes.checking.check import check_remote
from store.remotes.fetching.mending import RemoteSource
from store.remotes.remote import open_remote
from store.remotes.storages.directory import DirectoryStorage
from store.repack import Goal, repack
from store.repository import Repository
from store.saving.inputs import ItemInput, MadeInput, TensorInput
from store.saving.saver import Saved, SaveRequest
from tests.arrays import ITEM, Array, damage, depths, entries_of, flip, pack_file, read, require_whole
from tests.collecting import expire_reflogs
from tests.remotes.lazily import lazy_clone
from tests.remotes.sharing import cloned, pushed, require_sound

ROWS, COLUMNS = 2000, 200


def array(values: np.ndarray, name: str = "float32") -> Array:
    raw = np.ascontiguousarray(values, "<f4").tobytes()
    held = raw if name == "float32" else bytes(codec.narrowing("float32", name, b"", 1).new(raw, 0))
    return Array(name, values.shape, held)


def weights(seed: int, rows: int = ROWS, scale: float = 0.02) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, COLUMNS)).astype("<f4") * np.float32(scale)


BASE = weights(0)
TUNED = BASE + weights(1, scale=1e-4)
LONGER = np.concatenate([TUNED, weights(2, 10)])


class Case(NamedTuple):
    """A tensor beside one that it resembles.

    Attributes:
        base: the stored one.
        tuned: the one that is stored after it.
        share: what it may take, of what it takes by itself.
    """

    base: Array
    tuned: Array
    share: float


CASES = {
    "fp32 of fp32": Case(array(BASE), array(TUNED), 0.78),
    "bf16 of bf16": Case(array(BASE, "bfloat16"), array(TUNED, "bfloat16"), 0.4),
    "bf16 of fp32": Case(array(BASE), array(TUNED, "bfloat16"), 0.4),
    "fp16 of fp32": Case(array(BASE), array(TUNED, "float16"), 0.6),
    "fp32 of bf16": Case(array(BASE, "bfloat16"), array(TUNED), 0.78),
    "fp32 of fp16": Case(array(BASE, "float16"), array(TUNED), 0.78),
    "fp16 of bf16": Case(array(BASE, "bfloat16"), array(TUNED, "float16"), 0.7),
    "bf16 of fp16": Case(array(BASE, "float16"), array(TUNED, "bfloat16"), 0.4),
    "more rows": Case(array(BASE), array(LONGER), 0.79),
    "more rows, and narrower": Case(array(BASE), array(LONGER, "bfloat16"), 0.42),
    "fewer rows": Case(array(BASE), array(TUNED[:1111]), 0.78),
    "fewer rows, and wider": Case(array(BASE, "bfloat16"), array(TUNED[:1111]), 0.78),
}


def made(given: Array, like: TensorEntry | None = None, cuts: tuple[int, ...] | None = None) -> MadeInput:
    view = memoryview(given.data)
    return MadeInput(0, given.dtype, given.shape, lambda start, stop: view[start:stop], cuts, like)


def saved(repo: Repository, branch: str, tensors: Mapping[str, MadeInput | TensorInput]) -> Saved:
    parent = repo.refs.read(branch_name(branch))
    entries = {name: given._replace(position=number) for number, (name, given) in enumerate(tensors.items())}
    return repo.save(SaveRequest([ItemInput(ITEM, entries)], branch=branch, parent=parent))


def saved_one(repo: Repository, branch: str, given: MadeInput | TensorInput) -> TensorEntry:
    return entries_of(repo, saved(repo, branch, {"w": given}).commit)["w"]


def features(root: Path) -> list[str]:
    lists = json.loads((root / "format").read_text())
    assert lists["read"] == lists["write"] == lists["gc"]
    return list(lists["read"])


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        yield repo


# --- what it takes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_what_resembles_a_stored_tensor_takes_clearly_less(repo: Repository, name: str) -> None:
    base, tuned, share = CASES[name]
    alone = saved(repo, "alone", {"w": made(tuned)}).counts
    with Repository.init(repo.layout.root.with_name("other"), thread_count=2) as other:
        like = saved_one(other, "base", made(base))
        done = saved(other, "tuned", {"w": made(tuned, like)})
        assert done.counts.stored_bytes < share * alone.stored_bytes
        assert read(other, done.commit)["w"] == tuned
        assert depths(other, done.commit)[0] == 1


def test_chunks_of_wider_words_see_a_part_of_their_base_each(repo: Repository) -> None:
    wide = np.random.default_rng(0).standard_normal((3, 1_300_000)).astype("<f4")
    like = saved_one(repo, "base", made(array(wide, "bfloat16")))
    tuned = array(wide * np.float32(1.0001))
    done = saved(repo, "tuned", {"w": made(tuned, like)})
    entry = entries_of(repo, done.commit)["w"]
    assert entry.cuts == (MAX_CHUNK_BYTES, 5_200_000 - MAX_CHUNK_BYTES) * 3
    assert done.counts.delta_count == 6
    assert read(repo, done.commit)["w"] == tuned


def test_equal_chunks_are_stored_once_however_long_the_tensors_are(repo: Repository) -> None:
    like = saved_one(repo, "base", made(array(BASE)))
    grown = array(np.concatenate([BASE, weights(3, 10)]))
    done = saved(repo, "grown", {"w": made(grown, like)})
    assert done.counts.known_count == len(like.chunks)
    assert done.counts.new_raw_bytes == 10 * COLUMNS * 4
    assert entries_of(repo, done.commit)["w"].chunks[:-1] == like.chunks


def test_a_base_that_was_cast_or_lies_in_pieces_will_do(repo: Repository) -> None:
    given = TensorInput(0, "float32", BASE.shape, memoryview(array(BASE).data), "bfloat16")
    cast = saved_one(repo, "cast", given)
    assert cast.stored == "bfloat16"
    whole = saved_one(repo, "base", made(array(BASE), cuts=(400 * 800,) * 5))
    pieces = [Piece((400 * n, 0), (400, COLUMNS), (400 * 800,), (chunk,)) for n, chunk in enumerate(whole.chunks)]
    for number, like in enumerate((cast, replace(whole, pieces=tuple(pieces[::-1])))):
        tuned = array(TUNED + np.float32(1e-5 * number))
        done = saved(repo, f"tuned{number}", {"w": made(tuned, like)})
        assert done.counts.delta_count == len(like.chunks)
        assert read(repo, done.commit)["w"] == tuned


def test_a_base_that_is_of_no_use_is_none(repo: Repository) -> None:
    scaled = saved_one(
        repo, "scaled", TensorInput(0, "float32", BASE.shape, memoryview(array(BASE).data), "float8_e4m3fn")
    )
    lost = saved_one(repo, "base", made(array(BASE)))
    lost = replace(lost, pieces=(replace(lost.pieces[0], chunks=tuple(chunk[::-1] for chunk in lost.chunks)),))
    liar = replace(lost, pieces=(replace(lost.pieces[0], chunks=scaled.chunks[:1] * len(lost.chunks)),))
    for number, like in enumerate((scaled, lost, liar)):
        tuned = array(TUNED + np.float32(1e-5 * number))
        done = saved(repo, f"tuned{number}", {"w": made(tuned, like)})
        assert done.counts.delta_count == 0
        assert read(repo, done.commit)["w"] == tuned


def test_chains_end_where_they_are_full_and_not_in_turns(repo: Repository) -> None:
    like, found = saved_one(repo, "0", made(array(BASE))), []
    for number in range(1, SAVE_CHAIN_DEPTH + 4):
        tuned = array(BASE + weights(number, scale=1e-4))
        done = saved(repo, str(number), {"w": made(tuned, like)})
        assert done.counts.delta_count == len(like.chunks)
        assert read(repo, done.commit)["w"] == tuned
        like = entries_of(repo, done.commit)["w"]
        found.append(set(depths(repo, done.commit)))
    assert found == [{min(number, SAVE_CHAIN_DEPTH)} for number in range(1, SAVE_CHAIN_DEPTH + 4)]


def test_a_full_chain_of_chunks_of_another_length_is_not_gone_on_with(repo: Repository) -> None:
    like = saved_one(repo, "0", made(array(BASE)))
    for number in range(1, SAVE_CHAIN_DEPTH):
        like = saved_one(repo, str(number), made(array(BASE + weights(number, scale=1e-4)), like))
    narrow = saved(repo, "narrow", {"w": made(array(TUNED, "bfloat16"), like)})
    assert set(depths(repo, narrow.commit)) == {SAVE_CHAIN_DEPTH}
    again = array(TUNED + np.float32(1e-4), "bfloat16")
    done = saved(repo, "again", {"w": made(again, entries_of(repo, narrow.commit)["w"])})
    assert set(depths(repo, done.commit)) == {0}
    require_whole(repo, {done.commit: {"w": again}})


def test_training_goes_on_from_what_was_stored_against_something_longer(repo: Repository) -> None:
    """Chains that lead to chunks of another length begin anew all the same."""
    like, commits, found = saved_one(repo, "base", made(array(BASE))), {}, []
    for step in range(3 * (SAVE_CHAIN_DEPTH + 1)):
        values = TUNED[:700].copy()
        values[step::50] *= np.float32(1 + step / 1000)  # few rows change: what older bases are looked for for
        tuned = array(values, "bfloat16")
        done = saved(repo, "tuned", {"w": made(tuned, like if step == 0 else None, (200 * 400,) * 3 + (100 * 400,))})
        commits[done.commit] = {"w": tuned}
        found += depths(repo, done.commit)
    assert max(found) <= SAVE_CHAIN_DEPTH
    require_whole(repo, commits)


# --- cuts -----------------------------------------------------------------------------------------------------------


def test_a_tensor_is_cut_as_told(repo: Repository) -> None:
    cuts = (800, MAX_CHUNK_BYTES // 4, ROWS * 800 - 800 - MAX_CHUNK_BYTES // 4)
    given = array(BASE)
    done = saved(repo, "base", {"w": made(given, cuts=cuts), "small": made(array(BASE[:1, :4]), cuts=(4, 12))})
    assert entries_of(repo, done.commit)["w"].cuts == cuts
    assert read(repo, done.commit) == {"w": given, "small": array(BASE[:1, :4])}


@pytest.mark.parametrize(
    ("cuts", "message"),
    [((800,), "800 bytes given for a tensor of 1600"), ((799, 801), "whole elements"), ((1600, 0), "a chunk of 0")],
)
def test_cuts_that_do_not_fit_are_refused(repo: Repository, cuts: tuple[int, ...], message: str) -> None:
    with pytest.raises(Incompatible, match=message):
        saved(repo, "base", {"w": made(array(BASE[:2]), cuts=cuts)})
    assert repo.refs.read(branch_name("base")) is None


# --- what happens to a store ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[CommitId, dict[str, Array]]]:
    """A store with all cases: the bases on one branch, what resembles them on another, and more of that on a third."""
    root = tmp_path_factory.mktemp("past") / "store"
    with Repository.init(root, thread_count=2) as repo:
        bases = saved(repo, "bases", {name: made(case.base) for name, case in CASES.items()}).commit
        entries = entries_of(repo, bases)
        commits = {bases: {name: case.base for name, case in CASES.items()}}
        tuned = saved(repo, "main", {name: made(case.tuned, entries[name]) for name, case in CASES.items()}).commit
        commits[tuned] = {name: case.tuned for name, case in CASES.items()}
        entries = entries_of(repo, tuned)
        again = saved(repo, "again", {name: made(case.base, entries[name]) for name, case in CASES.items()}).commit
        commits[again] = commits[bases]
        moved = {name: array(TUNED + np.float32(1e-3), case.base.dtype) for name, case in CASES.items()}
        last = saved(repo, "again", {name: made(each, entries[name]) for name, each in moved.items()}).commit
        commits[last] = moved
    (root / "ballast").unlink()
    return root, commits


def collected(repo: Repository, commits: dict[CommitId, dict[str, Array]]) -> None:
    """The bases' own branch goes: what is stored against them keeps them."""
    bases = next(iter(commits))
    repo.delete_ref(branch_name("bases"))
    expire_reflogs(repo)
    collect(repo)
    del commits[bases]


def repacked(goal: Goal) -> Callable[[Repository, dict[CommitId, dict[str, Array]]], None]:
    def do(repo: Repository, _: dict[CommitId, dict[str, Array]]) -> None:
        done = repack(repo, goal)
        assert (done.left, done.damaged) == ({}, {})

    return do


def reindexed(repo: Repository, _: dict[CommitId, dict[str, Array]]) -> None:
    rebuild_index(repo.layout, repo.files, repo.packs)


WAYS = {
    "as it is": lambda repo, commits: None,
    "gc": collected,
    "consolidate": repacked("consolidate"),
    "restore": repacked("restore"),
    "size": repacked("size"),
    "reindex": reindexed,
}


@pytest.mark.parametrize("way", WAYS)
def test_everything_comes_back_bit_by_bit(
    tmp_path: Path, past: tuple[Path, dict[CommitId, dict[str, Array]]], way: str
) -> None:
    shutil.copytree(past[0], tmp_path / "store")
    commits = dict(past[1])
    with Repository.open(tmp_path / "store", thread_count=2) as repo:
        WAYS[way](repo, commits)
        require_whole(repo, commits)
        (tmp_path / "remote").mkdir()
        pushed(repo, DirectoryStorage(tmp_path / "remote"))
    with cloned(tmp_path / "clone", DirectoryStorage(tmp_path / "remote")) as clone:
        rebuild_index(clone.layout, clone.files, clone.packs)
        require_whole(clone, commits)
        viewed = [e for p in clone.packs.pack_ids() for e in clone.packs.table(p).entries if e.viewed]
        assert viewed
        assert VIEWS in features(tmp_path / "clone")


def test_a_lazy_clone_fetches_what_it_reads_and_the_bases_of_that(
    tmp_path: Path, past: tuple[Path, dict[CommitId, dict[str, Array]]]
) -> None:
    shutil.copytree(past[0], tmp_path / "store")
    (tmp_path / "remote").mkdir()
    storage, (tuned, *_) = DirectoryStorage(tmp_path / "remote"), list(past[1])[1:]
    with Repository.open(tmp_path / "store", thread_count=2) as repo:
        pushed(repo, storage)
    with lazy_clone(tmp_path / "clone", storage) as clone:
        assert features(tmp_path / "clone") == ["moonclip-1"]
        entry = entries_of(clone, tuned)["bf16 of fp32"]
        assert bytes(clone.read_tensor(entry)) == past[1][tuned]["bf16 of fp32"].data
        assert features(tmp_path / "clone") == sorted(FEATURES)
        again = array(TUNED * np.float32(1.0001), "float32")
        done = saved(clone, "again", {"w": made(again, entry)})
        assert done.counts.delta_count == len(entry.chunks)
        assert read(clone, done.commit)["w"] == again
        require_sound(clone)


def test_a_damaged_base_is_told_of_and_nothing_else(
    tmp_path: Path, past: tuple[Path, dict[CommitId, dict[str, Array]]]
) -> None:
    shutil.copytree(past[0], tmp_path / "store")
    with Repository.open(tmp_path / "store", thread_count=2) as repo:
        base = entries_of(repo, next(iter(past[1])))["bf16 of fp32"].chunks[0]
        place = repo.index.places(base)[0]
        flip(pack_file(repo, place.pack), place.offset + place.stored_bytes - 1)
        found = fsck(repo, full=True).findings
        assert {each.object_id for each in found} == {base}
        with pytest.raises(Corrupt):
            read(repo, list(past[1])[1])


def test_what_a_view_takes_is_checked_in_a_remote_and_mended_from_there(
    tmp_path: Path, past: tuple[Path, dict[CommitId, dict[str, Array]]]
) -> None:
    root, storage = tmp_path / "store", DirectoryStorage(tmp_path / "remote")
    shutil.copytree(past[0], root)
    (tmp_path / "remote").mkdir()
    with Repository.open(root, thread_count=2) as repo:
        pushed(repo, storage)
        with open_remote(repo, "origin", storage) as remote:
            assert check_remote(repo, remote, full=True).findings == []
            entries = entries_of(repo, list(past[1])[1])
            for name in ("bf16 of fp32", "fewer rows, and wider"):
                damage(repo, entries[name].chunks[0])
            repair(root, full=True, source=RemoteSource(remote))
    with Repository.open(root, thread_count=2) as repo:
        require_whole(repo, past[1])


# --- the format -----------------------------------------------------------------------------------------------------


def test_a_store_needs_a_newer_version_from_the_first_view_on(repo: Repository) -> None:
    root = repo.layout.root
    like = saved_one(repo, "base", made(array(BASE)))
    saved(repo, "tuned", {"w": made(array(TUNED), like)})
    assert features(root) == ["moonclip-1"]
    assert (root / "format").read_bytes() == encode_format()
    saved(repo, "narrow", {"w": made(array(TUNED, "bfloat16"), like)})
    assert features(root) == sorted(FEATURES)
    before = (root / "format").stat().st_ino
    saved(repo, "narrow", {"w": made(array(BASE * np.float32(1.01), "bfloat16"), like)})
    assert (root / "format").stat().st_ino == before


def need_newer(repo: Repository, purpose: str) -> dict[str, list[str]]:
    lists: dict[str, list[str]] = json.loads(repo.layout.format.read_text())
    lists[purpose].append("something-newer")
    repo.layout.format.write_text(json.dumps(lists))
    return lists


@pytest.mark.parametrize("purpose", ["read", "write"])
def test_a_store_that_has_come_to_need_more_since_is_left_as_it_is(repo: Repository, purpose: str) -> None:
    like = saved_one(repo, "base", made(array(BASE)))
    lists, packs = need_newer(repo, purpose), repo.packs.pack_ids()
    with pytest.raises(Incompatible, match="something-newer"):
        saved(repo, "narrow", {"w": made(array(TUNED, "bfloat16"), like)})
    assert json.loads(repo.layout.format.read_text()) == lists
    assert repo.packs.pack_ids() == packs


def test_who_must_not_collect_a_store_may_write_views_to_it(repo: Repository) -> None:
    like = saved_one(repo, "base", made(array(BASE)))
    lists = need_newer(repo, "gc")
    saved(repo, "narrow", {"w": made(array(TUNED, "bfloat16"), like)})
    assert json.loads(repo.layout.format.read_text()) == {name: [*names, VIEWS] for name, names in lists.items()} | {
        "gc": ["moonclip-1", VIEWS, "something-newer"]
    }


def test_a_format_that_is_older_than_the_packs_is_told_of_and_mended(repo: Repository) -> None:
    like = saved_one(repo, "base", made(array(BASE)))
    saved(repo, "narrow", {"w": made(array(TUNED, "bfloat16"), like)})
    assert fsck(repo).findings == []
    repo.layout.format.write_bytes(encode_format())  # as a backup has it that took the packs later
    assert [each.kind for each in fsck(repo).findings] == ["format"]
    planned = repair(repo.layout.root, dry_run=True)
    assert features(repo.layout.root) == ["moonclip-1"]
    done = repair(repo.layout.root)
    assert planned.steps == done.steps == ["format: 'moonclip-views-1' is named, which packs need"]
    assert done.after is not None
    assert done.after.clean
    assert features(repo.layout.root) == sorted(FEATURES)


class Noting(Disk):
    """Notes what gets a name, and of which directories the names are made durable."""

    def __init__(self) -> None:
        self.done: list[Path] = []

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.done.append(target)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.done.append(path)


def test_who_finds_the_feature_named_makes_that_durable_first(tmp_path: Path) -> None:
    """Whoever named it may have died before that."""
    root, disk = tmp_path / "store", Noting()
    with Repository.init(root) as repo:
        like = saved_one(repo, "base", made(array(BASE)))
        saved(repo, "narrow", {"w": made(array(TUNED, "bfloat16"), like)})
    with Repository.open(root, files=Files(disk), thread_count=2) as repo:
        disk.done.clear()
        saved(repo, "narrow", {"w": made(array(TUNED + np.float32(1e-5), "bfloat16"), like)})
    first = [path.parent.name for path in disk.done].index("packs")
    assert disk.done[first - 1] == root  # once more, after all that beginning to save made durable


class KeepsFormat(Disk):
    """Has no space for another ``format``."""

    def rename(self, source: Path, target: Path) -> None:
        if target.name == "format":
            raise OSError(errno.ENOSPC, "No space left on device")
        super().rename(source, target)


def test_a_format_that_cannot_be_written_keeps_views_out(tmp_path: Path) -> None:
    with Repository.init(tmp_path / "store") as repo:
        like = saved_one(repo, "base", made(array(BASE)))
    with Repository.open(tmp_path / "store", files=Files(KeepsFormat()), thread_count=2) as repo:
        packs = repo.packs.pack_ids()
        with pytest.raises(OSError, match="No space"):
            saved(repo, "narrow", {"w": made(array(TUNED, "bfloat16"), like)})
        assert repo.packs.pack_ids() == packs
        assert features(repo.layout.root) == ["moonclip-1"]
        assert fsck(repo, full=True).findings == []
