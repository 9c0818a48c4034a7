"""Push: what a remote has afterwards, which refs move, and what it takes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.errors import Conflict, NotFound, Pruned
from store.ids import CommitId
from store.naming.refnames import branch_name, remote_name, tag_name
from store.remotes.names import RefKey
from store.remotes.pushing.push import Pushed, push
from store.remotes.remote import Remote, open_remote
from store.repository import Repository
from store.upkeep.absences import Absence, Why
from tests.remotes.memory_storage import MemoryStorage
from tests.remotes.remote_state import read_remote, require_whole
from tests.remotes.watched_storage import WatchedStorage
from tests.stores import commit, history, item, noise, state, tensor

MAIN = branch_name("main")
TRACKED = remote_name("origin", "main")


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store") as repo:
        yield repo


@pytest.fixture
def storage() -> WatchedStorage:
    return WatchedStorage(MemoryStorage())


def opened(repo: Repository, storage: WatchedStorage) -> Remote:
    return open_remote(repo, "origin", storage)


def branch_key(branch: str) -> str:
    return RefKey(None, branch_name(branch)).key


def whys(pushed: Pushed) -> dict[str, str]:
    return {change.name: change.why for change in pushed.changes}


def clone_of(repo: Repository, path: Path, *tips: CommitId) -> Repository:
    """Another store that has the same packs, as if it had fetched them, and an id of its own."""
    other = Repository.init(path)
    other.close()
    for pack in repo.layout.packs.glob("*.pack"):
        (path / "packs" / pack.name).write_bytes(pack.read_bytes())
    for generation in (path / "index").iterdir():
        for file in generation.iterdir():
            file.unlink()
    other = Repository.open(path)
    for tip in tips:
        other.set_ref(MAIN, other.refs.read(MAIN), tip, "fetch")
        other.set_ref(TRACKED, other.refs.read(TRACKED), tip, "fetch")
    return other


def test_a_branch_goes_over_with_all_that_it_needs(repo: Repository, storage: WatchedStorage) -> None:
    commits = [commit(repo, step=step) for step in (0, 100, 200)]
    pushed = push(repo, opened(repo, storage))
    assert whys(pushed) == {"branches/main": "new"}
    assert pushed.commit_count == 3
    state = require_whole(storage)
    assert state.refs == {"refs/branches/main": commits[-1]}
    assert set(commits) <= state.objects.keys()
    assert len(state.objects) == pushed.object_count
    assert set(state.copy_count.values()) == {1}
    assert repo.refs.read(TRACKED) == commits[-1]
    assert repo.refs.reflog(TRACKED)[0].action == "push"


def test_what_the_remote_has_is_not_sent_again(repo: Repository, storage: WatchedStorage) -> None:
    commit(repo, step=0)
    push(repo, opened(repo, storage))
    before = read_remote(storage).objects.keys()
    tip = commit(repo, step=100)
    pushed = push(repo, opened(repo, storage))
    assert whys(pushed) == {"branches/main": "fast-forward"}
    state = require_whole(storage)
    assert state.refs == {"refs/branches/main": tip}
    assert len(state.objects.keys() - before) == pushed.object_count
    assert set(state.copy_count.values()) == {1}


def test_f_nothing_new_takes_few_requests(repo: Repository, storage: WatchedStorage) -> None:
    commit(repo, step=0)
    push(repo, opened(repo, storage))
    storage.forget()
    pushed = push(repo, opened(repo, storage))
    assert whys(pushed) == {"branches/main": "current"}
    assert storage.requests == [("get", "format"), ("list", "refs/")]
    assert storage.sent_bytes == 0


def test_one_step_takes_few_requests_and_hardly_more_bytes_than_it_added(
    repo: Repository, storage: WatchedStorage
) -> None:
    weights = {f"w{number}": noise(number, 1 << 19) for number in range(8)}
    items = [item("model", {name: tensor(data) for name, data in weights.items()})]
    commit(repo, items=items, step=0)
    push(repo, opened(repo, storage))
    weights["w3"] = noise("new", 1 << 19)
    commit(repo, items=[item("model", {name: tensor(data) for name, data in weights.items()})], step=1)
    storage.forget()
    pushed = push(repo, opened(repo, storage))
    assert len(storage.requests) <= 12
    assert storage.sent_bytes <= 1.05 * pushed.stored_bytes + 4096
    assert pushed.stored_bytes < 1.05 * (1 << 19)
    assert not [request for request in storage.requests if request == ("list", "packs/")]
    require_whole(storage)


def test_tags_and_every_branch_go_over(tmp_path: Path, storage: WatchedStorage) -> None:
    made = history(tmp_path / "history")
    with Repository.open(made.root) as repo:
        pushed = push(repo, opened(repo, storage), every=True, tags=["best"])
    assert whys(pushed) == {"branches/exp/lr3": "new", "branches/main": "new", "tags/best": "new"}
    assert require_whole(storage).refs == {
        "refs/branches/exp~lr3": made.branched[-1],
        "refs/branches/main": made.main[-1],
        "refs/tags/best": made.branched[0],
    }


def test_what_is_not_here_cannot_be_pushed(repo: Repository, storage: WatchedStorage) -> None:
    commit(repo, step=0)
    with pytest.raises(NotFound, match="tag 'best'"):
        push(repo, opened(repo, storage), tags=["best"])
    with pytest.raises(NotFound, match="branch 'other'"):
        push(repo, opened(repo, storage), ["other"])
    assert storage.requests == []


def test_a_dry_run_changes_nothing_and_tells_the_same(repo: Repository, storage: WatchedStorage) -> None:
    commit(repo, step=0)
    planned = push(repo, opened(repo, storage), dry_run=True)
    assert not list(storage.storage.list(""))
    assert repo.refs.read(TRACKED) is None
    pushed = push(repo, opened(repo, storage))
    assert planned.changes == pushed.changes
    told = [(each.commit_count, each.object_count, each.stored_bytes, each.pack_count) for each in (planned, pushed)]
    assert told[0] == told[1]
    assert 0 < planned.sent_bytes <= pushed.sent_bytes


def test_a_dry_run_of_nothing_moves_nothing_here_either(repo: Repository, storage: WatchedStorage) -> None:
    tip = commit(repo, step=0)
    push(repo, opened(repo, storage))
    repo.refs.update(TRACKED, tip, None, "delete")
    assert whys(push(repo, opened(repo, storage), dry_run=True)) == {"branches/main": "current"}
    assert repo.refs.read(TRACKED) is None
    push(repo, opened(repo, storage))
    assert repo.refs.read(TRACKED) == tip


def test_progress_ends_at_what_there_is_to_send(repo: Repository, storage: WatchedStorage) -> None:
    commit(repo, step=0)
    told: list[tuple[str, int, int]] = []
    push(repo, opened(repo, storage), progress=lambda what, done, total: told.append((what, done, total)))
    assert told
    assert {what for what, _, _ in told} == {"uploading"}
    assert told[-1][1] == told[-1][2]


# --- which refs move ------------------------------------------------------------------------------------------------


def test_what_somebody_else_pushed_is_not_overwritten(
    repo: Repository, storage: WatchedStorage, tmp_path: Path
) -> None:
    base = commit(repo, step=0)
    push(repo, opened(repo, storage))
    with clone_of(repo, tmp_path / "other", base) as other:
        theirs = commit(other, step=7)
        push(other, opened(other, storage)).require_all()
    ours = commit(repo, step=8)
    for force in (False, True):  # where it was when last seen, it is not any more
        pushed = push(repo, opened(repo, storage), force_with_lease=force)
        assert whys(pushed) == {"branches/main": "rejected"}
        with pytest.raises(Conflict, match="moonclip fetch origin"):
            pushed.require_all()
        assert require_whole(storage).refs == {"refs/branches/main": theirs}
    repo.refs.update(TRACKED, base, theirs, "fetch")
    pushed = push(repo, opened(repo, storage), force_with_lease=True)
    assert whys(pushed) == {"branches/main": "forced"}
    assert require_whole(storage).refs == {"refs/branches/main": ours}


def test_a_branch_that_was_reset_needs_force(repo: Repository, storage: WatchedStorage) -> None:
    first, second = commit(repo, step=0), commit(repo, step=1)
    push(repo, opened(repo, storage))
    repo.set_ref(MAIN, second, first, "reset")
    assert whys(push(repo, opened(repo, storage))) == {"branches/main": "rejected"}
    assert whys(push(repo, opened(repo, storage), force_with_lease=True)) == {"branches/main": "forced"}
    assert require_whole(storage).refs == {"refs/branches/main": first}
    assert repo.refs.read(TRACKED) == first


def test_tags_do_not_move_without_force(repo: Repository, storage: WatchedStorage) -> None:
    first, second = commit(repo, step=0), commit(repo, step=1)
    repo.set_ref(tag_name("best"), None, first, "tag")
    push(repo, opened(repo, storage), tags=["best"])
    repo.set_ref(tag_name("best"), first, second, "tag")
    pushed = push(repo, opened(repo, storage), ["main"], tags=["best"])
    assert whys(pushed) == {"branches/main": "new", "tags/best": "rejected"}
    assert require_whole(storage).refs == {"refs/branches/main": second, "refs/tags/best": first}
    push(repo, opened(repo, storage), tags=["best"], force_with_lease=True).require_all()
    assert require_whole(storage).refs["refs/tags/best"] == second


def test_refs_are_deleted_and_made_again(repo: Repository, storage: WatchedStorage) -> None:
    tip = commit(repo, step=0)
    repo.set_ref(tag_name("best"), None, tip, "tag")
    push(repo, opened(repo, storage), ["main"], tags=["best"])
    pushed = push(repo, opened(repo, storage), delete=["main", "tags/best", "other"])
    assert whys(pushed) == {"branches/main": "deleted", "tags/best": "deleted", "branches/other": "rejected"}
    assert require_whole(storage).refs == {}
    assert repo.refs.read(TRACKED) is None
    assert repo.refs.read(MAIN) == tip
    assert whys(push(repo, opened(repo, storage))) == {"branches/main": "new"}
    assert require_whole(storage).refs == {"refs/branches/main": tip}


def test_what_somebody_else_pushed_is_not_deleted(repo: Repository, storage: WatchedStorage, tmp_path: Path) -> None:
    base = commit(repo, step=0)
    push(repo, opened(repo, storage))
    with clone_of(repo, tmp_path / "other", base) as other:
        theirs = commit(other, step=7)
        push(other, opened(other, storage))
    assert whys(push(repo, opened(repo, storage), delete=["main"])) == {"branches/main": "rejected"}
    assert require_whole(storage).refs == {"refs/branches/main": theirs}


# --- what is not here -----------------------------------------------------------------------------------------------


def prune(repo: Repository, commit: CommitId, item_name: str | None = None) -> None:
    repo.absences.add([Absence.of(commit, item_name, Why.PRUNED, 1, "elsewhere")])


@pytest.mark.parametrize(("there", "here"), [("exp", "exp/lr3"), ("exp/lr3", "exp"), ("exp/lr3/x", "exp")])
def test_a_branch_that_nobody_could_have_beside_others_is_rejected(
    repo: Repository, storage: WatchedStorage, tmp_path: Path, there: str, here: str
) -> None:
    commit(repo, there)
    push(repo, opened(repo, storage), [there])
    with Repository.init(tmp_path / "other") as other:
        commit(other, here)
        pushed = push(other, opened(other, storage), [here])
        assert whys(pushed) == {f"branches/{here}": "rejected"}
        assert f"branch {there!r}, and neither can be a directory of the other" in pushed.changes[0].reason
        commit(other, "free")
        assert whys(push(other, opened(other, storage), ["free"])) == {"branches/free": "new"}
    assert require_whole(storage).refs.keys() == {branch_key(there), branch_key("free")}


def test_what_was_pruned_goes_without_content_and_that_is_said(repo: Repository, storage: WatchedStorage) -> None:
    commits = [commit(repo, step=step) for step in (0, 100, 200)]
    prune(repo, commits[0])
    prune(repo, commits[1], "optimizer")
    assert push(repo, opened(repo, storage)).hollow_count == 2
    state = require_whole(storage)
    assert state.absent == {(commits[0], "*"), (commits[1], "optimizer")}
    optimizer = repo.commit(commits[1]).items["optimizer"]
    assert optimizer not in state.objects
    assert set(commits) <= state.objects.keys()
    text = storage.get(f"absent/{opened(repo, storage).store_id}", 1000)
    assert text is not None
    assert b"elsewhere" not in text[0]


def test_a_commit_that_is_wholly_absent_cannot_be_pushed(repo: Repository, storage: WatchedStorage) -> None:
    prune(repo, commit(repo, step=0))
    with pytest.raises(Pruned):
        push(repo, opened(repo, storage))
    assert read_remote(storage).refs == {}


def test_what_others_pushed_without_content_is_not_relied_on(
    repo: Repository, storage: WatchedStorage, tmp_path: Path
) -> None:
    base = commit(repo, step=0)
    with clone_of(repo, tmp_path / "whole", base) as whole:
        prune(repo, base, "optimizer")
        push(repo, opened(repo, storage))
        optimizer = repo.commit(base).items["optimizer"]
        assert optimizer not in require_whole(storage).objects
        commit(whole, items=state(0), step=2)  # what the first commit has, all of it
        push(whole, opened(whole, storage)).require_all()
    assert optimizer in require_whole(storage).objects
