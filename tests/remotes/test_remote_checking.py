"""Checking a remote: what is lost or damaged there is named, and the next push sends it again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.errors import Corrupt, RemoteError
from store.format.objects import Kind
from store.ids import ObjectId, short
from store.remotes.checking.check import RemoteReport, check_remote, lost_objects
from store.remotes.checking.gc import remote_gc
from store.remotes.condemned import encode_condemned
from store.remotes.idx import decode_idx
from store.remotes.losses import Losses, note, noted, noted_losses
from store.remotes.names import ABSENT, CONDEMNED, parse_pack
from store.remotes.storages.storage import Storage, Unfinished
from store.repository import Repository
from tests.arrays import drifted, noise, save
from tests.remotes.remote_worlds import DAY_NS, ClockedStorage, opened, packs_of, pushed, require_whole, saved
from tests.remotes.watched_storage import WatchedStorage


@pytest.fixture
def storage() -> ClockedStorage:
    return ClockedStorage()


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "a") as repo:
        saved(repo, "main", 0, 1)
        yield repo


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "b") as repo:
        yield repo


def check(repo: Repository, storage: Storage, *, full: bool = False) -> RemoteReport:
    with opened(repo, storage) as remote:
        return check_remote(repo, remote, full=full)


def kinds(report: RemoteReport) -> set[str]:
    return {finding.kind for finding in report.findings}


def text_of(report: RemoteReport) -> str:
    return "\n".join(f"{each.message} {each.affects}" for each in (*report.findings, *report.notes))


def place(storage: ClockedStorage, object_id: ObjectId) -> tuple[str, int, int]:
    """Key, offset and length of a copy of an object."""
    for key in sorted(packs_of(storage)):
        parsed = parse_pack(key)
        assert parsed is not None
        for entry in decode_idx(storage.bytes_of(parsed[0].idx_key), parsed[0].id).table.entries:
            if entry.id == object_id:
                return key, entry.offset, entry.stored_bytes
    raise AssertionError("it is nowhere")


def flip(storage: ClockedStorage, key: str, offset: int) -> None:
    data = bytearray(storage.bytes_of(key))
    data[offset] ^= 0x10
    storage.put(key, bytes(data))


def chunk_of(repo: Repository, revision: str, name: str) -> ObjectId:
    return repo.tree(repo.commit(repo.resolve(revision)), "model")[name].chunks[0]


@pytest.mark.parametrize("full", [False, True])
def test_a_whole_remote_is_clean(repo: Repository, other: Repository, storage: ClockedStorage, full: bool) -> None:
    pushed(repo, storage, "main")
    for each in (repo, other):
        report = check(each, storage, full=full)
        assert report.clean and not report.notes and not report.lost
        assert report.commit_count == 2
        assert report.pack_count == len(packs_of(storage))
        assert report.object_count > 4 and report.stored_bytes > 0


def test_an_empty_place_is_told(repo: Repository, storage: ClockedStorage) -> None:
    report = check(repo, storage)
    assert report.clean and "nothing was ever pushed" in report.notes[0].message


@pytest.mark.parametrize("ending", [".pack", ".idx"])
def test_f9_a_pack_that_is_lost_is_named_and_the_next_push_repairs_it(
    repo: Repository, storage: ClockedStorage, tmp_path: Path, ending: str
) -> None:
    pushed(repo, storage, "main")
    first = packs_of(storage)
    saved(repo, "main", 2)
    pushed(repo, storage, "main")
    storage.delete([next(iter(first))[:-5] + ending])
    report = check(repo, storage)
    assert "missing" in kinds(report)
    assert "main" in text_of(report) or "::" in text_of(report)
    assert report.lost
    assert set(report.last_good) == {"main"}
    assert pushed(repo, storage, "main").pack_count == 1  # though no ref moves
    assert check(repo, storage).clean
    require_whole(storage, tmp_path / "copy")
    with opened(repo, storage) as remote:
        assert not noted_losses(repo, remote)
    assert pushed(repo, storage, "main").pack_count == 0


def test_f9_one_object_that_is_damaged_is_named_and_sent_again(
    repo: Repository, other: Repository, storage: ClockedStorage, tmp_path: Path
) -> None:
    pushed(repo, storage, "main")
    chunk = chunk_of(repo, "main", "fc.weight")
    key, offset, stored_bytes = place(storage, chunk)
    flip(storage, key, offset + stored_bytes - 1)
    assert check(repo, storage).clean  # what chunks hold is not read
    report = check(repo, storage, full=True)
    assert [(each.kind, each.object_id) for each in report.findings] == [("object", chunk)]
    assert report.findings[0].affects == (f"{short(repo.resolve('main'))} model::fc.weight",)
    assert report.affected == {repo.resolve("main")}
    assert report.last_good == {"main": repo.resolve("main~1")}
    assert report.lost == {chunk}
    assert not check(repo, storage).clean  # it is remembered
    assert pushed(repo, storage, "main").pack_count == 1
    for each in (repo, other):
        report = check(each, storage, full=True)
        assert report.clean and not report.lost
        assert [note.kind for note in report.notes] == ["copy"]


def test_f9_a_pack_all_of_which_is_damaged_is_sent_under_another_name(
    repo: Repository, storage: ClockedStorage
) -> None:
    pushed(repo, storage, "main")
    (key,) = packs_of(storage)
    data = storage.bytes_of(key)
    storage.put(key, data[:64] + bytes(byte ^ 1 for byte in data[64:]))
    assert check(repo, storage, full=True).lost
    pushed(repo, storage, "main")
    assert len(packs_of(storage)) == 2
    report = check(repo, storage, full=True)
    assert report.clean and not report.lost and not report.affected
    assert {each.kind for each in report.notes} == {"pack", "copy"}


def test_gc_keeps_the_intact_copy_of_what_was_damaged(
    repo: Repository, other: Repository, storage: ClockedStorage
) -> None:
    pushed(repo, storage, "main")
    (key,) = packs_of(storage)
    data = storage.bytes_of(key)
    storage.put(key, data[:64] + bytes(byte ^ 1 for byte in data[64:]))
    storage.clock_ns += DAY_NS
    check(repo, storage, full=True)
    pushed(repo, storage, "main")
    for each in (other, repo, other):
        storage.clock_ns += 2 * DAY_NS
        with opened(each, storage) as remote:
            remote_gc(each, remote)
    assert key not in packs_of(storage)
    assert check(other, storage, full=True).clean


def test_a_base_that_is_lost_is_sent_again(repo: Repository, storage: ClockedStorage, tmp_path: Path) -> None:
    state, last = {"w": noise("w", 5000)}, None
    for step in range(3):
        made = save(repo, state, branch="deltas", step=step, last=last)
        state, last = {"w": drifted(state["w"], step)}, made.last
        pushed(repo, storage, "deltas")
    chunk = repo.tree(repo.commit(repo.resolve("deltas~1")), "model")["w"].chunks[0]
    storage.delete([place(storage, chunk)[0]])
    report = check(repo, storage)
    assert chunk in report.lost
    tip = repo.tree(repo.commit(repo.resolve("deltas")), "model")["w"].chunks[0]
    if repo.index.places(tip)[0].base == chunk:
        assert tip in report.lost
    pushed(repo, storage, "deltas")
    assert check(repo, storage, full=True).clean
    require_whole(storage, tmp_path / "copy")


def test_what_is_lost_below_a_lost_tree_is_sent_along(repo: Repository, storage: ClockedStorage) -> None:
    pushed(repo, storage, "main")
    storage.delete(packs_of(storage))
    with opened(repo, storage) as remote:
        lost = lost_objects(repo, remote)
    assert {chunk_of(repo, "main", "fc.weight"), *repo.commit(repo.resolve("main")).items.values()} <= lost
    pushed(repo, storage, "main", lost=lost)
    assert check(repo, storage, full=True).clean


@pytest.mark.parametrize("kind", [Kind.TREE, Kind.COMMIT])
def test_a_damaged_tree_or_commit_is_found(
    repo: Repository, other: Repository, storage: ClockedStorage, kind: Kind
) -> None:
    pushed(repo, storage, "main")
    tip = repo.resolve("main")
    damaged: ObjectId = tip if kind is Kind.COMMIT else repo.commit(tip).items["model"]
    key, offset, stored_bytes = place(storage, damaged)
    flip(storage, key, offset + stored_bytes - 1)
    report = check(other, storage, full=True)
    assert damaged in report.lost
    assert tip in report.affected
    if kind is Kind.TREE:  # a quick check reads those that are not here; commits it has from the idx
        assert damaged in check(other, storage).lost


@pytest.mark.parametrize("part", ["header", "table", "footer"])
def test_a_frame_that_is_damaged_is_told(repo: Repository, storage: ClockedStorage, part: str) -> None:
    pushed(repo, storage, "main")
    (key,) = packs_of(storage)
    flip(storage, key, {"header": 3, "table": -100, "footer": -1}[part])
    report = check(repo, storage, full=True)
    assert report.clean and not report.lost
    assert [each.kind for each in report.notes] == ["pack"]


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"x"])
def test_a_pack_of_another_length_counts_as_lost(repo: Repository, storage: ClockedStorage, change: object) -> None:
    pushed(repo, storage, "main")
    (key,) = packs_of(storage)
    storage.put(key, change(storage.bytes_of(key)))  # type: ignore[operator]
    report = check(repo, storage)
    assert "pack" in kinds(report) and report.lost
    pushed(repo, storage, "main")
    report = check(repo, storage, full=True)
    assert report.clean and "gc --remote" in text_of(report)


@pytest.mark.parametrize("offset", [0, 9, 40, -1])
def test_an_idx_that_is_none_is_told_though_it_is_known_here(
    repo: Repository, storage: ClockedStorage, offset: int
) -> None:
    pushed(repo, storage, "main")
    (key,) = packs_of(storage)
    flip(storage, key.replace(".pack", ".idx"), offset)
    report = check(repo, storage)
    assert "pack" in kinds(report) and report.lost


def test_damaged_refs_and_lists_hide_nothing_else(repo: Repository, storage: ClockedStorage) -> None:
    pushed(repo, storage, "main")
    storage.put("refs/branches/broken", b"x" * 64 + b"\n")
    storage.put("refs/tags/long", b"0" * 100_000)
    storage.put("refs/branches/nowhere", b"1" * 64 + b"\n")
    storage.put(CONDEMNED, b"[]")
    report = check(repo, storage)
    assert kinds(report) == {"ref", "remote", "missing"}
    assert sum(each.kind == "ref" for each in report.findings) == 2
    assert "branch 'nowhere'" in text_of(report)
    assert report.commit_count == 2


def test_what_is_absent_on_purpose_is_no_damage(repo: Repository, storage: ClockedStorage) -> None:
    pushed(repo, storage, "main")
    storage.delete(packs_of(storage))
    pushed(repo, storage, "main", lost={repo.resolve("main"), repo.resolve("main~1")})  # history alone
    assert check(repo, storage).lost
    lines = [f"{repo.resolve(each).hex()} * pruned 7\n" for each in ("main", "main~1")]
    storage.put(f"{ABSENT}{'c' * 32}", "".join(lines).encode())
    report = check(repo, storage)
    assert report.clean and not report.lost and report.commit_count == 2


def test_what_is_condemned_and_needed_is_told(repo: Repository, storage: ClockedStorage) -> None:
    pushed(repo, storage, "main")
    (key,) = packs_of(storage)
    name = key.removeprefix("packs/").removesuffix(".pack")
    storage.put(CONDEMNED, encode_condemned({name: 1}))
    report = check(repo, storage)
    assert report.clean and report.condemned_count == 1 and "condemned although" in text_of(report)
    storage.put(CONDEMNED, encode_condemned({name: 1}, {name: 2}))
    assert check(repo, storage).lost  # it may vanish any moment


def test_what_lies_about_is_noted(repo: Repository, storage: ClockedStorage) -> None:
    pushed(repo, storage, "main")
    storage.put(f"packs/{'1' * 64}.pack", b"part")
    storage.put("models/readme", b"theirs")
    storage.pending = [Unfinished("packs/x", "old", 0)]
    report = check(repo, storage)
    assert (report.foreign_count, report.unfinished_count, len(report.notes)) == (1, 1, 2)
    storage.clock_ns += DAY_NS
    report = check(repo, storage)
    assert report.clean and len(report.notes) == 3


def test_a_check_alters_nothing_there_and_stores_nothing_here(
    other: Repository, repo: Repository, storage: ClockedStorage
) -> None:
    pushed(repo, storage, "main")
    before = storage.content()
    check(other, storage, full=True)
    assert storage.content() == before
    assert not list(other.layout.packs.iterdir())


def test_a_server_that_lists_for_ever_is_refused(
    repo: Repository, storage: ClockedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed(repo, storage, "main")
    for module in ("checking.check", "packlist"):
        monkeypatch.setattr(f"store.remotes.{module}.MAX_REMOTE_KEYS", 3)
    with pytest.raises(Corrupt, match="lists more than 3 keys"):
        check(repo, storage)
    with opened(repo, storage) as remote, pytest.raises(Corrupt, match="lists more"):
        storage.put("packs/a", b"")
        storage.put("packs/b", b"")
        remote_gc(repo, remote)


def test_an_idx_that_is_too_long_is_not_read(
    repo: Repository, storage: ClockedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed(repo, storage, "main")
    monkeypatch.setattr("store.remotes.remote.MAX_IDX_BYTES", 100)
    assert "longer than 100 bytes" in text_of(check(repo, storage))


def test_a_remote_that_fails_is_no_damage(repo: Repository, storage: ClockedStorage) -> None:
    pushed(repo, storage, "main")
    watched = WatchedStorage(storage)

    def fail(method: str, key: str) -> None:
        if key.endswith(".idx"):
            raise RemoteError("no answer")

    watched.before = fail
    with pytest.raises(RemoteError, match="no answer"):
        check(repo, watched)


def test_trees_are_read_in_few_requests(repo: Repository, other: Repository, storage: ClockedStorage) -> None:
    saved(repo, "main", *range(2, 30))
    pushed(repo, storage, "main")
    watched = WatchedStorage(storage)
    assert check(other, watched).clean
    assert len(watched.requests) < 12


def test_notes_of_another_place_do_not_count(repo: Repository, storage: ClockedStorage) -> None:
    object_id = chunk_of(repo, "main", "fc.weight")
    with opened(repo, storage) as remote:
        note(repo, remote, Losses(frozenset([object_id]), frozenset([("a", object_id)])))
        assert noted_losses(repo, remote) == {object_id}
    elsewhere = ClockedStorage()
    elsewhere.url = "memory:other"
    with opened(repo, elsewhere) as remote:
        assert noted(repo, remote) == Losses()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"url": "memory:7", "objects": [1], "copies": []}'])
def test_a_damaged_note_says_nothing(repo: Repository, storage: ClockedStorage, content: bytes) -> None:
    path = repo.layout.root / "remotes" / "origin" / "lost"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    storage.url = "memory:7"
    with opened(repo, storage) as remote:
        assert noted(repo, remote) == Losses()


def test_progress_is_told_in_bytes(repo: Repository, storage: ClockedStorage) -> None:
    pushed(repo, storage, "main")
    told: list[tuple[str, int, int]] = []
    with opened(repo, storage) as remote:
        check_remote(repo, remote, full=True, progress=lambda *what: told.append(what))
    downloading = [(done, total) for what, done, total in told if what == "downloading"]
    assert downloading[-1][0] == downloading[-1][1] > 0
