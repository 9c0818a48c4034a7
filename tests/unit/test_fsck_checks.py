"""Each check of a store: what it looks for is put there, and nothing else is told."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from store.codec import encode_blob
from store.disk.files import Files
from store.errors import Busy
from store.format import canonical, pack
from store.format.dtypes import Element
from store.format.entries import Entry, Piece, TensorEntry, ValueEntry
from store.format.objects import Commit, Kind, SubTree, TreeNode
from store.format.pack import ObjectHeader, Sealed
from store.fsck import Finding, Report, fsck
from store.ids import CommitId, ObjectId, PackId, chunk_id, commit_id, tree_id
from store.index import BrokenIndex
from store.index.records import LAYOUT_KEY, PACK_NUMBER, SEQUENCE_KEY, delta_key, encode_place, encode_row, seal
from store.index.transaction import COMMITS, DELTAS, LAYOUTS, NUMBERS, OBJECTS, PACKS, SEQUENCE, Transaction
from store.naming.refnames import branch_name
from store.reading.packs import pack_path
from store.repository import Repository
from store.saving.leases import acquire_lease
from store.saving.publish import row_of
from store.upkeep.absences import Absence, Why
from tests import indexing, packing
from tests.arrays import chunk_of, damage, noise, pack_file, save
from tests.mending import States, fill

WORDS = bytes(range(256)) * 4


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        yield repo


def only(report: Report, kind: str) -> Finding:
    """The one finding there is."""
    assert [finding.kind for finding in report.findings] == [kind], report.findings
    return report.findings[0]


def notes(repo: Repository) -> list[str]:
    """Kinds of what is noted, where nothing is wrong."""
    report = fsck(repo)
    assert report.findings == []
    return [note.kind for note in report.notes]


# --- objects made by hand -------------------------------------------------------------------------------------------


def small(kind: Kind, raw: bytes) -> Sealed:
    """A tree or commit."""
    object_id = tree_id(raw) if kind == Kind.TREE else commit_id(raw)
    encoded = encode_blob(raw)
    return pack.seal(
        ObjectHeader(kind, encoded.transform, False, Element.INT8, len(raw), object_id, None), encoded.payload
    )


def put(repo: Repository, *sealed: Sealed) -> PackId:
    """Put objects into a pack, and that into the index."""
    data = packing.join(list(sealed))
    pack_id = packing.id_of(data)
    packing.place(repo.layout.packs, data, pack_id)
    repo.index.write(lambda writer: writer.add_pack(pack_id, repo.packs.table(pack_id).entries))
    return pack_id


def commit(repo: Repository, *trees: bytes, chunks: tuple[bytes, ...] = (), **fields: object) -> CommitId:
    """Commit trees as they are, whatever they hold: the first is the item's."""
    made = Commit({"model": tree_id(trees[0])}, branch="main", **fields)  # type: ignore[arg-type]
    return commit_raw(repo, made, *trees, chunks=chunks)


def commit_raw(repo: Repository, made: Commit, *trees: bytes, chunks: tuple[bytes, ...] = ()) -> CommitId:
    put(
        repo,
        *(packing.chunk(each) for each in chunks),
        *(small(Kind.TREE, each) for each in trees),
        small(Kind.COMMIT, made.encode()),
    )
    repo.index.write(lambda writer: writer.add_commit(row_of(made)))
    repo.refs.update(branch_name("main"), repo.refs.read(branch_name("main")), made.id, "save")
    return made.id


def tensor(*pieces: Piece, shape: tuple[int, ...] = (256,)) -> Entry:
    return TensorEntry(0, "float32", shape, pieces)


def piece(size: int, cuts: tuple[int, ...], *chunks: bytes, offset: int = 0) -> Piece:
    return Piece((offset,), (size,), cuts, tuple(chunk_id(each) for each in chunks))


def tree(**entries: Entry) -> bytes:
    return TreeNode(tuple(sorted(entries.items()))).encode()


# --- trees ----------------------------------------------------------------------------------------------------------


def test_a_tensor_as_it_should_be(repo: Repository) -> None:
    halves = piece(128, (512,), WORDS[:512]), piece(128, (512,), WORDS[512:], offset=128)
    commit(
        repo,
        tree(w=tensor(*halves)),
        chunks=(WORDS[:512],) if WORDS[:512] == WORDS[512:] else (WORDS[:512], WORDS[512:]),
    )
    assert fsck(repo, full=True).findings == []


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (tensor(piece(128, (512,), WORDS[:512])), "cover 512 of 1024 bytes"),
        (tensor(piece(128, (512,), WORDS[:512]), piece(128, (512,), WORDS[:512], offset=64)), "overlap"),
        (tensor(piece(256, (512,), WORDS[:512])), "do not fill"),
        (tensor(piece(256, (510, 514), WORDS[:510], WORDS[510:])), "part of an element"),
        (tensor(piece(256, (1024,), WORDS, offset=1)), "outside"),
    ],
    ids=["not covered", "overlap", "not filled", "half an element", "outside"],
)
def test_pieces_have_to_tile_their_tensor(repo: Repository, entry: Entry, why: str) -> None:
    made = commit(repo, tree(w=entry), chunks=(WORDS,))
    finding = only(fsck(repo), "content")
    assert why in finding.message
    assert finding.affects == (f"{made.hex()[:8]} model::(all its tensors)",)


def test_a_chunk_has_to_be_as_long_as_its_tree_says(repo: Repository) -> None:
    made = commit(repo, tree(w=tensor(piece(256, (1024,), WORDS[:512]))), chunks=(WORDS[:512],))
    finding = only(fsck(repo), "content")
    assert finding.object_id == chunk_id(WORDS[:512])
    assert finding.affects == (f"{made.hex()[:8]} model::w",)


def test_a_tree_in_another_encoding_than_the_canonical_one(repo: Repository) -> None:
    odd = b"\xa1\x78\x07entries\x80"  # the length of the key in two bytes
    assert canonical.encode({"entries": []}) == b"\xa1\x67entries\x80"
    commit(repo, odd)
    assert only(fsck(repo), "content").object_id == tree_id(odd)


def test_a_commit_in_another_encoding_than_the_canonical_one(repo: Repository) -> None:
    encoded = Commit({}, branch="main").encode()
    assert encoded.startswith(b"\xa7\x66branch")
    odd = b"\xa7\x78\x06branch" + encoded[8:]
    put(repo, small(Kind.COMMIT, odd))
    (repo.layout.root / "refs" / "branches").mkdir(parents=True)
    (repo.layout.root / "refs" / "branches" / "main").write_text(commit_id(odd).hex() + "\n")
    finding = only(fsck(repo), "content")
    assert "canonical" in finding.message
    assert finding.affects == (f"commit {commit_id(odd).hex()[:8]} (branch 'main')",)


@pytest.mark.parametrize("kind", [Kind.TREE, Kind.COMMIT])
def test_what_nothing_reaches_is_decoded_in_a_full_check(repo: Repository, kind: Kind) -> None:
    put(repo, small(kind, b"\xa1\x61x\x01"))
    assert fsck(repo).findings == []
    only(fsck(repo, full=True), "object")


@pytest.mark.parametrize("is_inline", [True, False])
def test_a_value_that_is_none(repo: Repository, is_inline: bool) -> None:
    odd = b"\x1b\x00\x00\x00\x00\x00\x00\x00\x05" if is_inline else bytes(20_000)
    entry = ValueEntry(0, odd) if is_inline else ValueEntry(0, None, (len(odd),), (chunk_id(odd),))
    made = commit(repo, tree(lr=entry), chunks=() if is_inline else (odd,))
    if not is_inline:
        assert fsck(repo).findings == []  # its chunks are whole; what they say is for a full check
    finding = only(fsck(repo, full=True), "content")
    assert "'lr'" in finding.message
    assert finding.affects == (f"{made.hex()[:8]} model::lr",)


@pytest.mark.parametrize(("first", "count"), [("w", 2), ("v", 1)])
def test_a_leaf_holds_the_names_that_its_parent_says(repo: Repository, first: str, count: int) -> None:
    leaf = tree(w=tensor(piece(256, (1024,), WORDS)))
    root = TreeNode(subtrees=(SubTree(first, count, tree_id(leaf)),)).encode()
    commit(repo, root, leaf, chunks=(WORDS,))
    assert only(fsck(repo), "content").object_id == tree_id(leaf)


# --- commits and holes ----------------------------------------------------------------------------------------------


def test_a_parent_that_is_not_here_unless_it_was_never_fetched(repo: Repository) -> None:
    lost = CommitId(ObjectId(b"p" * 32))
    made = commit(repo, tree(), parents=(lost,))
    finding = only(fsck(repo), "missing")
    assert finding.affects == (f"commit {lost.hex()[:8]} (parent of {made.hex()[:8]})",)
    repo.absences.add([Absence.of(lost, None, Why.SHALLOW, 0)])
    assert notes(repo) == []


@pytest.mark.parametrize("item", [None, "model"])
def test_a_hole_has_to_have_a_record(repo: Repository, item: str | None) -> None:
    entry = tensor(piece(256, (1024,), WORDS))
    made = commit(repo, tree(w=entry))
    assert only(fsck(repo), "missing").affects == (f"{made.hex()[:8]} model::w",)
    repo.absences.add([Absence.of(made, item, Why.PRUNED, 0)])
    assert fsck(repo).findings == []


def test_a_record_of_something_else_permits_no_hole(repo: Repository) -> None:
    made = commit(repo, tree(w=tensor(piece(256, (1024,), WORDS))))
    repo.absences.add([Absence.of(made, "optimizer", Why.PRUNED, 0)])
    only(fsck(repo), "missing")


def test_branches_whose_tip_is_damaged_and_what_is_left_of_them(repo: Repository) -> None:
    states = fill(repo)
    first, second, third = states
    repo.set_ref(branch_name("old"), None, first, "branch")
    repo.set_ref(branch_name("exp/lr3"), None, second, "branch")
    damage(repo, chunk_of(repo, second, "head/w"))
    report = fsck(repo)
    assert report.affected == {second, third}
    assert report.last_good == {"main": first, "exp/lr3": first}


def test_d14_who_only_reads_makes_no_lock_and_yet_keeps_gc_away(repo: Repository) -> None:
    root, files = repo.layout.root, Files()
    fill(repo)
    with Repository.open(root, read_only=True) as reader:
        assert fsck(reader).findings == []
        assert not (root / "gc.lock").exists()
        files.lock_exclusive(root / "gc.lock").close()

        def is_locked(done_bytes: int, total_bytes: int) -> None:
            with pytest.raises(Busy):
                files.lock_exclusive(root / "gc.lock", blocking=False)

        assert fsck(reader, progress=is_locked).findings == []


# --- the index ------------------------------------------------------------------------------------------------------


@pytest.fixture
def states(repo: Repository) -> States:
    return fill(repo)


def alter(repo: Repository, change: Callable[[Transaction], None]) -> None:
    repo.index.write(lambda writer: change(writer._transaction))


def number_of(repo: Repository, pack_id: PackId) -> int:
    return repo.index.packs().index(pack_id)


@pytest.mark.parametrize("field", ["offset", "stored_bytes", "raw_bytes", "kind", "base"])
def test_a_place_says_what_the_packs_table_says(repo: Repository, states: States, field: str) -> None:
    chunk = chunk_of(repo, next(iter(states)), "head/w")
    (place,) = repo.index.places(chunk)
    key = chunk + PACK_NUMBER.pack(number_of(repo, place.pack))
    other = {"kind": Kind.TREE, "base": ObjectId(b"b" * 32)}.get(
        field, getattr(place, field) if field == "base" else 64_000
    )
    wrong = place._replace(**{field: other})  # type: ignore[arg-type] # by the field's name
    alter(repo, lambda transaction: transaction.put(OBJECTS, key, encode_place(key, wrong, is_bad=False)))
    findings = fsck(repo).findings
    assert {finding.kind for finding in findings} == {"index"}
    assert any(finding.object_id == chunk and "misplaces" in finding.message for finding in findings)


def test_a_place_for_what_its_pack_does_not_hold(repo: Repository, states: States) -> None:
    (place,) = repo.index.places(chunk_of(repo, next(iter(states)), "head/w"))
    stranger = ObjectId(b"s" * 32)
    key = stranger + PACK_NUMBER.pack(number_of(repo, place.pack))
    alter(repo, lambda transaction: transaction.put(OBJECTS, key, encode_place(key, place, is_bad=False)))
    finding = only(fsck(repo), "index")
    assert (finding.object_id, "misplaces" in finding.message) == (stranger, True)


def test_a_live_object_that_the_index_does_not_know(repo: Repository, states: States) -> None:
    chunk = chunk_of(repo, next(iter(states)), "head/w")
    (place,) = repo.index.places(chunk)
    key = chunk + PACK_NUMBER.pack(number_of(repo, place.pack))
    alter(repo, lambda transaction: transaction.delete(OBJECTS, key))
    finding = only(fsck(repo), "index")
    assert (finding.object_id, "does not lead to" in finding.message) == (chunk, True)


def test_what_is_dead_and_was_swept_is_no_fault(repo: Repository, states: States) -> None:
    dead = packing.chunk(b"dead" * 1000)
    pack_id = put(repo, dead)
    assert notes(repo) == []
    key = dead.header.id + PACK_NUMBER.pack(number_of(repo, pack_id))
    alter(repo, lambda transaction: transaction.delete(OBJECTS, key))
    assert notes(repo) == []
    assert states


def test_a_depth_that_is_less_than_its_bases(repo: Repository, states: States) -> None:
    third = list(states)[2]
    chunk = chunk_of(repo, third, "encoder/w")
    (place,) = repo.index.places(chunk)
    assert place.depth == 2
    key = chunk + PACK_NUMBER.pack(number_of(repo, place.pack))
    shallow, deep = place._replace(depth=1), place._replace(depth=5)
    alter(repo, lambda transaction: transaction.put(OBJECTS, key, encode_place(key, shallow, is_bad=False)))
    finding = only(fsck(repo), "index")
    assert (finding.object_id, "understates the depth" in finding.message) == (chunk, True)
    alter(repo, lambda transaction: transaction.put(OBJECTS, key, encode_place(key, deep, is_bad=False)))
    assert notes(repo) == []  # a shallower base may have come later


def test_rows_of_commits(repo: Repository, states: States) -> None:
    third = list(states)[2]
    row = repo.index.commit(third)
    assert row is not None
    wrong = replace(row, step=99)
    alter(repo, lambda transaction: transaction.put(COMMITS, third, encode_row(wrong)))
    assert only(fsck(repo), "index").object_id == third


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("commits in two ways", lambda transaction, _: transaction.delete(SEQUENCE, SEQUENCE_KEY.pack(2))),
        ("commits in two ways", lambda transaction, _: transaction.delete(SEQUENCE, SEQUENCE_KEY.pack(0))),
        ("packs in two ways", lambda transaction, pack_id: transaction.delete(NUMBERS, pack_id)),
        ("another version", lambda transaction, _: transaction.delete(LAYOUTS, LAYOUT_KEY)),
        (
            "of deltas otherwise",
            lambda transaction, _: transaction.put(DELTAS, b"d" * 68, seal(b"d" * 68, b"")),
        ),
        ("are garbled", lambda transaction, _: transaction.put(PACKS, PACK_NUMBER.pack(9), b"garbage" * 6)),
        ("are in no table", lambda transaction, _: transaction.put(b"\x09", b"x", b"y")),
    ],
    ids=["a number", "the last", "a pack", "layout", "a delta", "garbage", "a table"],
)
def test_an_index_that_contradicts_itself(
    repo: Repository, states: States, what: str, change: Callable[[Transaction, PackId], None]
) -> None:
    assert states
    pack_id = repo.index.packs()[0]
    alter(repo, lambda transaction: change(transaction, pack_id))
    assert any(what in finding.message for finding in fsck(repo).findings)
    assert {finding.kind for finding in fsck(repo).findings} == {"index"}


def test_a_delta_that_the_index_has_forgotten_to_list(repo: Repository, states: States) -> None:
    third = list(states)[2]
    chunk = chunk_of(repo, third, "encoder/w")
    (place,) = repo.index.places(chunk)
    assert place.base is not None
    key = delta_key(place.base, chunk + PACK_NUMBER.pack(number_of(repo, place.pack)))
    alter(repo, lambda transaction: transaction.delete(DELTAS, key))
    assert "of deltas otherwise" in only(fsck(repo), "index").message


def test_an_index_that_is_behind_its_packs_is_no_damage(repo: Repository, states: States) -> None:
    """As one from a backup: what it lacks is found in the packs."""
    first, _, third = states
    (data,) = (repo.layout.root / "index").rglob("data.mdb")
    before = data.read_bytes()
    repo.refs.update(branch_name("main"), third, first, "reset")
    save(repo, {"more": noise("more", 300)})
    repo.refs.update(branch_name("main"), repo.refs.read(branch_name("main")), first, "reset")
    repo.close()
    data.write_bytes(before)
    with Repository.open(repo.layout.root, read_only=True) as opened:
        assert sorted(notes(opened)) == ["index", "pack"]


def test_a_store_without_an_index_is_no_damage(repo: Repository, states: States) -> None:
    repo.close()
    shutil.rmtree(repo.layout.root / "index")
    with Repository.open(repo.layout.root, read_only=True) as opened:
        assert notes(opened) == ["index"]
    assert states


def test_c6_an_index_that_is_cut_off_while_it_is_looked_into_ends_no_process(repo: Repository) -> None:
    """LMDB maps its file, and a page that is gone is a SIGBUS; so a check reads it by offset."""
    entries = [indexing.entry(f"{number:05}") for number in range(20_000)]
    repo.index.write(lambda writer: writer.add_pack(indexing.pack_id("p"), entries))
    root = repo.layout.root
    repo.close()
    (data,) = (root / "index").rglob("data.mdb")
    whole = data.read_bytes()
    for number in range(24):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os._exit(look_until_it_is_cut_off(root, writing))
        for _ in range(number % 4 + 1):
            os.read(reading, 1)  # it is about to look, and is looking by the time we are here
        os.truncate(data, 3 * 4096)
        status = os.waitpid(child, 0)[1]
        os.close(reading)
        os.close(writing)
        data.write_bytes(whole)
        assert status == 0


def look_until_it_is_cut_off(root: Path, ready: int) -> int:
    with Repository.open(root, read_only=True, thread_count=1) as opened:
        while True:
            os.write(ready, b"!")
            try:
                opened.index.check()
            except BrokenIndex:
                break
        return 0 if {finding.kind for finding in fsck(opened).findings} == {"index"} else 1


# --- other files ----------------------------------------------------------------------------------------------------


def test_damaged_files_are_named_and_the_rest_counts(repo: Repository, states: States) -> None:
    first = next(iter(states))
    repo.pin(first)
    root = repo.layout.root
    for name in ("pins", "absent"):
        with (root / name).open("ab") as file:
            file.write(b"garbage\n")
    log = root / "logs" / "refs" / "branches" / "main"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([lines[0], b"garbage\n", *lines[1:]]))
    report = fsck(repo)
    assert sorted(finding.kind for finding in report.findings) == ["absent", "pins", "ref"]
    assert str(log) in next(finding.message for finding in report.findings if finding.kind == "ref")
    assert report.commit_count == 3


def test_a_commit_that_only_a_line_of_a_damaged_reflog_names_is_checked(repo: Repository, states: States) -> None:
    first, _, third = states
    repo.refs.update(branch_name("main"), third, first, "reset")
    log = repo.layout.root / "logs" / "refs" / "branches" / "main"
    log.write_bytes(b"garbage\n" + log.read_bytes())
    (repo.layout.root / "logs" / "HEAD").unlink()
    damage(repo, chunk_of(repo, third, "encoder/w"))
    report = fsck(repo)
    assert sorted(finding.kind for finding in report.findings) == ["object", "ref"]
    assert report.affected == {third}


def test_a_damaged_lease_of_a_living_writer(repo: Repository, states: States) -> None:
    with acquire_lease(repo.layout.root, Files()) as lease:
        (repo.layout.root / "writers" / lease.name).write_bytes(b"garbage\n")
        only(fsck(repo), "lease")
    assert states


# --- what is only noted ---------------------------------------------------------------------------------------------


def test_nothing_is_noted_of_a_store_in_order(repo: Repository, states: States) -> None:
    assert notes(repo) == []
    assert states


def dead_lease(root: Path) -> None:
    (root / "writers" / ("a" * 32)).write_bytes(b"")


def temporary_pack(root: Path) -> None:
    (root / "packs" / f"tmp-{'b' * 32}-1").write_bytes(b"half")


def temporary_file(root: Path) -> None:
    (root / "refs" / "branches" / ".tmp-0123").write_bytes(b"half")


def quarantine(root: Path) -> None:
    (root / "quarantine").mkdir()
    (root / "quarantine" / "x.pack").write_bytes(b"broken")


def stray(root: Path) -> None:
    (root / "refs" / "branches" / "a~b").write_bytes(b"what is this")


def torn_line(root: Path) -> None:
    with (root / "logs" / "HEAD").open("ab") as log:
        log.write(b"0123")


def unborn_head(root: Path) -> None:
    (root / "HEAD").write_text("ref: branches/mian\n")


def absence_of_a_stranger(root: Path) -> None:
    (root / "absent").write_text(f"{'ab' * 32} * pruned 0\n")


def unknown_pack(root: Path) -> None:
    data = packing.join([packing.chunk(b"c" * 400)])
    pack_path(root / "packs", packing.id_of(data)).write_bytes(data)


@pytest.mark.parametrize(
    ("leave", "kind"),
    [
        (dead_lease, "lease"),
        (temporary_pack, "pack"),
        (temporary_file, "temporary"),
        (quarantine, "quarantine"),
        (stray, "ref"),
        (torn_line, "ref"),
        (unborn_head, "ref"),
        (absence_of_a_stranger, "absent"),
        (unknown_pack, "pack"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_what_is_left_behind_is_noted(
    repo: Repository, states: States, leave: Callable[[Path], None], kind: str
) -> None:
    assert states
    leave(repo.layout.root)
    assert notes(repo) == [kind]


def test_what_living_writers_make_is_not_noted(repo: Repository, states: States) -> None:
    assert states
    with acquire_lease(repo.layout.root, Files()) as lease:
        (repo.layout.packs / f"tmp-{lease.name}-1").write_bytes(b"half")
        data = packing.join([packing.chunk(b"c" * 400)])
        lease.add_pack(packing.id_of(data))
        packing.place(repo.layout.packs, data, packing.id_of(data))
        assert notes(repo) == []


@pytest.mark.parametrize("time_ns", [1, 2**62])
def test_dates_that_cannot_be(repo: Repository, states: States, time_ns: int) -> None:
    commit(repo, tree(), parents=(list(states)[2],), time_ns=time_ns)
    assert notes(repo) == ["commit"]


def test_a_pack_in_which_nothing_can_be_found(repo: Repository, states: States) -> None:
    path = pack_file(repo, repo.index.places(next(iter(states)))[0].pack)
    path.write_bytes(b"\xa5" * path.stat().st_size)
    kinds = {finding.kind for finding in fsck(repo).findings}
    assert kinds == {"pack", "missing"}
