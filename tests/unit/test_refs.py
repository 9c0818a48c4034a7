import errno
from functools import partial
from pathlib import Path

import pytest

from store.disk.calls import Disk
from store.disk.files import Files
from store.errors import Conflict, Corrupt, Incompatible
from store.ids import CommitId, ObjectId
from store.naming.refnames import branch_name
from store.naming.refs import NotDurable, RefStore

A, B, C = (CommitId(ObjectId(bytes([value]) * 32)) for value in b"abc")


@pytest.fixture
def refs(tmp_path: Path) -> RefStore:
    store = RefStore(tmp_path, Files())
    store.set_head("main")
    return store


def moves(refs: RefStore, name: str) -> list[tuple[CommitId | None, CommitId | None, str, str]]:
    return [(line.old, line.new, line.action, line.message) for line in refs.reflog(name)]


def test_made_moved_deleted_and_what_the_logs_say_of_it(refs: RefStore, tmp_path: Path) -> None:
    refs.update("branches/main", None, A, "commit", "first")
    assert (tmp_path / "refs/branches/main").read_text() == "61" * 32 + "\n"
    refs.update("branches/main", A, B, "reset", "é\nline")
    refs.update("branches/main", B, None, "branch", "deleted")
    assert refs.read("branches/main") is None
    expected = [(B, None, "branch", "deleted"), (A, B, "reset", "é\nline"), (None, A, "commit", "first")]
    assert moves(refs, "branches/main") == moves(refs, "HEAD") == expected


@pytest.mark.parametrize(("expected", "problem"), [(None, "exists already"), (B, "moved from 62626262 to 61616161")])
def test_swap_from_another_value_is_refused(refs: RefStore, expected: CommitId | None, problem: str) -> None:
    refs.update("branches/main", None, A, "commit")
    with pytest.raises(Conflict, match=f"branch 'main' {problem}") as conflict:
        refs.update("branches/main", expected, C, "commit")
    assert conflict.value.details["got"] == A.hex()
    assert refs.read("branches/main") == A
    assert len(refs.reflog("branches/main")) == 1


def test_swap_of_a_ref_that_is_gone_is_refused(refs: RefStore) -> None:
    with pytest.raises(Conflict, match="tag 'best' is gone"):
        refs.update("tags/best", A, B, "tag")


def test_swap_to_the_same_leaves_no_trace(refs: RefStore) -> None:
    refs.update("branches/main", None, A, "commit")
    refs.update("branches/main", A, A, "commit")
    assert len(refs.reflog("branches/main")) == len(refs.reflog("HEAD")) == 1


def test_listing_is_by_prefix_and_sorted(refs: RefStore, tmp_path: Path) -> None:
    for name in ("tags/best", "branches/exp/lr3", "branches/main", "branches/exp-2", "remotes/origin/main"):
        refs.update(name, None, A, "branch")
    (tmp_path / "refs/branches/.left-by-a-dead-writer").touch()
    assert list(refs.list()) == sorted(refs.names())
    assert list(refs.list("branches/")) == ["branches/exp-2", "branches/exp/lr3", "branches/main"]
    assert list(refs.list("branches/exp")) == ["branches/exp-2", "branches/exp/lr3"]
    assert list(refs.list("branches/exp/")) == ["branches/exp/lr3"]
    assert refs.list("remotes/") == {"remotes/origin/main": A}
    assert refs.list("branches/nowhere/") == {}


def test_no_ref_is_a_directory_of_another(refs: RefStore) -> None:
    refs.update("branches/exp/lr3", None, A, "branch")
    for name in ("branches/exp", "branches/exp/lr3/deep", "branches/exp/lr3/deeper/still"):
        with pytest.raises(Conflict, match="cannot be while there is a branch 'exp/lr3'"):
            refs.update(name, None, A, "branch")
        assert refs.read(name) is None
    refs.update("tags/exp", None, A, "tag")


def test_a_deleted_ref_makes_room_and_leaves_its_log(refs: RefStore) -> None:
    refs.update("branches/exp/a/b", None, A, "branch")
    refs.update("branches/exp/a/b", A, None, "branch")
    refs.update("branches/exp", None, B, "branch")
    refs.update("branches/exp", B, None, "branch")
    refs.update("branches/exp/a", None, C, "branch")
    assert refs.list("branches/exp") == {"branches/exp/a": C}
    assert [line.new for line in refs.reflog("branches/exp/a/b")] == [None, A]
    assert [line.new for line in refs.reflog("branches/exp")] == [None, B]
    assert refs.roots() == {A, B, C}


def test_what_a_dead_writer_left_is_not_in_the_way(refs: RefStore, tmp_path: Path) -> None:
    (tmp_path / "refs/branches/exp/empty").mkdir(parents=True)
    (tmp_path / "refs/branches/exp/.half-written").touch()
    refs.update("branches/exp", None, A, "branch")
    assert refs.read("branches/exp") == A


DAMAGED_REFS = ["", "61" * 32, "61" * 31 + "\n", "61" * 32 + "\n\n", "AB" * 32 + "\n", "zz" * 32 + "\n"]
DAMAGED_HEADS = [b"", b"ref: branches/a b\n", b"ref: tags/best\n", b"ref: branches/main", b"\xff\n"]


@pytest.mark.parametrize("content", DAMAGED_REFS)
def test_a_damaged_ref_is_named_with_the_way_to_mend_it(refs: RefStore, tmp_path: Path, content: str) -> None:
    refs.update("branches/main", None, A, "commit")
    refs.update("branches/main", A, B, "commit")
    path = tmp_path / "refs/branches/main"
    path.write_text(content)
    read, update = partial(refs.read, "branches/main"), partial(refs.update, "branches/main", B, C, "commit")
    for attempt in (refs.list, read, update):
        with pytest.raises(
            Corrupt, match=f"branch 'main'.*its reflog last names {B.hex()}; run .* or write .* into {path}"
        ):
            attempt()
    assert [line.new for line in refs.reflog("branches/main")] == [B, A]
    path.write_text(f"{B.hex()}\n")
    refs.update("branches/main", B, C, "commit")


@pytest.mark.parametrize("content", DAMAGED_HEADS)
def test_a_damaged_head_is_named_and_stops_no_save(refs: RefStore, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "HEAD").write_bytes(content)
    with pytest.raises(Corrupt, match=r"HEAD is missing or damaged.*ref: branches/<name>"):
        refs.head()
    refs.update("branches/main", None, A, "commit")
    refs.set_head("main")
    assert refs.head() == "main"


def test_mending_head_keeps_its_log(refs: RefStore, tmp_path: Path) -> None:
    refs.update("branches/main", None, A, "commit")
    (tmp_path / "HEAD").unlink()
    refs.set_head("main")
    assert moves(refs, "HEAD") == [(None, A, "commit", "")]


def test_head_log_has_switches_and_moves_of_the_current_branch(refs: RefStore) -> None:
    refs.update("branches/main", None, A, "commit", "on main")
    refs.update("branches/lr3", None, B, "branch", "made")
    refs.set_head("lr3", "from main to lr3")
    refs.update("branches/lr3", B, C, "commit", "on lr3")
    refs.set_head("lr3", "nothing changes")
    assert refs.head() == "lr3"
    assert moves(refs, "HEAD") == [
        (B, C, "commit", "on lr3"),
        (A, B, "switch", "from main to lr3"),
        (None, A, "commit", "on main"),
    ]


def test_head_may_name_a_branch_to_come(refs: RefStore) -> None:
    refs.set_head("new")
    assert refs.reflog("HEAD") == []
    with pytest.raises(Incompatible):
        refs.set_head("tags/best")


@pytest.mark.parametrize("name", ["main", "HEAD", "branches/../../x", "branches/a b", "logs/x", "/etc/passwd"])
def test_only_full_legal_names_reach_the_disk(refs: RefStore, name: str) -> None:
    with pytest.raises(Incompatible):
        refs.read(name)
    with pytest.raises(Incompatible):
        refs.update(name, None, A, "branch")


def test_a_bad_action_changes_nothing(refs: RefStore) -> None:
    with pytest.raises(Incompatible):
        refs.update("branches/main", None, A, "no good")
    assert refs.read("branches/main") is None


def test_a_torn_log_line_is_ignored_and_mended_by_the_next_writer(refs: RefStore, tmp_path: Path) -> None:
    refs.update("branches/main", None, A, "commit", "one")
    log = tmp_path / "logs/refs/branches/main"
    whole = log.read_bytes()
    for torn in (whole[:-1], whole[:50], b"x" * 100_000):
        log.write_bytes(whole + torn)
        assert len(refs.reflog("branches/main")) == 1
    refs.update("branches/main", A, B, "commit", "two")
    assert [line.message for line in refs.reflog("branches/main")] == ["two", "one"]
    assert log.read_bytes().startswith(whole)


def test_a_long_log_is_mended_by_its_end_only(refs: RefStore, tmp_path: Path) -> None:
    refs.update("branches/main", None, A, "commit", "x" * 100_000)
    refs.update("branches/main", A, B, "commit", "y" * 100_000)
    log = tmp_path / "logs/refs/branches/main"
    with log.open("ab") as tail:
        tail.write(b"torn")
    refs.update("branches/main", B, C, "commit", "short")
    assert [line.new for line in refs.reflog("branches/main")] == [C, B, A]


class Unsynced(Disk):
    """A directory fails to be made durable, as often as told."""

    failing, failure_count = "exp", 0

    def sync_directory(self, path: Path) -> None:
        if path.name == self.failing and self.failure_count:
            self.failure_count -= 1
            raise OSError(errno.EIO, "not synced", str(path))
        super().sync_directory(path)


@pytest.mark.parametrize("new", [B, None])
def test_a_move_that_was_made_is_made_durable_at_the_second_try(tmp_path: Path, new: CommitId | None) -> None:
    disk, name = Unsynced(), "branches/exp/lr3"
    refs = RefStore(tmp_path, Files(disk))
    refs.update(name, None, A, "commit")
    disk.failure_count = 1
    refs.update(name, A, new, "commit")
    assert (refs.read(name), disk.failure_count) == (new, 0)


@pytest.mark.parametrize(("new", "says"), [(B, f"holds {B.hex()}"), (None, "is gone")])
def test_a_move_that_the_disk_does_not_confirm_says_what_is_held(
    tmp_path: Path, new: CommitId | None, says: str
) -> None:
    disk, name = Unsynced(), "branches/main"
    refs = RefStore(tmp_path, Files(disk))
    refs.update(name, None, A, "commit")
    disk.failing = "branches"
    disk.failure_count = 2
    with pytest.raises(NotDurable, match=f"branch 'main' {says}.*not synced") as caught:
        refs.update(name, A, new, "commit")
    assert refs.read(name) == new
    assert caught.value.details == {"ref": name, "commit": new and new.hex()}


def test_roots_know_what_only_logs_remember(refs: RefStore) -> None:
    refs.update(branch_name("main"), None, A, "commit")
    refs.update(branch_name("main"), A, B, "reset")
    refs.update("tags/best", None, C, "tag")
    assert refs.roots() == {A, B, C}


def test_a_ref_whose_file_is_lost_is_damage_and_not_a_new_beginning(tmp_path: Path) -> None:
    files, root = Files(), tmp_path
    refs = RefStore(root, files)
    one, two = (CommitId(ObjectId(bytes([number]) * 32)) for number in (1, 2))
    refs.update("branches/main", None, one, "save")
    (root / "refs" / "branches" / "main").unlink()
    assert refs.read("branches/main") is None  # perhaps it never came to be
    refs.update("branches/main", None, one, "save")
    refs.update("branches/main", one, two, "save")
    refs.update("branches/gone", None, one, "branch")
    refs.update("branches/gone", one, None, "delete")
    assert refs.read("branches/gone") is None
    (root / "refs" / "branches" / "main").unlink()
    with pytest.raises(Corrupt, match=two.hex()):
        refs.read("branches/main")
    assert set(refs.logged_names()) == {"branches/main", "branches/gone"}
