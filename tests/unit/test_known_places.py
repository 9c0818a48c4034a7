"""What a save knows of the store from the save before it, and when it asks the index all the same."""

import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from store.errors import Corrupt
from store.ids import ObjectId
from store.index import LmdbIndex
from store.limits import SAVE_CHAIN_DEPTH
from store.repository import Repository
from store.saving import saver
from store.saving.bases import LastSave
from store.saving.publish import add_to_index
from store.saving.saver import Saved
from tests.arrays import State, chunk_of, damage, depths, drifted, noise, read, require_whole, save

STATE = {name: noise(name, 2000) for name in "abcd"}


class WatchedIndex:
    """An index that remembers what a save asks of it."""

    def __init__(self, index: Any) -> None:
        self._index = index
        self.asked: set[ObjectId] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def places_below(self, object_ids: Collection[ObjectId]) -> Any:
        self.asked.update(object_ids)
        return self._index.places_below(object_ids)


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        yield repo


def asked_by_a_save(repo: Repository, state: State, last: LastSave) -> tuple[Saved, set[ObjectId]]:
    """A save, and which chunks it asked for; trees and commits aside."""
    index = repo.index
    repo.index = watched = WatchedIndex(index)  # type: ignore[assignment]
    saved = save(repo, state, last=last)
    repo.index = index
    chunks = {
        chunk for by_name in (*last.entries.values(), *saved.last.entries.values()) for chunk in chunks_of(by_name)
    }
    return saved, watched.asked & chunks


def chunks_of(by_name: Any) -> set[ObjectId]:
    return {chunk for entry in by_name.values() for chunk in entry.chunks}


def find_damage(repo: Repository, saved: Saved) -> None:
    """Have somebody else read a commit that is damaged, and write that down."""
    with Repository.open(repo.layout.root, thread_count=1) as other, pytest.raises(Corrupt):
        read(other, saved.commit)


def test_only_new_chunks_are_looked_up_as_long_as_nobody_else_writes(repo: Repository) -> None:
    last = save(repo, STATE).last
    states = {}
    for step in range(2 * SAVE_CHAIN_DEPTH + 1):
        state = {**STATE, "b": drifted(STATE["b"], step), "c": drifted(STATE["c"], step // 2)}
        saved, asked = asked_by_a_save(repo, state, last)
        assert asked == chunks_of(saved.last.entries["model"]) - chunks_of(last.entries["model"])
        states[saved.commit] = state
        last = saved.last
    require_whole(repo, states)
    assert max(depths(repo, saved.commit)) <= SAVE_CHAIN_DEPTH


def test_what_is_known_is_what_the_index_says(repo: Repository) -> None:
    last = None
    for step in range(SAVE_CHAIN_DEPTH + 3):
        last = save(repo, {name: drifted(array, step) for name, array in STATE.items()}, last=last).last
        told = repo.index.places_below(chunks_of(last.entries["model"]))
        assert {object_id: list(places) for object_id, places in last.places.items()} == told
        assert last.version == repo.index.version()


def test_after_another_save_all_is_looked_up_again(repo: Repository) -> None:
    first = save(repo, STATE)
    with Repository.open(repo.layout.root, thread_count=1) as other:
        save(other, {"z": noise("z", 2000)}, branch="other")
    assert first.last.version != repo.index.version()
    second, asked = asked_by_a_save(repo, {**STATE, "b": drifted(STATE["b"], 1)}, first.last)
    assert asked == chunks_of(first.last.entries["model"]) | chunks_of(second.last.entries["model"])
    assert second.counts.delta_count == 1


def test_a_copy_that_another_process_found_damaged_is_stored_again(repo: Repository) -> None:
    first = save(repo, STATE)
    damage(repo, chunk_of(repo, first.commit, "a"))
    find_damage(repo, first)
    second = save(repo, STATE, last=first.last)
    assert second.counts.new_raw_bytes == len(STATE["a"].data)
    assert read(repo, first.commit) == read(repo, second.commit) == STATE


def test_a_copy_whose_damage_could_not_be_written_down_yet_is_stored_again(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = save(repo, STATE)
    damage(repo, chunk_of(repo, first.commit, "a"))
    monkeypatch.setattr(LmdbIndex, "_write", lambda *_: None)  # as while a thread of this process is writing
    with pytest.raises(Corrupt):
        read(repo, first.commit)
    monkeypatch.undo()
    assert repo.index.version() is None
    second = save(repo, STATE, last=first.last)  # writes it down
    assert second.last.version is None
    third = save(repo, STATE, last=second.last)
    assert third.counts.new_raw_bytes == len(STATE["a"].data)
    assert read(repo, first.commit) == read(repo, third.commit) == STATE


def test_what_changes_in_the_index_during_a_save_is_not_known_after_it(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = save(repo, STATE)
    damage(repo, chunk_of(repo, first.commit, "a"))

    def find_it_first(*arguments: Any) -> Any:
        find_damage(repo, first)
        return add_to_index(*arguments)

    monkeypatch.setattr(saver, "add_to_index", find_it_first)
    second = save(repo, STATE, last=first.last)
    monkeypatch.undo()
    third = save(repo, STATE, last=second.last)
    assert third.counts.new_raw_bytes == len(STATE["a"].data)
    assert read(repo, first.commit) == read(repo, third.commit) == STATE


def test_an_index_that_was_rebuilt_is_another_version(repo: Repository) -> None:
    first = save(repo, STATE)
    repo.index.outdated()
    version = repo.index.version()
    assert version is not None
    assert first.last.version is not None
    assert version.file != first.last.version.file
    second, asked = asked_by_a_save(repo, STATE, first.last)
    assert asked == chunks_of(second.last.entries["model"])


def test_an_index_that_was_deleted_and_has_as_many_transactions_is_another_version(repo: Repository) -> None:
    last = None
    for step in range(2):
        saved = save(repo, {**STATE, "b": drifted(STATE["b"], step)}, last=last)
        last = saved.last
    damage(repo, chunk_of(repo, saved.commit, "a"))
    shutil.rmtree(repo.layout.root / "index")
    with Repository.open(repo.layout.root, thread_count=1) as other:
        with pytest.raises(Corrupt):
            read(other, saved.commit)
        version = other.index.version()
    assert version is not None
    assert last is not None
    assert last.version is not None
    assert version.number == last.version.number
    again = save(repo, {**STATE, "b": drifted(STATE["b"], 1)}, last=last)
    assert again.counts.new_raw_bytes == len(STATE["a"].data)
    assert read(repo, again.commit) == {**STATE, "b": drifted(STATE["b"], 1)}


def test_who_writes_nothing_makes_no_version(repo: Repository) -> None:
    before = repo.index.version()
    assert repo.index.write(lambda writer: writer.version) is None
    assert repo.index.version() == before
