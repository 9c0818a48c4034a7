"""What is told to somebody who begins with this, and slips."""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from moonclip import CheckpointManager, Conflict, Incompatible, NotFound, SaveFailed
from store.naming.refnames import branch_name
from store.opening.places import place_of
from store.repository import Repository

NOT_ASKED_FOR = "not asked for"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def trained() -> dict[str, Any]:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def told(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if word in record.getMessage()]


# --- a resume of a part ---------------------------------------------------------------------------------------------


def test_3_a_resume_tells_of_what_it_was_not_asked_for(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = trained()
    with CheckpointManager(root) as mgr:
        commit = mgr.save(step=0, **run, rng=True).result()
        mgr.resume(model=run["model"])
        (message,) = told(caplog, NOT_ASKED_FOR)
        assert message.startswith(f"commit {commit[:8]} also has 'optimizer', which was not asked for")
        caplog.clear()
        mgr.save(step=1, **run, ema=torch.ones(3)).result()
        mgr.resume(run["model"])
        (message,) = told(caplog, NOT_ASKED_FOR)
        assert "also has 'optimizer', 'ema', which were not asked for" in message or (
            "also has 'ema', 'optimizer', which were not asked for" in message
        )


def test_3_what_is_left_out_on_purpose_is_not_told_of(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = trained()
    with CheckpointManager(root) as mgr:
        mgr.save(step=0, **run, rng=True).result()
        mgr.resume(**run)
        mgr.resume(model=run["model"], optimizer=None)
        mgr.resume()  # the place alone
        mgr.load("main", model=run["model"])
        mgr.load("main", items="model")
        mgr.save(step=1, **run).result()
        mgr.prune(items=["optimizer"], older_than=1)
        mgr.resume(rev="step:0", branch="tuned", model=run["model"])
    assert not told(caplog, NOT_ASKED_FOR)


def test_4_an_item_that_a_commit_lacks_is_told_with_the_ways_out(root: Path) -> None:
    run = trained()
    with CheckpointManager(root) as mgr:
        whole = mgr.save(step=0, **run).result()
        mgr.save(step=1, model=run["model"]).result()
        for get in (mgr.resume, mgr.load_latest):
            with pytest.raises(Incompatible) as refused:
                get(**run)
            assert f"nearest commit that has it is {whole[:8]} (main, step 0)" in str(refused.value)
            assert "resume(rev=…, branch='new-name', …)" in str(refused.value)
            assert "strict=False" in str(refused.value)
        assert mgr.resume(**run, strict=False) == 2
        assert mgr.resume(rev=whole[:8], branch="new-name", **run) == 1


def test_4_other_misfits_have_no_such_ways_out(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        mgr.save(step=0, model=torch.nn.Linear(3, 2))
        with pytest.raises(Incompatible, match="shape") as refused:
            mgr.resume(model=torch.nn.Linear(3, 4))
    assert "new-name" not in str(refused.value)


# --- two at one branch ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_begun", [False, True])
def test_5_a_save_that_met_another_says_so_and_names_the_commands(root: Path, *, has_begun: bool) -> None:
    if has_begun:
        with CheckpointManager(root) as mgr:
            mgr.save(step=0, x=0)
    with CheckpointManager(root) as mgr, CheckpointManager(root) as other:
        now = mgr.save(step=1, x=1).result()
        with pytest.raises(SaveFailed, match="somebody else saved to it meanwhile") as refused:
            other.save(step=1, x=100).result()
        assert isinstance(refused.value.__cause__, Conflict)
        kept = refused.value.__cause__.details["kept"]
        text = str(refused.value)
        assert ("had no commit" in text) is not has_begun
        assert f"is at {now[:8]} now" in text
        assert f"`moonclip log --graph main {kept}`" in text
        assert f"`moonclip reset --branch main {kept}`" in text
        assert "another name" not in text
        with pytest.raises(SaveFailed):
            other.flush()


def test_5_a_save_whose_branch_was_deleted_names_no_command_for_it(root: Path) -> None:
    with CheckpointManager(root) as mgr, CheckpointManager(root, branch="lr3") as other:
        mgr.save(step=0, x=0).result()
        other.save(step=0, x=0).result()
        mgr.delete_branch("lr3")
        with pytest.raises(SaveFailed, match="branch 'lr3' is gone") as refused:
            other.save(step=1, x=1).result()
        assert "--branch lr3" not in str(refused.value)
        with pytest.raises(SaveFailed):
            other.flush()


# --- names that there are not -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "get",
    [
        lambda mgr: mgr.resume(rev="step:5", x=None),
        lambda mgr: mgr.load("main"),
        lambda mgr: mgr.load(5),
        lambda mgr: mgr.load(),
        lambda mgr: mgr.load_tensors("x", "main"),
    ],
    ids=["resume", "load", "step", "latest", "tensors"],
)
def test_9_an_empty_store_is_called_so_with_its_path(
    root: Path, get: Callable[[CheckpointManager], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    with CheckpointManager(root.name) as mgr, pytest.raises(NotFound) as refused:
        get(mgr)
    assert f"the store at {root} has no commit yet" in str(refused.value)
    assert "no branch" not in str(refused.value)


def test_9_a_store_that_has_commits_is_not_called_empty(root: Path) -> None:
    with CheckpointManager(root, branch="lr3") as mgr:
        mgr.save(step=0, x=0)
        with pytest.raises(NotFound, match="no branch, tag or commit 'main'"):
            mgr.load("main")


def test_10_a_branch_that_there_is_not_is_told_with_those_that_there_are(root: Path) -> None:
    with CheckpointManager(root, branch="training") as mgr:
        mgr.save(step=0, x=0).result()
        told = r"no branch 'trainin'; there are: training \(did you mean 'training'\?\)"
        with pytest.raises(NotFound, match=told + r".*resume\(rev='training',"):
            mgr.resume(branch="trainin", x=None)
        with pytest.raises(NotFound, match=told):
            mgr.switch("trainin")
    with CheckpointManager(root, branch="new") as mgr, pytest.raises(NotFound, match=r"resume\(rev='training',"):
        mgr.resume(branch="other", x=None)


def test_10_a_manager_on_a_new_branch_is_told_of_one_that_may_be_meant(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with CheckpointManager(root) as mgr:
        mgr.save(step=0, x=0)
    with CheckpointManager(root, branch="mian") as mgr:
        assert mgr.resume(x=None) == 0
    assert "the store has: main (did you mean 'main'?)" in caplog.text


# --- where the store is -----------------------------------------------------------------------------------------------


def test_12_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    for given in ("~/runs/a", Path("~/runs/a")):
        with CheckpointManager(given) as mgr:
            mgr.save(step=0, x=0)
    with CheckpointManager(home / "runs" / "a") as mgr:
        assert [snapshot.step for snapshot in mgr.log()] == [0, 0]
    assert not list(here.iterdir())


def test_12_a_home_directory_that_nobody_knows_is_told() -> None:
    with pytest.raises(Incompatible, match=r"~nobody-of-this-name/x: the home directory that '~nobody-of-this-name'"):
        place_of("~nobody-of-this-name/x")
    assert place_of("a/~/b") == Path("a/~/b")


@pytest.mark.parametrize("below", ["", "a/b"])
def test_12_a_file_where_the_store_should_be_is_named(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(OSError, match="no store can be made at") as refused:
        CheckpointManager(file / below)
    assert isinstance(refused.value, FileExistsError | NotADirectoryError)
    assert f"at {file / below}: {file} is no directory" in str(refused.value)


def test_12_a_path_at_which_nothing_can_be_made_is_named() -> None:
    with pytest.raises(OSError, match=re.escape("no store can be made at /proc/none/store: /proc/none: ")) as refused:
        CheckpointManager("/proc/none/store")
    assert isinstance(refused.value, FileNotFoundError | PermissionError)


# --- a resume that was forgotten --------------------------------------------------------------------------------------


def test_13_a_first_save_that_goes_back_without_a_resume_is_told_once(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with CheckpointManager(root) as mgr:
        mgr.save(step=40, x=40)
        mgr.save(step=10, x=10)  # runs roll back
        mgr.save(step=40, x=40)
    assert not caplog.messages
    with CheckpointManager(root, async_save=False) as mgr:
        for step in range(3):
            mgr.save(step=step, x=step)
    (message,) = caplog.messages
    assert message.startswith("branch 'main' is at step 40; this goes on from there with step 0: forgot resume()?")
    assert caplog.records[0].levelno == logging.WARNING


def test_13_who_resumed_or_goes_on_is_told_nothing(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with CheckpointManager(root) as mgr:
        mgr.save(step=40, x=40)
    with CheckpointManager(root) as mgr:
        assert mgr.resume(x=None) == 41
        mgr.save(step=0, x=0)
        mgr.save(step=40, x=40)
    with CheckpointManager(root) as mgr:
        mgr.save(step=41, x=41)
        mgr.save(step=0, x=0)
        mgr.save(step=40, x=40)
    with CheckpointManager(root) as mgr:
        mgr.save("by-name", {"x": 1})
        mgr.save(step=0, x=0)
    with CheckpointManager(root, branch="new") as mgr:
        mgr.save(step=0, x=0)
    assert not caplog.messages


# --- a run whose branch somebody else moved --------------------------------------------------------------------------


@pytest.mark.parametrize("branch", ["main", "exp/lr"])
def test_a_run_that_goes_on_elsewhere_is_told_of_when_its_branch_is_resumed(
    root: Path, branch: str, caplog: pytest.LogCaptureFixture
) -> None:
    with CheckpointManager(root, branch=branch) as mgr:
        mgr.save(step=0, x=0)
    with CheckpointManager(root, branch=branch, async_save=False) as run:
        run.resume(x=None)
        with CheckpointManager(root, branch=branch, async_save=False) as other:
            other.save(step=1, x=1)
        with pytest.raises(Conflict):
            run.save(step=1, x=-1)
        with CheckpointManager(root, branch=branch) as mgr:
            mgr.resume(x=None)
        assert not caplog.messages  # it is no further than the branch is
        run.save(step=2, x=-2)
        kept = run.bound_branch
    assert kept.startswith(f"{branch}+")
    with CheckpointManager(root, branch=branch, async_save=False) as mgr:
        assert mgr.resume(x=None) == 2
        (message,) = caplog.messages
        assert message == (
            f"branch {branch!r} was moved while a run saved to it; that run went on as {kept!r}, to step 2, and this"
            f" one goes on from step 1. To go on from there, resume(branch={kept!r}, …)"
        )
        mgr.save(step=3, x=3)
    with CheckpointManager(root, branch=branch) as mgr:
        mgr.resume(x=None)
    with Repository.open(root, thread_count=1) as repo:
        name, tip = branch_name(branch), repo.resolve(branch)
        repo.set_ref(name, tip, repo.resolve(kept), "reset")
        repo.set_ref(name, repo.resolve(kept), repo.resolve(f"{branch}~2"), "reset")
    with CheckpointManager(root, branch=branch) as mgr:
        assert mgr.resume(x=None) == 1  # they know of it
    with CheckpointManager(root) as mgr:
        assert mgr.resume(branch=kept, x=None) == 3
    assert caplog.messages == [message]


def test_a_branch_that_only_has_such_a_name_is_not_told_of(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with CheckpointManager(root, async_save=False) as mgr:
        first = mgr.save(step=0, x=0)
        mgr.branch("exp-lr")
    for name in (f"main+{'0' * 8}", f"exp-lr+{first.result()[:8]}"):
        with CheckpointManager(root, async_save=False) as mgr:
            mgr.resume(rev=first.result(), branch=name, x=None)
            mgr.save(step=9, x=9)
    for branch in ("main", "exp-lr"):
        with CheckpointManager(root, branch=branch) as mgr:
            assert mgr.resume(x=None) == 1
    assert not caplog.messages


@pytest.mark.parametrize("damage", ["ref", "commit"])
def test_what_is_damaged_of_such_a_branch_keeps_nobody_from_resuming(
    root: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with CheckpointManager(root, async_save=False) as mgr:
        mgr.save(step=0, x=0)
        mgr.branch("main+01234567")
        mgr.branch("other")
    for name in ("main+01234567", "other"):
        ref = root / "refs" / "branches" / name
        ref.write_bytes(b"?" if damage == "ref" else b"5" * 64 + b"\n")
    with CheckpointManager(root) as mgr:
        assert mgr.resume(x=None) == 1
    assert not caplog.messages
