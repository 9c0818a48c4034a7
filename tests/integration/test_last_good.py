"""Resuming where the tip of a branch is damaged: the newest commit that is whole is taken, and only one."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from moonclip import CheckpointManager, Conflict, Corrupt, Incompatible, NotFound, Pruned, SaveFailed
from moonclip.loading import lastgood
from store.format.entries import TensorEntry
from store.ids import CommitId, ObjectId, from_hex
from store.naming.refnames import branch_name
from store.reading.packs import pack_path
from store.repository import Repository
from store.upkeep.absences import Absence, Why
from tests.arrays import damage

STEPS = 4


class Run:
    """A model and its optimizer."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(32, 32)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def train(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        self.optimizer.step()

    def state(self) -> list[torch.Tensor]:
        moments = [each[name] for each in self.optimizer.state.values() for name in ("step", "exp_avg", "exp_avg_sq")]
        return [tensor.detach().clone() for tensor in (*self.model.parameters(), *moments)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


class Past:
    """A store in which a run saved.

    Attributes:
        root: the store.
        commits: what it saved, oldest first.
        states: what each holds.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commits: list[CommitId] = []
        self.states: list[list[torch.Tensor]] = []
        run = Run()
        with CheckpointManager(root, threads=2, async_save=False) as manager:
            for step in range(STEPS):
                run.train(step)
                saved = manager.save(step=step, model=run.model, optimizer=run.optimizer).result()
                self.commits.append(CommitId(from_hex(saved)))
                self.states.append(run.state())

    def damage(self, commit: int, item: str) -> None:
        """Damage a chunk of an item that no other commit has."""
        with Repository.open(self.root, read_only=True) as repo:
            tree = dict(repo.tree(repo.commit(self.commits[commit]), item))
            chunks = [chunk for entry in tree.values() if isinstance(entry, TensorEntry) for chunk in entry.chunks]
            damage(repo, chunks[0])

    def damage_object(self, object_id: ObjectId) -> None:
        with Repository.open(self.root, read_only=True) as repo:
            damage(repo, object_id)

    def tree(self, commit: int, item: str) -> ObjectId:
        with Repository.open(self.root, read_only=True) as repo:
            return repo.commit(self.commits[commit]).items[item]

    def pack(self, commit: int) -> Path:
        with Repository.open(self.root, read_only=True) as repo:
            return pack_path(repo.layout.packs, repo.index.places(self.commits[commit])[0].pack)


@pytest.fixture
def past(tmp_path: Path) -> Past:
    return Past(tmp_path / "store")


@pytest.fixture(params=["in the background", "at once"])
def manager(past: Past, request: pytest.FixtureRequest) -> Iterator[CheckpointManager]:
    with CheckpointManager(past.root, threads=2, async_save=request.param == "in the background") as manager:
        yield manager


@pytest.fixture
def reader(past: Past) -> Iterator[CheckpointManager]:
    with CheckpointManager(past.root, threads=2, async_save=False) as manager:
        yield manager


# --- what is loaded -------------------------------------------------------------------------------------------------


def test_nothing_is_skipped_where_nothing_is_damaged(past: Past, reader: CheckpointManager) -> None:
    run = Run()
    assert reader.resume(model=run.model, optimizer=run.optimizer) == STEPS
    assert reader.resumed is not None
    assert (reader.resumed.commit, reader.resumed.skipped) == (past.commits[-1].hex(), ())
    assert same(run.state(), past.states[-1])


@pytest.mark.parametrize("item", ["model", "optimizer"])
def test_h5_model_and_optimizer_come_from_the_newest_commit_that_is_whole(
    past: Past, reader: CheckpointManager, caplog: pytest.LogCaptureFixture, item: str
) -> None:
    past.damage(3, item)
    past.damage(2, "model")
    run = Run()
    run.train(99)  # the optimizer has moments, into which is loaded in place
    with caplog.at_level(logging.WARNING, logger="moonclip"):
        assert reader.resume(model=run.model, optimizer=run.optimizer) == 2
    assert same(run.state(), past.states[1])
    assert reader.resumed is not None
    assert reader.resumed.commit == past.commits[1].hex()
    assert [each.commit for each in reader.resumed.skipped] == [past.commits[3].hex(), past.commits[2].hex()]
    assert all("damaged" in each.reason for each in reader.resumed.skipped)
    for commit in past.commits[1:]:
        assert commit.hex()[:8] in caplog.text


def test_damage_to_an_item_that_is_not_wanted_is_of_no_interest(past: Past, reader: CheckpointManager) -> None:
    past.damage(3, "optimizer")
    run = Run()
    assert reader.resume(model=run.model) == STEPS


@pytest.mark.parametrize("harm", ["tree", "commit", "commit and index", "pack"])
def test_whatever_of_the_tip_is_lost(past: Past, harm: str) -> None:
    if harm == "tree":
        past.damage_object(past.tree(3, "model"))
    elif harm == "pack":
        past.pack(3).unlink()
    else:
        past.damage_object(past.commits[3])
    if harm == "commit and index":
        shutil.rmtree(past.root / "index")
    run = Run()
    with CheckpointManager(past.root, threads=2, async_save=False) as manager:
        assert manager.resume(model=run.model, optimizer=run.optimizer) == 3
        assert same(run.state(), past.states[2])
        run.train(50)
        saved = manager.save(step=3, model=run.model, optimizer=run.optimizer).result()
        assert manager.head == saved


def test_pruned_commits_are_passed_over(past: Past) -> None:
    with Repository.open(past.root) as repo:
        repo.absences.add([Absence.of(past.commits[2], None, Why.PRUNED, 0)])
    past.damage(3, "model")
    run = Run()
    with CheckpointManager(past.root, threads=2, async_save=False) as manager:
        assert manager.resume(model=run.model, optimizer=run.optimizer) == 2
    assert same(run.state(), past.states[1])


def test_however_many_were_pruned(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lastgood, "LAST_GOOD_COMMITS", 2)
    with Repository.open(past.root) as repo:
        repo.absences.add([Absence.of(past.commits[number], None, Why.PRUNED, 0) for number in (1, 2)])
    past.damage(3, "model")
    run = Run()
    with CheckpointManager(past.root, threads=2, async_save=False) as manager:
        assert manager.resume(model=run.model, optimizer=run.optimizer) == 1
        assert manager.resumed is not None
        assert [each.commit for each in manager.resumed.skipped] == [past.commits[3].hex()]
    assert same(run.state(), past.states[0])


def test_no_more_are_tried_than_may_be(past: Past, reader: CheckpointManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lastgood, "LAST_GOOD_COMMITS", 2)
    past.damage(3, "model")
    past.damage(2, "model")
    run = Run()
    with pytest.raises(Corrupt, match="none of the newest 2 commits"):
        reader.resume(model=run.model, optimizer=run.optimizer)


def test_a_tip_that_was_pruned_on_purpose_is_no_damage(past: Past, reader: CheckpointManager) -> None:
    with Repository.open(past.root) as repo:
        repo.absences.add([Absence.of(past.commits[3], "optimizer", Why.PRUNED, 0)])
    run = Run()
    with pytest.raises(Pruned):
        reader.resume(model=run.model, optimizer=run.optimizer)


# --- what is not taken ----------------------------------------------------------------------------------------------


def test_where_all_are_damaged_each_is_named(past: Past, reader: CheckpointManager) -> None:
    for number in range(STEPS):
        past.damage(number, "model")
    run = Run()
    with pytest.raises(Corrupt) as raised:
        reader.resume(model=run.model, optimizer=run.optimizer)
    for commit in past.commits:
        assert commit.hex()[:8] in str(raised.value)
    assert "fsck" in str(raised.value)


def test_a_commit_that_was_asked_for_by_name_is_not_replaced_by_another(past: Past, reader: CheckpointManager) -> None:
    past.damage(3, "model")
    run = Run()
    with pytest.raises(Corrupt):
        reader.resume(rev="main", model=run.model)


def test_what_does_not_fit_is_no_damage(past: Past, reader: CheckpointManager) -> None:
    with pytest.raises(Incompatible, match="does not fit"):
        reader.resume(model=torch.nn.Linear(3, 3))
    assert past.commits


def test_an_older_commit_that_would_leave_half_of_the_damaged_one_is_not_taken(tmp_path: Path) -> None:
    """The damaged one has an item that the older lacks, and its tensors have been read by the time damage shows."""
    root = tmp_path / "store"
    one, other = torch.randn(3000), torch.randn(3000)
    with CheckpointManager(root, threads=1, async_save=False) as manager:
        manager.save(step=0, a={"w": one})
        tip = manager.save(step=1, a={"w": one + 1}, b={"w": other}).result()
    with Repository.open(root, read_only=True) as repo:
        damage(repo, repo.tree(repo.commit(CommitId(from_hex(tip))), "a")["w"].chunks[0])
    a, b = {"w": torch.zeros(3000)}, {"w": torch.zeros(3000)}
    with CheckpointManager(root, threads=1, async_save=False) as manager:
        with pytest.raises(Corrupt, match="partly overwritten"):
            manager.resume(a=a, b=b, strict=False)
        assert manager.resume(a=a, strict=False) == 1  # without it, the older one will do
    assert torch.equal(a["w"], one)


def test_what_is_known_to_be_damaged_is_not_read_again(tmp_path: Path) -> None:
    """A frozen layer that all commits share: each is given up before anything of it is read."""
    root, frozen = tmp_path / "store", torch.randn(3000)
    with CheckpointManager(root, threads=1, async_save=False) as manager:
        for step in range(4):
            manager.save(step=step, model={"a": torch.randn(3000), "frozen": frozen})
    with Repository.open(root, read_only=True) as repo:
        damage(repo, repo.tree(repo.commit(repo.resolve("main")), "model")["frozen"].chunks[0])
    model = {"a": torch.zeros(3000), "frozen": torch.zeros(3000)}
    with CheckpointManager(root, threads=1, async_save=False) as manager, pytest.raises(Corrupt) as raised:
        manager.resume(model=model)
    assert str(raised.value).count("is damaged or lost") == 3


# --- going on -------------------------------------------------------------------------------------------------------


def test_the_next_save_goes_on_from_what_was_loaded(past: Past, manager: CheckpointManager) -> None:
    past.damage(3, "model")
    run = Run()
    assert manager.resume(model=run.model, optimizer=run.optimizer) == 3
    assert manager.head == past.commits[3].hex()  # a resume moves nothing
    made = []
    for step in (3, 4):
        run.train(100 + step)
        made.append(manager.save(step=step, model=run.model, optimizer=run.optimizer).result())
    assert manager.head == made[-1]
    assert [each.step for each in manager.list_snapshots()] == [0, 1, 2, 3, 4]
    with Repository.open(past.root, read_only=True) as repo:
        assert repo.commit(CommitId(from_hex(made[0]))).parents == (past.commits[2],)
        assert repo.resolve("main@{2}") == past.commits[3]
    again = Run()
    assert manager.resume(model=again.model, optimizer=again.optimizer) == 5
    assert same(again.state(), run.state())


def test_a_save_that_fails_does_not_take_what_was_left_behind_for_its_own(past: Past) -> None:
    """It is the same step of the same run, and looks the same but for what is damaged."""
    past.damage(3, "model")
    run = Run()
    with CheckpointManager(past.root, threads=2, async_save=False) as manager:
        manager.resume(model=run.model, optimizer=run.optimizer)
        packs = past.root / "packs"
        packs.rename(past.root / "elsewhere")
        packs.touch()
        with pytest.raises(OSError, match="packs"):
            manager.save(step=3, model=run.model, optimizer=run.optimizer)
        packs.unlink()
        (past.root / "elsewhere").rename(packs)
        saved = manager.save(step=3, model=run.model, optimizer=run.optimizer).result()
    with Repository.open(past.root, read_only=True) as repo:
        assert repo.commit(CommitId(from_hex(saved))).parents == (past.commits[2],)


def test_a_branch_that_others_have_moved_meanwhile_is_left_to_them(past: Past, manager: CheckpointManager) -> None:
    past.damage(3, "model")
    run = Run()
    manager.resume(model=run.model, optimizer=run.optimizer)
    with Repository.open(past.root) as repo:
        repo.set_ref(branch_name("main"), past.commits[3], past.commits[0], "reset")
    with pytest.raises((SaveFailed, Conflict), match="cannot be moved"):
        manager.save(step=3, model=run.model, optimizer=run.optimizer).result()
    assert manager.bound_branch.startswith("main+")
    with suppress(SaveFailed):  # the one before, which is told of once more
        manager.save(step=4, model=run.model, optimizer=run.optimizer)
    manager.flush()
    with Repository.open(past.root, read_only=True) as repo:
        assert repo.resolve("branches/main") == past.commits[0]
        assert repo.commit(repo.resolve(manager.bound_branch)).step == 4


def test_a_store_that_cannot_be_written_falls_back_as_well(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    past.damage(3, "model")
    before = {path: path.read_bytes() for path in past.root.rglob("*") if path.is_file() and "refs" in str(path)}
    opened = Repository.open
    monkeypatch.setattr(Repository, "open", lambda root, **options: opened(root, read_only=True, **options))
    run = Run()
    with CheckpointManager(past.root, threads=2, async_save=False) as manager:
        assert manager.resume(model=run.model, optimizer=run.optimizer) == 3
    assert {path: path.read_bytes() for path in before} == before


def test_a_revision_that_names_nothing_is_told_as_such(reader: CheckpointManager) -> None:
    with pytest.raises(NotFound):
        reader.resume(rev="nowhere", model=Run().model)
