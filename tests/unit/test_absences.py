"""Absence records: what may be missing, whoever asks and however it was written."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.disk.files import Files
from store.errors import Pruned
from store.format.objects import Commit
from store.ids import CommitId, ObjectId, TreeId
from store.upkeep.absences import WHOLE, Absence, Absences, Why, expected_items

FIRST, SECOND, THIRD = (CommitId(ObjectId(bytes([number]) * 32)) for number in (1, 2, 3))
ITEMS = ["model", "optimizer", "", "*", "%2A", "a b", "ä\n", "a/b::c"]


class Reads(Files):
    """Counts bytes that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.opened_count = 0

    def open_read(self, path: Path) -> object:  # type: ignore[override] # passed on as it is
        self.opened_count += 1
        return super().open_read(path)


def absences(root: Path) -> Absences:
    return Absences(root, Files())


def pruned(commit: CommitId, item: str | None = None) -> Absence:
    return Absence.of(commit, item, Why.PRUNED, 7)


def test_of_a_store_without_records_nothing_is_absent(tmp_path: Path) -> None:
    assert absences(tmp_path).of(FIRST) == frozenset()
    assert absences(tmp_path).all() == {}
    assert list(tmp_path.iterdir()) == []  # asking makes nothing


def test_records_are_seen_by_everybody_and_after_reopening(tmp_path: Path) -> None:
    ours, theirs = absences(tmp_path), absences(tmp_path)
    assert theirs.of(FIRST) == frozenset()
    ours.add([pruned(FIRST), pruned(SECOND, "optimizer")])
    for each in (ours, theirs, absences(tmp_path)):
        assert each.of(FIRST) == {WHOLE}
        assert each.of(SECOND) == {"optimizer"}
        assert each.of(THIRD) == frozenset()
        assert each.lacks(FIRST, "anything")
        assert each.lacks(SECOND, "optimizer") and not each.lacks(SECOND, "model")


@pytest.mark.parametrize("item", ITEMS)
def test_items_may_have_any_name(tmp_path: Path, item: str) -> None:
    absences(tmp_path).add([pruned(FIRST, item)])
    found = absences(tmp_path)
    assert [one for one in ITEMS if found.lacks(FIRST, one)] == [item]
    commit = Commit({one: TreeId(ObjectId(bytes(32))) for one in ITEMS})
    assert set(expected_items(commit, found, FIRST)) == set(ITEMS) - {item}
    assert WHOLE not in found.of(FIRST)  # that would say that nothing at all can be expected


def test_a_whole_commit_needs_no_record_for_an_item(tmp_path: Path) -> None:
    found = absences(tmp_path)
    found.add([pruned(FIRST)])
    size_bytes = (tmp_path / "absent").stat().st_size
    found.add([pruned(FIRST, "model"), pruned(FIRST)])
    assert (tmp_path / "absent").stat().st_size == size_bytes
    assert expected_items(Commit({"model": TreeId(ObjectId(bytes(32)))}), found, FIRST) == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from([FIRST, SECOND]),
            st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
            st.sampled_from(Why),
            st.integers(0, 2**63),
            st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        ),
        max_size=8,
    )
)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, said: list[tuple[object, ...]]) -> None:
    root = tmp_path_factory.mktemp("store")
    records = [Absence.of(*one) for one in said]  # type: ignore[arg-type] # as they were drawn
    absences(root).add(records)
    assert {one for found in absences(root).all().values() for one in found} == set(records)


@pytest.mark.parametrize("length", range(1, 75, 6))
def test_a_torn_last_line_permits_nothing_and_the_next_writer_cuts_it_off(tmp_path: Path, length: int) -> None:
    writer = absences(tmp_path)
    writer.add([pruned(FIRST)])
    whole = (tmp_path / "absent").read_bytes()
    line = whole.replace(FIRST.hex().encode(), SECOND.hex().encode())
    with (tmp_path / "absent").open("ab") as file:
        file.write(line[:length])
    assert absences(tmp_path).of(SECOND) == writer.of(SECOND) == frozenset()
    assert writer.of(FIRST) == {WHOLE}
    writer.add([pruned(THIRD)])
    assert absences(tmp_path).all().keys() == {FIRST, THIRD}
    assert absences(tmp_path).problems() == ()


@pytest.mark.parametrize("mend", [b"", b"\n"])
def test_a_line_that_somebody_finishes_is_read(tmp_path: Path, mend: bytes) -> None:
    """Its length and times may be those of the part that was seen before."""
    absences(tmp_path).add([pruned(FIRST), pruned(SECOND)])
    whole = (tmp_path / "absent").read_bytes()
    (tmp_path / "absent").write_bytes(whole[:-1])
    reader = absences(tmp_path)
    assert reader.of(SECOND) == frozenset()
    with (tmp_path / "absent").open("r+b") as file:
        file.seek(len(whole) - 1)
        file.write(mend)
    assert reader.of(SECOND) == ({WHOLE} if mend else frozenset())


def test_a_damaged_line_permits_nothing_and_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    absences(tmp_path).add([pruned(FIRST), pruned(SECOND), pruned(THIRD)])
    data = bytearray((tmp_path / "absent").read_bytes())
    data[len(data) // 2] ^= 0x40
    (tmp_path / "absent").write_bytes(data)
    found = absences(tmp_path)
    assert found.all().keys() == {FIRST, THIRD}
    assert len(found.problems()) == 1
    assert "damaged line" in caplog.text
    found.withdraw(THIRD)
    assert absences(tmp_path).all().keys() == {FIRST}
    assert len(absences(tmp_path).problems()) == 1


def test_records_are_withdrawn(tmp_path: Path) -> None:
    ours, theirs = absences(tmp_path), absences(tmp_path)
    ours.add([pruned(FIRST), pruned(SECOND, "model"), pruned(SECOND, "optimizer")])
    assert theirs.of(FIRST) == {WHOLE}
    ours.withdraw(FIRST)
    ours.withdraw(SECOND, ["model"])
    for each in (ours, theirs):
        assert each.of(FIRST) == frozenset()
        assert each.of(SECOND) == {"optimizer"}
    ours.withdraw(THIRD)
    ours.add([pruned(FIRST)])
    assert theirs.of(FIRST) == {WHOLE}


def test_records_are_replaced_all_at_once_and_damaged_lines_are_kept(tmp_path: Path) -> None:
    ours, other = Absences(tmp_path, Files()), Absences(tmp_path, Files())
    ours.add([Absence.of(each, None, Why.SHALLOW, 5, "origin") for each in (FIRST, SECOND, THIRD)])
    path = tmp_path / "absent"
    path.write_bytes(path.read_bytes() + b"damaged\ntorn")
    item = Absence.of(SECOND, "model", Why.PARTIAL, 6, "origin")
    ours.replace({FIRST: [], SECOND: [item]})
    for seen in (ours, other):
        assert seen.records(FIRST) == ()
        assert seen.records(SECOND) == (item,)
        assert seen.reason(THIRD) is not None
        assert len(seen.problems()) == 1
    assert b"torn" not in path.read_bytes()


def test_what_was_withdrawn_meanwhile_is_noticed_by_who_had_read_beyond_it(tmp_path: Path) -> None:
    """Lines are of one length, and the file may get its old inode and length back."""
    ours, theirs = absences(tmp_path), absences(tmp_path)
    ours.add([pruned(FIRST), pruned(SECOND)])
    assert theirs.all().keys() == {FIRST, SECOND}
    content = (tmp_path / "absent").read_bytes()
    ours.withdraw(FIRST)
    ours.add([pruned(THIRD)])
    rewritten = (tmp_path / "absent").read_bytes()
    assert len(rewritten) == len(content)
    assert theirs.all().keys() == {SECOND, THIRD}


def test_only_what_was_added_is_read(tmp_path: Path) -> None:
    files = Reads()
    reader, writer = Absences(tmp_path, files), absences(tmp_path)
    writer.add(
        [Absence.of(CommitId(ObjectId(bytes([n % 256, n // 256]) * 16)), None, Why.PRUNED, n) for n in range(500)]
    )
    read: list[int] = []
    pread: Callable[..., bytes] = files._disk.pread
    files._disk.pread = lambda fd, count, at: read.append(count) or pread(fd, count, at)  # type: ignore[method-assign, func-returns-value]
    assert len(reader.all()) == 500
    first_bytes = sum(read)
    for _ in range(100):
        assert reader.lacks(CommitId(ObjectId(bytes([1, 1]) * 16)), "model")
    assert files.opened_count == 1
    read.clear()
    writer.add([pruned(THIRD)])
    assert reader.lacks(THIRD, "model")
    assert sum(read) < first_bytes / 100


def test_who_keeps_records_away_is_waited_for(tmp_path: Path) -> None:
    found = absences(tmp_path)
    with found.kept(), found.kept(), pytest.raises(Exception, match="locked by another"):
        Files().lock_exclusive(tmp_path / "absent.lock", blocking=False)
    with found.adding() as add, pytest.raises(Exception, match="locked by another"):
        add([pruned(FIRST)])
        Files().lock_shared(tmp_path / "absent.lock", blocking=False)
    assert absences(tmp_path).of(FIRST) == {WHOLE}


def test_settling_makes_durable_what_a_dead_writer_left(tmp_path: Path) -> None:
    found = absences(tmp_path)
    found.settle()
    assert not (tmp_path / "absent").exists()
    found.add([pruned(FIRST)])
    with (tmp_path / "absent").open("ab") as file:
        file.write(b"torn")
    synced: list[int] = []
    named: list[Path] = []
    files = Files()
    files._disk.fsync = synced.append  # type: ignore[method-assign]
    files._disk.sync_directory = named.append  # type: ignore[method-assign]
    Absences(tmp_path, files).settle()
    assert synced
    assert named == [tmp_path]  # whoever made the file may have died before that
    assert (tmp_path / "absent").read_bytes().endswith(b"\n")


@pytest.mark.parametrize(("why", "words"), [(Why.PRUNED, "was pruned"), (Why.SHALLOW, "beyond what was fetched")])
def test_the_error_says_what_is_gone_why_and_what_to_do(tmp_path: Path, why: Why, words: str) -> None:
    found = absences(tmp_path)
    found.require(FIRST, "model")
    found.add([Absence.of(FIRST, None, why, 7, "s3://bucket/a b"), Absence.of(SECOND, "optimizer", why, 7)])
    with pytest.raises(Pruned, match=words) as raised:
        found.require(FIRST, "model")
    assert "moonclip log" in str(raised.value) and "s3://bucket/a b" in str(raised.value)
    assert raised.value.kind == "pruned"
    assert raised.value.details["commit"] == FIRST.hex()
    with pytest.raises(Pruned):
        found.require(FIRST)
    with pytest.raises(Pruned, match="'optimizer'"):
        found.require(SECOND, "optimizer")
    found.require(SECOND)
    found.require(SECOND, "model")
