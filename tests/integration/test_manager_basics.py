"""The manager's everyday use: save, resume, load, branch, tag, look back."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moonclip import (
    CheckpointManager,
    Conflict,
    Corrupt,
    Incompatible,
    MoonclipError,
    NotFound,
    ReadOnly,
    StoreNotFound,
)
from store.format.objects import Kind
from store.repository import Repository


class Run:
    """A small training run; every tensor of it changes with each step."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.BatchNorm1d(40), torch.nn.Linear(40, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2)
        self.items = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def train(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 40)).square().mean().backward()
        self.optimizer.step()
        self.scheduler.step()

    def parameters(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(left, right, strict=True))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def test_three_lines_bring_a_run_back(root: Path) -> None:
    run = Run()
    with CheckpointManager(root) as mgr:
        assert mgr.resume(**run.items) == 0
        for step in range(3):
            run.train()
            future = mgr.save(step=step, **run.items, metadata={"loss": "1.23"})
        assert len(future.result()) == 64

    again = Run(seed=1)
    with CheckpointManager(root) as mgr:
        assert mgr.resume(**again.items) == 3
        assert mgr.step == 2
        assert mgr.head == future.result()
    assert equal(again.parameters(), run.parameters())
    assert again.scheduler.state_dict() == run.scheduler.state_dict()
    torch.manual_seed(5)
    run.train()
    torch.manual_seed(5)
    again.train()
    assert equal(again.parameters(), run.parameters())


def test_an_empty_text_is_no_place_for_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Incompatible, match="root is empty"):
        CheckpointManager("")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "told"),
    [({"keep": 3}, r"keep=Keep\(last=3\), not 3"), ({"capture": "overlapped"}, r"'copy' or 'overlap'")],
)
def test_arguments_of_another_kind_are_told(root: Path, given: dict[str, Any], told: str) -> None:
    """They would be passed over: nothing dropped, and training stopped for the whole copy."""
    with pytest.raises(Incompatible, match=told):
        CheckpointManager(root, **given)
    assert not root.exists()


def test_a_step_is_no_less_than_zero(root: Path) -> None:
    """As a revision, step:-1 names nothing."""
    with CheckpointManager(root) as mgr:
        with pytest.raises(Incompatible, match="a step is 0 or more"):
            mgr.save(step=-1, x=1)
        with pytest.raises(Incompatible, match="keep is a policy"):
            mgr.prune(3)  # type: ignore[arg-type]


def test_an_empty_store_leaves_everything_as_it_was(root: Path) -> None:
    run = Run()
    before = run.parameters()
    with CheckpointManager(root) as mgr:
        assert mgr.resume(**run.items, rng=True) == 0
        assert (mgr.head, mgr.step, mgr.list_snapshots(), list(mgr.log())) == (None, None, [], [])
        with pytest.raises(NotFound, match="no commit yet"):
            mgr.load()
    assert equal(run.parameters(), before)


def test_a_name_becomes_a_tag_and_is_refused_twice(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        first = mgr.save("nightly", {"model": {"w": torch.ones(3)}, "step": 7}).result()
        with pytest.raises(Conflict, match="overwrite=True"):
            mgr.save("nightly", {"model": {"w": torch.zeros(3)}})
        assert mgr.tags() == {"nightly": first}
        assert mgr.load("nightly")["step"] == 7
        second = mgr.save("nightly", {"model": {"w": torch.zeros(3)}}, overwrite=True).result()
        assert mgr.tags() == {"nightly": second}
        assert [snapshot.tags for snapshot in mgr.list_snapshots()] == [(), ("nightly",)]
        with pytest.raises(Incompatible, match="'two words'"):
            mgr.save("two words", {"x": 1})


@pytest.mark.parametrize(
    ("saved", "expected"),
    [(None, None), (3, 3), (2.5, 2.5), ("text", "text"), (b"\0bytes", b"\0bytes"), ([1, (2, "x")], [1, (2, "x")])],
)
def test_plain_things_are_items(root: Path, saved: object, expected: object) -> None:
    with CheckpointManager(root) as mgr:
        mgr.save(None, {"thing": saved, "tensor": torch.arange(3)})
        loaded = mgr.load()
    assert loaded["thing"] == expected
    assert type(loaded["thing"]) is type(expected)
    assert torch.equal(loaded["tensor"], torch.arange(3))


def test_nothing_to_save_and_an_item_given_twice_are_refused(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        with pytest.raises(Incompatible, match="nothing to save"):
            mgr.save(step=1, scaler=None)
        with pytest.raises(Incompatible, match="given twice: x"):
            mgr.save(None, {"x": 1}, x=2)
        with pytest.raises(Incompatible, match="metadata 'f'"):
            mgr.save(x=1, metadata={"f": object()})
        assert mgr.list_snapshots() == []


def test_what_is_saved_under_none_is_left_out_and_asked_for_in_vain(root: Path) -> None:
    run = Run()
    with CheckpointManager(root) as mgr:
        mgr.save(step=0, model=run.model, scaler=None)
        assert list(mgr.load()) == ["model"]
        assert mgr.resume(model=run.model, scaler=None) == 1
        with pytest.raises(Incompatible, match="optimizer: no such item in the commit, which has model"):
            mgr.resume(model=run.model, optimizer=run.optimizer)


def test_an_old_commit_needs_a_branch_of_its_own(root: Path) -> None:
    run = Run()
    with CheckpointManager(root) as mgr:
        states = []
        for step in range(3):
            run.train()
            mgr.save(step=step, **run.items)
            states.append(run.parameters())
        tip = mgr.save(step=3, **run.items).result()
        with pytest.raises(Conflict, match=r"branch off with resume\(rev='step:1', branch=.*load\('step:1', into="):
            mgr.resume(rev="step:1", **run.items)
        assert equal(run.parameters(), states[2])

        assert mgr.resume(rev="step:1", branch="lr3", **run.items) == 2
        assert equal(run.parameters(), states[1])
        assert mgr.bound_branch == "lr3"
        mgr.save(step=2, **run.items).result()
        assert [snapshot.step for snapshot in mgr.list_snapshots()] == [0, 1, 2]
        assert mgr.branches()["main"] == tip

        with pytest.raises(Conflict, match=r"resume\(branch='lr3'\)"):
            mgr.resume(rev="main~1", branch="lr3", **run.items)
        assert mgr.resume(branch="main", **run.items) == 4
        assert mgr.resume(rev="main", **run.items) == 4  # the tip under another name


def test_the_call_that_begins_a_branch_continues_it_when_the_script_runs_again(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run()
    for expected in (2, 3, 4):
        with CheckpointManager(root) as mgr:
            if mgr.head is None:
                for step in range(4):
                    mgr.save(step=step, **run.items)
            assert mgr.resume(rev="step:1", branch="lr3", **run.items) == expected
            run.train()
            mgr.save(step=expected, **run.items)
    assert caplog.text.count("branch 'lr3' was begun at step:1 already, and goes on from its tip") == 2
    with CheckpointManager(root) as mgr, pytest.raises(Conflict, match=r"resume\(branch='lr3'\)"):
        mgr.resume(rev="step:2", branch="lr3", **run.items)
    with CheckpointManager(root) as mgr, pytest.raises(Conflict, match=r"resume\(branch='main'\)"):
        mgr.resume(rev="step:0", branch="main", **run.items)  # which nobody made there


def test_a_model_where_targets_by_item_belong_is_refused_with_what_to_write(root: Path) -> None:
    model = torch.nn.Linear(2, 2)
    with CheckpointManager(root) as mgr:
        mgr.save(step=0, model=model)
        with pytest.raises(Incompatible, match=r"into=\{'model': model\}, not a Linear; .*load\(…, model=model\)"):
            mgr.load("main", into=model)  # type: ignore[arg-type]


def test_a_resume_from_what_was_saved_for_another_purpose_tells_the_way_back(root: Path) -> None:
    run = Run()
    with CheckpointManager(root) as mgr:
        mgr.save(step=0, **run.items)
        mgr.save("weights", {"model": run.items["model"]})
        with pytest.raises(Incompatible, match="nearest commit that has it") as refused:
            mgr.resume(**run.items)
    assert "`moonclip reset REVISION`" in refused.value.__notes__[0]


def test_branch_switch_and_tag(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        first = mgr.save(step=0, x=0).result()
        second = mgr.save(step=1, x=1).result()
        assert mgr.branch("old", at="step:0") == first
        assert mgr.branch("here") == second
        assert mgr.branches() == {"main": second, "old": first, "here": second}
        with pytest.raises(Conflict):
            mgr.branch("old")
        assert mgr.tag("best", "main~1") == first
        with pytest.raises(Conflict, match="overwrite=True"):
            mgr.tag("best")
        assert mgr.tag("best", overwrite=True) == second

        with pytest.raises(NotFound, match=r"no branch 'odl'; there are: here, main, old"):
            mgr.switch("odl")
        mgr.switch("old")
        third = mgr.save(step=1, x=2).result()
        assert mgr.branches()["old"] == third
    with CheckpointManager(root) as mgr:  # opens where HEAD says
        assert (mgr.bound_branch, mgr.load()["x"]) == ("old", 2)


def test_a_manager_is_bound_to_its_branch_whatever_head_says(root: Path) -> None:
    with CheckpointManager(root) as mgr, CheckpointManager(root) as other:
        mgr.save(step=0, x=0).result()
        mgr.branch("side")
        other.switch("side")
        mgr.save(step=1, x=1)
        assert [snapshot.step for snapshot in mgr.list_snapshots()] == [0, 1]
        assert [snapshot.step for snapshot in other.list_snapshots()] == [0]


def test_a_branch_that_moved_is_no_reason_to_lose_a_save(root: Path) -> None:
    with CheckpointManager(root, async_save=False) as mgr, CheckpointManager(root, async_save=False) as other:
        mgr.save(step=0, x=0)
        with pytest.raises(Conflict, match="kept") as refused:
            other.save(step=0, x=100)  # opened before main had a commit
        assert mgr.load(refused.value.details["kept"])["x"] == 100
        kept = refused.value.details["kept"]
        assert other.bound_branch == kept
        other.save(step=1, x=101)  # goes on there: one race makes one branch, not one a save
        assert set(mgr.branches()) == {"main", kept}
        assert other.resume(branch="main", x=None) == 1
        other.save(step=1, x=102)
        assert mgr.load_latest()["x"] == 102


def test_a_new_branch_in_an_old_store_begins_at_nothing_and_says_so(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with CheckpointManager(root) as mgr:
        mgr.save(step=5, x=1)
    with CheckpointManager(root, branch="second-run") as mgr:
        assert mgr.resume(x=None) == 0
        assert "'second-run' has no commit yet" in caplog.text
        assert "the store has: main" in caplog.text
        mgr.save(step=0, x=2)
        assert [snapshot.step for snapshot in mgr.list_snapshots()] == [0]
        assert mgr.load("main")["x"] == 1


def test_a_mistyped_branch_does_not_begin_a_run_anew(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        mgr.save(step=5, x=1)
        with pytest.raises(NotFound, match="no branch 'mian'; there are: main"):
            mgr.resume(branch="mian", x=None)
        assert mgr.bound_branch == "main"


def test_a_run_in_an_empty_store_begins_without_a_word(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with CheckpointManager(root) as mgr:
        assert mgr.resume(x=None) == 0
        assert mgr.resume(branch="other", x=None) == 0
    assert not caplog.text


def test_log_and_snapshots_tell_what_was_saved(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        mgr.save(step=1, x=1, message="one", metadata={"loss": np.float32(0.5), "tags": ["a"]})
        mgr.save(step=2, x=2)
        mgr.branch("side", at="main~1")
        mgr.resume(branch="side", x=None)
        mgr.save(step=9, x=3)
        newest, oldest = mgr.log()
        assert (newest.step, newest.branch, newest.parents) == (9, "side", (oldest.id,))
        assert (oldest.step, oldest.message, oldest.items) == (1, "one", ("x",))
        assert dict(oldest.metadata) == {"loss": np.float32(0.5), "tags": ["a"]}
        assert [snapshot.step for snapshot in mgr.log("main", limit=1)] == [2]
        assert [snapshot.step for snapshot in mgr.list_snapshots()] == [1, 9]


def test_the_next_step_comes_from_the_last_commit_that_had_one(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        mgr.save("before-any", {"x": 0})
        assert mgr.resume(x=None) == 0
        mgr.save(step=np.int64(41), x=1)
        mgr.save("final", {"x": 2})
        assert mgr.step == 41
        assert mgr.resume(x=None) == 42


def test_describe_reads_no_tensor(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        weight = torch.zeros(1000, 100, dtype=torch.bfloat16)
        mgr.save("it", {"model": {"a": weight, "b": weight.clone(), "tiny": torch.tensor(1.0)}, "n": 1}).result()
        told = mgr.describe("it")
        assert told.snapshot.tags == ("it",)
        assert set(told.tensors) == {"model::a", "model::b", "model::tiny"}
        found = told.tensors["model::a"]
        assert (found.dtype, found.shape, found.raw_bytes) == ("bfloat16", (1000, 100), 200_000)
        assert 0 < found.stored_bytes < 1000  # zeros
        assert told.raw_bytes == 400_004
        assert told.stored_bytes == found.stored_bytes + 4  # equal chunks are stored once

        with Repository.open(root) as repo:
            (chunk,) = repo.tree(repo.commit(repo.resolve("it")), "model")["a"].chunks
            place = repo.reader.place(chunk, Kind.CHUNK)
        with (root / "packs" / f"{place.pack.hex()}.pack").open("r+b") as pack:
            pack.seek(place.offset)
            pack.write(b"?" * place.stored_bytes)
        assert mgr.describe("it") == told
        with pytest.raises(Corrupt, match=chunk.hex()[:8]):
            mgr.load("it")


def test_tensors_by_name(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        sparse = torch.eye(3).to_sparse()
        layers = {"0": {"w": torch.ones(2), "b": torch.zeros(2)}, "1": {"w": torch.full((2,), 5.0)}}
        mgr.save(step=0, model={"layers": layers, "note": "x"}, sparse=sparse, ema={"w": torch.ones(1)})
        assert list(mgr.load_tensors("model::layers/~s1/w")) == ["model::layers/~s1/w"]
        assert set(mgr.load_tensors(["*/w"])) == {"model::layers/~s0/w", "model::layers/~s1/w"}
        assert set(mgr.load_tensors(["w"])) == {"ema::w"}
        assert set(mgr.load_tensors(["model::layers/~s0"])) == {"model::layers/~s0/b", "model::layers/~s0/w"}
        assert torch.equal(mgr.load_tensors("sparse")["sparse"].to_dense(), torch.eye(3))
        with pytest.raises(NotFound, match="'model::layres"):
            mgr.load_tensors(["ema::w", "model::layres/*"])


def test_a_closed_manager_says_so(root: Path) -> None:
    mgr = CheckpointManager(root)
    mgr.save(x=1)
    mgr.close()
    mgr.close()
    for use in (lambda: mgr.save(x=1), mgr.flush, mgr.load, lambda: mgr.resume(x=None)):
        with pytest.raises(MoonclipError, match="closed"):
            use()
    with Repository.open(root) as repo:
        assert repo.refs.read("branches/main") is not None


def test_a_path_without_a_store_gets_one(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound):
        Repository.open(tmp_path / "deep" / "er")
    CheckpointManager(tmp_path / "deep" / "er").close()
    Repository.open(tmp_path / "deep" / "er").close()


def test_fsck_through_the_manager(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        mgr.save(step=0, x=torch.randn(1000))
        report = mgr.fsck(full=True)
    assert report.clean
    assert report.commit_count == 1


def test_importing_the_package_imports_neither_torch_nor_numpy() -> None:
    script = (
        "import sys, moonclip\n"
        "assert 'CheckpointManager' in dir(moonclip)\n"
        "moonclip.NotFound\n"
        "assert not {'torch', 'numpy', 'numba'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2])


def test_a_bad_branch_name_is_refused_before_a_store_is_made(root: Path) -> None:
    with pytest.raises(Incompatible, match=r"bad\.\.name"):
        CheckpointManager(root, branch="bad..name")
    assert not root.exists()


def test_a_store_that_cannot_be_bound_to_is_closed_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Repository] = []
    with CheckpointManager(root) as mgr:
        mgr.save(x=1)
    (root / "refs" / "branches" / "main").write_text("damaged")

    def note(repo: Repository) -> None:
        closed.append(repo)

    monkeypatch.setattr(Repository, "close", note)
    with pytest.raises(Corrupt):
        CheckpointManager(root)
    assert len(closed) == 1
    monkeypatch.undo()
    closed[0].close()


def test_a_read_only_store_keeps_its_current_branch(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CheckpointManager(root) as mgr:
        mgr.save(x=1)
        mgr.branch("other")
        monkeypatch.setattr(Repository, "read_only", property(lambda repo: True))
        with pytest.raises(ReadOnly):
            mgr.switch("other")
        assert (mgr.bound_branch, (root / "HEAD").read_text()) == ("main", "ref: branches/main\n")


def test_a_log_outlives_the_name_of_its_manager(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        for step in range(3):
            mgr.save(step=step, x=step)
    assert [snapshot.step for snapshot in CheckpointManager(root).log()] == [2, 1, 0]


@pytest.mark.parametrize(
    "refused",
    [
        {"payload": {"x": {"k" * 5000: torch.ones(3)}}},
        {"payload": {"i" * 5000: 1}},
        {"payload": {"\ud800": 1}},
        {"payload": {1: 1}},
        {"step": 2**70, "payload": {"x": 1}},
        {"step": 2**63, "payload": {"x": 1}},
        {"message": "\ud800", "payload": {"x": 1}},
        {"metadata": {"\ud800": 1}, "payload": {"x": 1}},
        {"metadata": {1: 1}, "payload": {"x": 1}},
    ],
    ids=lambda given: " ".join(sorted(given))[:40],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_copied(root: Path, refused: dict[str, Any]) -> None:
    given = dict(refused)
    payload = given.pop("payload")
    with CheckpointManager(root) as mgr:
        mgr._staging._threads = None  # type: ignore[assignment]
        with pytest.raises(Incompatible):
            mgr.save(None, payload, **given)


def test_a_damaged_tag_does_not_hide_the_history(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        mgr.save("good", {"x": 1}).result()
        mgr.save("bad", {"x": 2}).result()
        (root / "refs" / "tags" / "bad").write_text("garbage")
        assert [snapshot.tags for snapshot in mgr.log()] == [(), ("good",)]
