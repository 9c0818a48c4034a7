"""Packs that were damaged, and have been put right since: nobody goes on calling them damaged."""

from pathlib import Path

import pytest

from store.errors import Corrupt
from store.ids import PackId
from store.repository import Repository
from tests.arrays import chunk_of, damage, flip, noise, pack_file, read, save

STATE = {"w": noise("w", 900)}


def replace(path: Path, data: bytes) -> None:
    """As a writer does: whoever has the old file open keeps that."""
    aside = path.with_suffix(".aside")
    aside.write_bytes(data)
    aside.replace(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_a_copy_counts_again_once_its_pack_is_another_file(root: Path) -> None:
    with Repository.init(root, thread_count=1) as repo:
        commit = save(repo, STATE).commit
        path = pack_file(repo, repo.index.places(chunk_of(repo, commit, "w"))[0].pack)
        whole = path.read_bytes()
        damage(repo, chunk_of(repo, commit, "w"))
        with pytest.raises(Corrupt, match="is damaged"):
            read(repo, commit)
        with pytest.raises(Corrupt, match="is damaged"):  # and stays so
            read(repo, commit)
        replace(path, whole)
        assert read(repo, commit) == STATE


def test_whoever_has_the_damaged_file_open_reads_the_one_that_took_its_place(root: Path) -> None:
    with Repository.init(root, thread_count=1) as repo:
        commit = save(repo, STATE).commit
        chunk = chunk_of(repo, commit, "w")
        place = repo.index.places(chunk)[0]
        path = pack_file(repo, place.pack)
        whole = path.read_bytes()
        assert read(repo, commit) == STATE  # the pack is open now
        flip(path, place.offset + place.stored_bytes - 1)
        damaged = path.stat().st_ino
        replace(path, whole)
        assert path.stat().st_ino != damaged
        assert read(repo, commit) == STATE
        assert repo.index.places(chunk) == [place]  # and nobody was told that it is damaged


def test_a_pack_that_is_written_anew_has_no_bad_copies(root: Path) -> None:
    with Repository.init(root, thread_count=1) as repo:
        commit = save(repo, STATE).commit
        chunk = chunk_of(repo, commit, "w")
        place = repo.index.places(chunk)[0]
        pack: PackId = place.pack
        repo.index.mark_bad(chunk, pack)
        assert repo.index.places(chunk) == []
        entries = repo.packs.table(pack).entries
        repo.index.write(lambda writer: writer.add_pack(pack, entries))
        assert repo.index.places(chunk) == [place]
