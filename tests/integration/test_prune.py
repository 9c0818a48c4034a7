"""Dropping content: what goes, what never does, and what everybody else makes of it."""

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.errors import Busy, Incompatible, NotFound, Pruned, ReadOnly
from store.format.entries import TensorEntry
from store.fsck import fsck
from store.gc import collect as collect_garbage
from store.history.stats import collect
from store.ids import CommitId, ObjectId
from store.limits import REFLOG_EXPIRY_NS
from store.naming.refnames import branch_name, tag_name
from store.repository import Repository
from store.saving.leases import acquire_lease
from store.upkeep.prune import Pruner
from store.upkeep.prunesizes import measured
from store.upkeep.retention import Keep
from tests.arrays import chunk_of, depth, drifted, noise, read, require_whole, save
from tests.pruning import age_reflogs, is_pruned, prune
from tests.stores import commit, item, tensor
from tests.stores import noise as random_bytes

LAST = Keep(last=1)


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        yield repo


# --- what goes and what stays ---------------------------------------------------------------------------------------


def test_h1_the_last_the_best_and_every_so_many_steps(repo: Repository) -> None:
    losses = ["0.9", "0.3", "nan", "0.8", "0.2", "0.7"]
    commits = [commit(repo, step=10 * n, metadata={"loss": loss}) for n, loss in enumerate(losses)]
    assert prune(repo, Keep(last=1, every=30, best=("loss", "min", 1))) == [commits[1], commits[2]]
    assert is_pruned(repo, commits) == [False, True, True, False, False, False]
    assert prune(repo, Keep(last=1, every=30, best=("loss", "min", 1))) == []
    assert prune(repo, Keep(within=timedelta(hours=1))) == []
    assert prune(repo, LAST) == [commits[0], commits[3], commits[4]]


def test_tips_tags_pins_remotes_and_living_writers_keep_theirs(repo: Repository) -> None:
    commits = [commit(repo, step=step) for step in range(7)]
    repo.set_ref(branch_name("old"), None, commits[0], "branch")
    repo.set_ref(tag_name("best"), None, commits[1], "tag")
    repo.refs.update("remotes/origin/main", None, commits[2], "fetch")
    repo.pin(commits[3])
    with acquire_lease(repo.layout.root, repo.files) as lease:
        lease.add_commit(commits[4])
        assert prune(repo, LAST) == [commits[5]]
    repo.unpin(commits[3])
    assert prune(repo, LAST) == [commits[3], commits[4]]
    assert is_pruned(repo, commits) == [False, False, False, True, True, True, False]


def test_of_other_branches_everything_stays(repo: Repository) -> None:
    trunk = [commit(repo, step=step) for step in range(3)]
    repo.set_ref(branch_name("exp"), None, trunk[1], "branch")
    own = [commit(repo, "exp", step=step) for step in range(2, 5)]
    assert prune(repo, LAST, "exp") == own[:2]
    assert prune(repo, LAST, "main") == []
    assert prune(repo, LAST) == trunk[:2]
    with pytest.raises(NotFound, match="no branches/lost"):
        prune(repo, LAST, "lost")


def test_a_policy_counts_on_each_branch(repo: Repository) -> None:
    trunk = [commit(repo, step=step) for step in range(4)]
    repo.set_ref(branch_name("exp"), None, trunk[1], "branch")
    own = commit(repo, "exp", step=2)
    assert prune(repo, Keep(last=2)) == [trunk[0]]
    assert is_pruned(repo, [trunk[1], own]) == [False, False]


def test_what_only_a_reflog_names_stays_until_that_expires(repo: Repository) -> None:
    """A branch that was reset: what was lost could be put back. What a branch merely moved over is not held so."""
    commits = [commit(repo, step=step) for step in range(3)]
    repo.set_ref(branch_name("main"), commits[2], commits[0], "reset")
    later = [commit(repo, step=step) for step in (1, 2)]
    assert prune(repo, LAST) == [commits[0], later[0]]
    repo.set_ref(branch_name("main"), later[1], commits[2], "reset")
    assert prune(repo, LAST) == [commits[1]]
    assert is_pruned(repo, [later[1], commits[2]]) == [False, False]


def test_switching_to_another_branch_holds_nothing(repo: Repository) -> None:
    commits = [commit(repo, step=step) for step in range(3)]
    repo.set_ref(branch_name("exp"), None, commits[2], "branch")
    repo.refs.set_head("exp")
    commit(repo, "exp", step=3)
    assert prune(repo, LAST) == commits[:2]


def test_what_no_branch_reaches_is_no_policys_affair(repo: Repository) -> None:
    base = commit(repo, step=0)
    repo.set_ref(branch_name("exp"), None, base, "branch")
    lost = [commit(repo, "exp", step=step) for step in range(1, 4)]
    repo.delete_ref(branch_name("exp"))
    assert prune(repo, LAST) == []
    age_reflogs(repo, 2 * REFLOG_EXPIRY_NS)
    assert prune(repo, LAST) == []
    assert is_pruned(repo, lost) == [False] * 3


def test_what_gets_a_name_before_it_is_dropped_stays(repo: Repository) -> None:
    commits = [commit(repo, step=step) for step in range(4)]
    pruner = Pruner(repo)
    planned = pruner.by_policy(LAST)
    repo.set_ref(tag_name("best"), None, commits[1], "tag")
    repo.pin(commits[2])
    assert [drop.row.id for drop in pruner.apply(planned)] == [commits[0]]


def test_nothing_is_dropped_while_a_commit_gets_a_name(repo: Repository) -> None:
    first = commit(repo, step=0)
    with repo._keeping(first), pytest.raises(Busy):
        repo.files.lock_exclusive(repo.layout.root / "absent.lock", blocking=False)
    repo.files.lock_exclusive(repo.layout.root / "absent.lock", blocking=False).close()


@settings(max_examples=12)
@given(st.data())
def test_whatever_is_pruned_tips_tags_and_pins_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("store") / "store"
    with Repository.init(root, thread_count=1) as repo:
        commits = [commit(repo, items=[_small(0)])]
        for number in range(1, data.draw(st.integers(1, 7))):
            branch = data.draw(st.sampled_from(["main", "a", "b"]))
            if repo.refs.read(branch_name(branch)) is None:
                repo.set_ref(branch_name(branch), None, data.draw(st.sampled_from(commits)), "branch")
            commits.append(commit(repo, branch, [_small(number)], step=number, metadata={"loss": number % 3}))
        named = set(repo.refs.list("branches/").values())
        for number, tagged in enumerate(data.draw(st.sets(st.sampled_from(commits), max_size=2))):
            repo.set_ref(tag_name(f"t{number}"), None, tagged, "tag")
            named.add(tagged)
        for pinned in data.draw(st.sets(st.sampled_from(commits), max_size=2)):
            repo.pin(pinned)
            named.add(pinned)
        keep = data.draw(st.sampled_from([LAST, Keep(every=3), Keep(best=("loss", "min", 1)), Keep(last=2, every=2)]))
        prune(repo, keep)
        pruner = Pruner(repo)
        pruner.apply(pruner.items(["model"], data.draw(st.integers(0, 3))))
        for each in named:
            assert dict(repo.tree(repo.commit(each), "model"))
        assert {row.id for row in repo.log(named)} <= set(commits)
        assert fsck(repo).clean


def _small(number: int) -> object:
    return item("model", {"w": tensor(random_bytes(number, 16))})


# --- items ----------------------------------------------------------------------------------------------------------


def test_h8_old_optimizers_go_and_the_models_stay(repo: Repository) -> None:
    commits = [commit(repo, step=step) for step in range(4)]
    repo.set_ref(tag_name("best"), None, commits[1], "tag")
    pruner = Pruner(repo)
    drops = pruner.apply(pruner.items(["optimizer"], 1))
    assert [(drop.row.id, drop.items) for drop in drops] == [(commits[0], ("optimizer",)), (commits[2], ("optimizer",))]
    assert pruner.items(["optimizer"], 1) == []
    for each in (commits[0], commits[2]):
        assert dict(repo.tree(repo.commit(each), "model"))
        with pytest.raises(Pruned, match=r"the item 'optimizer' of commit \w+ was pruned"):
            repo.tree(repo.commit(each), "optimizer")
    for each in (commits[1], commits[3]):
        assert dict(repo.tree(repo.commit(each), "optimizer"))
    assert fsck(repo).clean


def test_items_older_than_a_span_of_time(repo: Repository) -> None:
    commits = [commit(repo, step=step) for step in range(3)]
    pruner = Pruner(repo)
    assert pruner.items(["optimizer"], timedelta(days=1)) == []
    assert [drop.row.id for drop in pruner.items(["optimizer", "settings"], timedelta())] == commits[:2]


def test_an_item_that_never_was_is_a_slip(repo: Repository) -> None:
    for step in range(2):
        commit(repo, step=step)
    with pytest.raises(NotFound, match="no commit so old has an item 'optimiser'; they have model, optimizer"):
        Pruner(repo).items(["optimiser"], 1)


# --- sizes ----------------------------------------------------------------------------------------------------------


def test_what_it_would_free_is_told_beforehand(repo: Repository) -> None:
    """What commits share is counted once; what one that stays needs is not counted, not even as the base of a delta."""
    states = [
        {"same": noise("same", 1000), "own": noise(("own", n), 1000), "late": noise(n // 2, 500)} for n in range(4)
    ]
    states[3]["own"] = drifted(states[2]["own"], 1)
    for each in states:
        save(repo, each)
    pruner = Pruner(repo)
    drops = measured(repo, pruner.by_policy(LAST))
    tree_bytes = [repo.reader.place(repo.commit(drop.row.id).items["model"], 2).stored_bytes for drop in drops]
    first, second, third = (drop.freed_bytes - tree for drop, tree in zip(drops, tree_bytes, strict=True))
    assert first == 4000 + 2000 + 2 * 64  # its own, and what it shares with the second
    assert second == 4000 + 64
    assert third == 0  # "same" and "late" are the last one's as well, and "own" is its base
    assert depth(repo, chunk_of(repo, repo.resolve("main"), "own")) == 1
    assert [drop.freed_bytes for drop in measured(repo, drops)] == [drop.freed_bytes for drop in drops]


def test_sizes_of_items(repo: Repository) -> None:
    for step in range(2):
        commit(repo, step=step)
    pruner = Pruner(repo)
    one = measured(repo, pruner.items(["optimizer"], 1))[0].freed_bytes
    both = measured(repo, pruner.items(["optimizer", "model"], 1))[0].freed_bytes
    assert 2048 < one < both < 8192
    assert measured(repo, []) == []


# --- what others make of it -----------------------------------------------------------------------------------------


def test_history_stays_whole(repo: Repository) -> None:
    commits = [commit(repo, step=step, message=f"step {step}") for step in range(4)]
    prune(repo, LAST)
    assert [row.id for row in repo.log([commits[3]])] == commits[::-1]
    assert [repo.commit(each).message for each in commits] == [f"step {step}" for step in range(4)]
    assert repo.resolve("main~3") == repo.resolve("step:0") == repo.resolve("main@{3}") == commits[0]


def test_reading_what_was_pruned_says_so(repo: Repository) -> None:
    first, _ = (commit(repo, step=step) for step in range(2))
    prune(repo, LAST)
    with pytest.raises(Pruned, match="was pruned: its history stays, its tensors are gone; pick another") as raised:
        repo.tree(repo.commit(first), "model")
    assert raised.value.details["commit"] == first.hex()


def test_what_was_pruned_gets_no_name(repo: Repository) -> None:
    """What is named is kept, and there is nothing to keep. One that lacks an item only can be named."""
    commits = [commit(repo, step=step) for step in range(4)]
    pruner = Pruner(repo)
    pruner.apply(pruner.by_policy(Keep(last=3)))
    pruner.apply(pruner.items(["optimizer"], 2))
    for name in (branch_name("new"), tag_name("new")):
        with pytest.raises(Pruned):
            repo.set_ref(name, None, commits[0], "made")
        assert repo.refs.read(name) is None
    with pytest.raises(Pruned):
        repo.pin(commits[0])
    repo.set_ref(branch_name("new"), None, commits[1], "made")
    repo.pin(commits[1])
    assert dict(repo.tree(repo.commit(commits[1]), "model"))


class Overtaken:
    """An index to which something happens between a save's look-ups and its publication."""

    def __init__(self, index: Any, happens: Callable[[], object]) -> None:
        self._index = index
        self._happens: Callable[[], object] | None = happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def write(self, body: Callable[[Any], Any]) -> Any:
        happens, self._happens = self._happens, None
        if happens is not None:
            happens()
        return self._index.write(body)


def lose(repo: Repository, victims: Iterable[ObjectId]) -> None:
    """What a sweep leaves: to whoever looks these objects up they are gone."""
    for victim in victims:
        for place in repo.index.places(victim):
            repo.index.mark_bad(victim, place.pack)


@pytest.mark.parametrize("is_in_memory", [True, False])
def test_a_save_does_not_count_on_a_parent_that_is_pruned_meanwhile(repo: Repository, is_in_memory: bool) -> None:
    """Somebody moved the branch away, and gc has been there: the parent's trees prove nothing any more."""
    states = [{name: noise((name, n), 1000) for name in "ab"} for n in range(2)]
    first = save(repo, states[0])
    chunk = chunk_of(repo, first.commit, "a")

    def overtake() -> None:
        other = save(repo, states[1])
        assert prune(repo, LAST) == [first.commit]
        lose(repo, [chunk])
        repo.refs.update("branches/main", other.commit, first.commit, "reset")  # past all checks

    repo.index = Overtaken(repo.index, overtake)
    again = save(repo, states[0], last=first.last if is_in_memory else None)
    assert repo.index.places(chunk)  # stored again
    assert read(repo, again.commit) == states[0]


def test_a_save_does_not_count_on_an_item_that_its_parent_lacks(repo: Repository) -> None:
    first, _ = (commit(repo, step=step) for step in range(2))
    gone = entries_of_item(repo, first, "optimizer")["exp_avg"].chunks
    pruner = Pruner(repo)
    pruner.apply(pruner.items(["optimizer"], 1))
    repo.set_ref(branch_name("exp"), None, first, "branch")
    repo.index = Overtaken(repo.index, lambda: lose(repo, gone))
    again = commit(repo, "exp", step=0)  # the very same state
    assert entries_of_item(repo, again, "optimizer")["exp_avg"].chunks == gone
    assert all(repo.index.places(chunk) for chunk in gone)


def entries_of_item(repo: Repository, commit_id: CommitId, name: str) -> dict[str, TensorEntry]:
    tree = repo.tree(repo.commit(commit_id), name)
    return {each: entry for each, entry in tree if isinstance(entry, TensorEntry)}


def test_what_a_pruned_commit_alone_had_is_found_again_by_a_save(repo: Repository) -> None:
    first, second = {"w": noise("first", 1000)}, {"w": noise("second", 1000)}
    save(repo, first)
    save(repo, second)
    prune(repo, LAST)
    again = save(repo, first)
    assert again.counts.known_count == 1
    assert read(repo, again.commit) == first
    assert fsck(repo, full=True).clean


def test_descendants_can_be_read(repo: Repository) -> None:
    states = [{"w": noise("w", 2000)}]
    for seed in range(4):
        states.append({"w": drifted(states[-1]["w"], seed)})
    commits = [save(repo, each).commit for each in states]
    assert any(depth(repo, chunk_of(repo, each, "w")) for each in commits)
    prune(repo, Keep(last=2))
    require_whole(repo, dict(zip(commits[-2:], states[-2:], strict=True)))


def test_statistics_leave_it_out(repo: Repository) -> None:
    for step in range(3):
        commit(repo, step=step)
    before = collect(repo)
    prune(repo, LAST)
    after = collect(repo)
    assert after.commit_count == before.commit_count
    assert after.tensor_bytes == before.tensor_bytes // 3


def test_a_store_that_cannot_be_written_or_collected_is_left_alone(repo: Repository) -> None:
    for step in range(2):
        commit(repo, step=step)
    with Repository.open(repo.layout.root, read_only=True) as reading:
        pruner = Pruner(reading)
        planned = pruner.by_policy(LAST)
        assert len(planned) == 1
        with pytest.raises(ReadOnly):
            pruner.apply(planned)
    text = repo.layout.format.read_text()
    repo.layout.format.write_text(text.replace('"gc": [', '"gc": ["moonclip-9",'))
    with pytest.raises(Incompatible, match="'moonclip-9' to gc"):
        prune(repo, LAST)
    assert not (repo.layout.root / "absent").exists()


# --- gc -------------------------------------------------------------------------------------------------------------


def test_h1_after_gc_every_commit_that_was_kept_is_bit_for_bit_what_it_was(repo: Repository) -> None:
    """Deltas whose bases were dropped among them; the space is what was foretold, and history is whole."""
    states = [{"w": noise("w", 20_000), "same": noise("same", 20_000), "own": noise(0, 20_000)}]
    for seed in range(1, 12):
        states.append({**states[-1], "w": drifted(states[-1]["w"], seed), "own": noise(seed, 20_000)})
    commits = [save(repo, each, step=step).commit for step, each in enumerate(states)]
    pruner = Pruner(repo)
    drops = measured(repo, pruner.by_policy(Keep(last=2, every=5)))
    foretold_bytes = sum(drop.freed_bytes or 0 for drop in drops)
    kept = {commit_id: states[step] for step, commit_id in enumerate(commits) if step in {0, 5, 10, 11}}
    assert {drop.row.id for drop in pruner.apply(drops)} == set(commits) - kept.keys()
    done = collect_garbage(repo)
    assert done.object_bytes == foretold_bytes > 8 * 80_000
    require_whole(repo, kept)
    assert any(depth(repo, chunk_of(repo, each, "w")) for each in kept)
    assert [row.id for row in repo.log([commits[-1]])] == commits[::-1]
    for each in set(commits) - kept.keys():
        with pytest.raises(Pruned):
            repo.tree(repo.commit(each), "model")
    again = save(repo, states[3])  # what is gone is stored anew
    assert again.counts.known_count < 3
    require_whole(repo, {**kept, again.commit: states[3]})


def test_h8_after_gc_the_models_stay(repo: Repository) -> None:
    commits = [commit(repo, step=step) for step in range(4)]
    weights = [bytes(repo.read_tensor(entries_of_item(repo, each, "model")["fc.weight"])) for each in commits]
    pruner = Pruner(repo)
    drops = pruner.apply(measured(repo, pruner.items(["optimizer"], 1)))
    assert collect_garbage(repo).object_bytes == sum(drop.freed_bytes or 0 for drop in drops) > 0
    assert [bytes(repo.read_tensor(entries_of_item(repo, each, "model")["fc.weight"])) for each in commits] == weights
    assert fsck(repo, full=True).clean
    repo.set_ref(branch_name("exp"), None, commits[0], "branch")
    again = commit(repo, "exp", step=0)  # with the optimizer that is gone
    assert repo.read_tensor(entries_of_item(repo, again, "optimizer")["exp_avg"])
    assert fsck(repo, full=True).clean
