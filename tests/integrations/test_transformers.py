"""Hugging Face's Trainer: what it is told of saving holds for commits, and it resumes from any of them."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from moonclip import CheckpointManager, Conflict, Corrupt, Incompatible, Unsafe
from moonclip.integrations.directories import Passing, put_files
from moonclip.integrations.transformers import MoonclipCallback, WithoutFiles, as_checkpoint
from tests.killing import forked
from tests.stores import damage

pytestmark = pytest.mark.filterwarnings("ignore")

ROWS = torch.randint(32, (20, 8), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only wait for a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def mgr(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(tmp_path / "store", async_save=False, threads=1) as manager:
        yield manager


def model() -> GPT2LMHeadModel:
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, **ends))


class Scores:
    """Metrics that follow a script, one a time; what comes after it is the worst."""

    def __init__(self, *scores: float) -> None:
        self._left = list(scores)

    def __call__(self, _: Any) -> dict[str, float]:
        return {"score": self._left.pop(0) if self._left else -1.0}


def training(
    mgr: CheckpointManager,
    *more: TrainerCallback,
    kind: type[Trainer] = WithoutFiles,
    net: Any = None,
    scores: Scores | None = None,
    tag: str = "best",
    **given: Any,
) -> tuple[Trainer, MoonclipCallback]:
    """A Trainer of at most 8 steps, 5 an epoch, that saves and evaluates every two steps."""
    torch.manual_seed(1)
    callback = MoonclipCallback(mgr, tag=tag)
    settings = {"max_steps": 8, "save_steps": 2, "eval_steps": 2, "save_strategy": "steps", "eval_strategy": "steps"}
    settings |= {"report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_steps": 1, "learning_rate": 0.01}
    arguments = TrainingArguments(
        output_dir=str(mgr.root.parent / "out"), per_device_train_batch_size=4, **(settings | given)
    )
    rows = [{"input_ids": row, "labels": row} for row in ROWS]
    trainer = kind(
        model=model() if net is None else net,
        args=arguments,
        train_dataset=rows,
        eval_dataset=rows[:4],
        compute_metrics=scores,
        callbacks=[callback, *more],
    )
    return trainer, callback


def steps(mgr: CheckpointManager) -> list[int | None]:
    """Of commits that have their content."""
    return [snapshot.step for snapshot in mgr.list_snapshots() if not snapshot.absent]


def losses(trainer: Trainer) -> dict[int, float]:
    return {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}


def test_b4_commits_are_made_when_the_trainer_saves(mgr: CheckpointManager) -> None:
    training(mgr, save_strategy="steps", save_steps=3)[0].train()
    assert steps(mgr) == [3, 6, 8]
    assert mgr.describe("main").snapshot.metadata.keys() >= {"loss", "eval_loss", "epoch", "learning_rate"}
    assert mgr.describe("main").snapshot.tags == ()


def test_b4_epochs_save_and_a_run_resumes_where_one_begins(mgr: CheckpointManager) -> None:
    given = {"save_strategy": "epoch", "eval_strategy": "epoch", "max_steps": -1, "num_train_epochs": 3}
    unbroken, _ = training(mgr, **given)
    unbroken.train()
    assert steps(mgr) == [5, 10, 15]
    resumed, callback = training(mgr, **given)
    resumed.train(resume_from_checkpoint=callback.resume_from("step:5", branch="other"))
    assert losses(resumed) == losses(unbroken)
    assert mgr.bound_branch == "other"
    assert [snapshot.step for snapshot in mgr.log()] == [15, 10, 5]


SCORED = {"load_best_model_at_end": True, "metric_for_best_model": "score", "greater_is_better": True}


@pytest.mark.parametrize("kind", [WithoutFiles, Trainer])
def test_b4_the_best_has_the_tag_outlasts_the_limit_and_is_loaded(kind: type[Trainer], mgr: CheckpointManager) -> None:
    trainer, _ = training(mgr, kind=kind, scores=Scores(0.1, 0.9, 0.5, 0.4), save_total_limit=2, **SCORED)
    trainer.train()
    assert steps(mgr) == [4, 8]
    assert mgr.describe("best").snapshot.step == 4
    best = mgr.load("best", items=["model"])["model"]
    assert all(torch.equal(tensor, best[name]) for name, tensor in trainer.model.state_dict().items())
    directories = sorted(path.name for path in Path(trainer.args.output_dir).iterdir())
    assert directories == ([] if kind is WithoutFiles else ["checkpoint-4", "checkpoint-8"])


def test_b4_only_the_best_is_saved_if_that_is_the_strategy(mgr: CheckpointManager) -> None:
    training(mgr, scores=Scores(0.4, 0.3, 0.5, 0.1), save_strategy="best", **SCORED)[0].train()
    assert steps(mgr) == [2, 6]
    assert mgr.describe("best").snapshot.step == 6


def test_b4_the_lowest_may_be_the_best(mgr: CheckpointManager) -> None:
    given = SCORED | {"greater_is_better": False}
    training(mgr, scores=Scores(0.4, 0.3, 0.5, 0.6), save_total_limit=1, **given)[0].train()
    assert mgr.describe("best").snapshot.step == 4
    assert steps(mgr) == [4, 8]  # the newest stays: it is the branch's tip


def test_b4_the_best_is_known_after_a_resume_to_the_model_too(mgr: CheckpointManager) -> None:
    training(mgr, scores=Scores(0.9, 0.2), **SCORED, max_steps=4)[0].train()
    resumed, callback = training(mgr, scores=Scores(0.5, 0.6), **SCORED)
    resumed.train(resume_from_checkpoint=callback.resume_from())
    assert resumed.state.best_metric == 0.9
    assert mgr.describe("best").snapshot.step == 2
    best = mgr.load("best", items=["model"])["model"]
    assert all(torch.equal(tensor, best[name]) for name, tensor in resumed.model.state_dict().items())


EACH = SCORED | {"eval_steps": 1, "save_steps": 2}


def test_b4_a_best_step_that_was_not_saved_is_not_the_best_commit(
    mgr: CheckpointManager, caplog: pytest.LogCaptureFixture
) -> None:
    def weights_of(rev: str) -> Any:
        return mgr.load(rev, items=["model"])["model"]

    def is_at(trainer: Trainer, rev: str) -> bool:
        return all(torch.equal(tensor, weights_of(rev)[name]) for name, tensor in trainer.model.state_dict().items())

    trainer, _ = training(mgr, scores=Scores(0.9, 0.1), **EACH)
    trainer.train()  # the first of all steps is the best, and was not saved
    assert "best" not in mgr.tags()
    assert "the best step, 1, was not saved" in caplog.text
    assert is_at(trainer, "main")
    trainer, _ = training(mgr, scores=Scores(0.1, 0.5, 0.9), max_steps=4, **EACH)
    trainer.train()  # what was saved of the others is
    assert is_at(trainer, "main~1")
    assert mgr.tags()["best"] == mgr.snapshot("main~1").id
    resumed, callback = training(mgr, scores=Scores(), **EACH)
    resumed.train(resume_from_checkpoint=callback.resume_from())
    assert resumed.state.best_global_step == 3
    assert is_at(resumed, "best")
    again, _ = training(mgr, scores=Scores(0.9), **EACH)
    again.train()  # a run that begins anew has nothing of the one before
    assert is_at(again, "main")


def test_g9_a_compiled_model_goes_on_with_its_weights(mgr: CheckpointManager) -> None:
    def net() -> Any:
        torch.manual_seed(1)
        bare: Any = model()
        bare.transformer.ln_f = torch.compile(bare.transformer.ln_f, backend="eager")
        return bare

    unbroken, _ = training(mgr, net=net(), max_steps=4)
    unbroken.train()
    resumed, callback = training(mgr, net=net(), max_steps=4)
    resumed.train(resume_from_checkpoint=callback.resume_from("step:2", branch="other"))
    assert losses(resumed) == losses(unbroken)


def test_b4_trials_of_a_search_are_refused(mgr: CheckpointManager) -> None:
    trainer, callback = training(mgr)
    state = SimpleNamespace(is_hyper_param_search=True)
    with pytest.raises(Incompatible, match="save_strategy='no'"):
        callback.on_train_begin(trainer.args, state)  # type: ignore[arg-type]


def test_b4_callbacks_that_have_a_state_go_on_with_it(mgr: CheckpointManager) -> None:
    given = SCORED | {"restore_callback_states_from_checkpoint": True}
    training(mgr, EarlyStoppingCallback(3), scores=Scores(0.9, 0.8, 0.7), max_steps=6, **given)[0].train()
    resumed, callback = training(mgr, EarlyStoppingCallback(3), scores=Scores(0.6, 0.5), max_steps=20, **given)
    resumed.train(resume_from_checkpoint=callback.resume_from())
    assert resumed.state.global_step == 8


def test_b4_a_limit_leaves_what_other_branches_have(mgr: CheckpointManager) -> None:
    training(mgr)[0].train()
    other, callback = training(mgr, save_total_limit=1, max_steps=12)
    other.train(resume_from_checkpoint=callback.resume_from("step:8", branch="other"))
    assert steps(mgr) == [2, 4, 6, 8, 12]


def test_b4_a_checkpoint_is_there_until_the_first_step(mgr: CheckpointManager, tmp_path: Path) -> None:
    seen: list[list[Path]] = []

    class Looking(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            seen.append(list((tmp_path / "out").glob("moonclip-*/checkpoint-*/model.safetensors")))

    training(mgr, max_steps=4)[0].train()
    trainer, callback = training(mgr, Looking())
    trainer.train(resume_from_checkpoint=callback.resume_from())
    assert [len(paths) for paths in seen] == [1, 0, 0, 0]
    assert list((tmp_path / "out").iterdir()) == []


def test_b4_what_a_killed_run_left_is_removed_and_what_a_living_one_needs_is_not(tmp_path: Path) -> None:
    mine = Passing(tmp_path)

    def leave() -> None:
        held = Passing(tmp_path)
        (held.path / "model.safetensors").write_bytes(b"large")
        os.kill(os.getpid(), 9)

    os.waitpid(forked(leave), 0)
    assert len(list(tmp_path.iterdir())) == 2
    other = Passing(tmp_path)
    assert {mine.path, other.path} == set(tmp_path.iterdir())
    mine.clean_up()
    other.clean_up()
    other.clean_up()
    assert list(tmp_path.iterdir()) == []


def test_b4_a_commit_becomes_a_directory_that_transformers_loads(mgr: CheckpointManager, tmp_path: Path) -> None:
    trainer, _ = training(mgr)
    trainer.train()
    state = torch.get_rng_state()
    path = as_checkpoint(mgr, "main", tmp_path / "made")
    assert torch.equal(torch.get_rng_state(), state)
    assert path.name == "checkpoint-8"
    loaded = GPT2LMHeadModel.from_pretrained(path)
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    assert loaded.transformer.wte.weight is loaded.lm_head.weight
    with pytest.raises(Conflict):
        as_checkpoint(mgr, "main", tmp_path / "made")


def test_b4_save_model_writes_as_ever_if_a_person_calls_it(mgr: CheckpointManager, tmp_path: Path) -> None:
    trainer, _ = training(mgr, max_steps=1)
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_b4_an_adapter_is_trained_by_a_trainer(mgr: CheckpointManager) -> None:
    def net() -> Any:
        torch.manual_seed(1)
        return get_peft_model(model(), LoraConfig(target_modules=["c_attn"], r=2, fan_in_fan_out=True))

    unbroken, _ = training(mgr, net=net())
    unbroken.train()
    resumed, callback = training(mgr, net=net())
    resumed.train(resume_from_checkpoint=callback.resume_from("step:4", branch="other"))
    assert losses(resumed) == losses(unbroken)


class Net(torch.nn.Module):
    """A model of nobody's library."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(8, 1)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.head(input_ids.float() / 32) - labels.float().mean()).square().mean()}


def test_b4_a_model_without_configuration_and_metrics_of_numpy_are_saved(mgr: CheckpointManager) -> None:
    class Metrics(Scores):
        def __call__(self, given: Any) -> dict[str, Any]:
            return {"score": np.float64(super().__call__(given)["score"]), "seen": np.float32(3)}

    unbroken, _ = training(mgr, net=Net(), scores=Metrics(0.1, 0.5), **SCORED)
    unbroken.train()
    assert mgr.describe("best").snapshot.metadata["eval_score"] == 0.5
    assert "files" not in mgr.describe("best").snapshot.items
    resumed, callback = training(mgr, net=Net(), scores=Scores(), **SCORED)
    resumed.train(resume_from_checkpoint=callback.resume_from("best", branch="other"))
    assert losses(resumed) == losses(unbroken)


def test_b4_a_damaged_tip_is_passed_over(mgr: CheckpointManager) -> None:
    unbroken, _ = training(mgr)
    unbroken.train()
    mgr.close()
    damage(mgr.root, "lm_head.weight", "step:8")
    with CheckpointManager(mgr.root, async_save=False) as again:
        resumed, callback = training(again)
        with pytest.raises(Corrupt):
            callback.resume_from("step:8")
        resumed.train(resume_from_checkpoint=callback.resume_from())
        assert again.resumed is not None
        assert len(again.resumed.skipped) == 1
        assert losses(resumed) == losses(unbroken)
        assert [snapshot.step for snapshot in again.log()] == [8, 6, 4, 2]


def test_b4_true_goes_on_from_the_newest_commit_or_begins(mgr: CheckpointManager) -> None:
    class Other(Trainer):
        """Somebody's own."""

    class Tuning(WithoutFiles, Other):
        """The same without files."""

    training(mgr, kind=Tuning, max_steps=4)[0].train(resume_from_checkpoint=True)
    training(mgr, kind=Tuning)[0].train(resume_from_checkpoint=True)
    assert steps(mgr) == [2, 4, 6, 8]


def test_b4_an_old_commit_needs_a_branch_to_go_on(mgr: CheckpointManager) -> None:
    trainer, callback = training(mgr)
    assert callback.resume_from() is None
    trainer.train()
    with pytest.raises(Conflict, match="branch off"):
        callback.resume_from("step:4")


def test_b4_a_trainer_that_would_save_nothing_is_refused(mgr: CheckpointManager) -> None:
    trainer, callback = training(mgr)
    trainer.remove_callback(callback)
    with pytest.raises(Incompatible, match="nothing is saved"):
        trainer.train()


def test_b4_files_of_a_commit_stay_in_the_directory(tmp_path: Path) -> None:
    put_files(tmp_path / "made", {"a/b.json": b"{}"})
    assert (tmp_path / "made" / "a" / "b.json").read_bytes() == b"{}"
    for name in ("../outside", str(tmp_path / "outside")):
        with pytest.raises(Unsafe, match="leads out"):
            put_files(tmp_path / "made", {name: b""})
    assert not (tmp_path / "outside").exists()


def test_b4_several_processes_are_refused(mgr: CheckpointManager) -> None:
    with pytest.raises(Incompatible, match="one process"):
        MoonclipCallback(mgr).on_train_begin(SimpleNamespace(world_size=2), None, None)  # type: ignore[arg-type]
