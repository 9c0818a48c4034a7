"""Lightning's trainer saves to a store and loads from it, by its own means."""

import os
import runpy
import signal
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning.pytorch
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.utils.data import DataLoader, TensorDataset

from moonclip import CheckpointManager, Corrupt, Incompatible, Keep, NotFound, Pruned
from moonclip.integrations.lightning import Generators, StoreCheckpoint, StoreIO
from moonclip.integrations.lightningtwins import base
from store.format.entries import TensorEntry
from store.repository import Repository
from tests.arrays import damage
from tests.integrations.lightning_trials import Batches
from tests.launching import ROOT

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning warns of its own ways

Trainer: Any = lightning.pytorch.Trainer


class Steps:
    """A module of either package."""

    save_hyperparameters: Any
    log: Any
    parameters: Any

    def __init__(self, width: int = 8, **more: Any) -> None:  # kept as hyper-parameters
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Dropout(0.2), torch.nn.Linear(width, 1))

    def training_step(self, batch: Any, _: int) -> Any:
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", self.net(batch[0]).square().mean())

    def test_step(self, batch: Any, index: int) -> None:
        self.log("test_loss", self.net(batch[0]).square().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


class Net(Steps, lightning.pytorch.LightningModule): ...


class Twin(Steps, pytorch_lightning.LightningModule): ...


def batches() -> Any:
    data = torch.randn(16, 4, generator=torch.Generator().manual_seed(3))
    return DataLoader(TensorDataset(data), 4, shuffle=True)


def trainer(io: StoreIO, *callbacks: Any, epochs: int = 2, kind: Any = Trainer, **options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return kind(max_epochs=epochs, plugins=[io], callbacks=[*callbacks], **quiet, **options)


@pytest.fixture
def io(tmp_path: Path) -> Any:
    made = StoreIO(tmp_path / "store", async_save=False)
    yield made
    made.close()


class Begins(base("callbacks", "Callback")):  # both packages take it
    def on_train_start(self, trainer: Any, *_: Any) -> None:
        self.step = trainer.global_step


def equal(one: Any, other: Any) -> bool:
    """Whether two structures are of the same types and values, in whatever order their keys are at the top."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return bool(torch.equal(one, other) and one.dtype == other.dtype)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def test_b4_what_a_trainer_gathers_comes_back_as_it_was(io: StoreIO, tmp_path: Path) -> None:
    run = trainer(io, ModelCheckpoint(tmp_path / "run", monitor="val_loss"), Generators())
    run.fit(Net(width=8, where=Path("a/b"), sizes=(1, 2), name="é"), batches(), batches())
    gathered = run._checkpoint_connector.dump_checkpoint(weights_only=False)
    run.save_checkpoint(tmp_path / "all.ckpt")
    found = io.load_checkpoint(tmp_path / "all.ckpt")
    gathered.pop("rng"), found.pop("rng")
    assert equal(found, gathered)
    assert isinstance(found["state_dict"], OrderedDict)
    assert found["state_dict"]._metadata == gathered["state_dict"]._metadata
    assert found["hyper_parameters"]["where"] == Path("a/b")
    assert found["pytorch-lightning_version"] == lightning.pytorch.__version__


@pytest.mark.parametrize("count", [0, 1, 2])
def test_b4_any_number_of_optimizers_and_names_of_wrapped_modules_come_back(io: StoreIO, count: int) -> None:
    weights = OrderedDict({"_orig_mod.a": torch.ones(2), "module.b": torch.zeros(3)})
    weights._metadata = {"": {"version": 1}}  # type: ignore[attr-defined] # as torch does
    states = [{"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}] * count
    given = {"state_dict": weights, "optimizer_states": states, "lr_schedulers": states, "model": "mine", "epoch": 1}
    io.save_checkpoint(given, "")
    assert equal(io.load_checkpoint("main"), given)


def test_b4_what_cannot_be_kept_is_named_and_nothing_is_saved(io: StoreIO, tmp_path: Path) -> None:
    run = trainer(io, epochs=1)
    run.fit(Net(), batches())
    run.lightning_module.hparams["metric"] = object()
    before = io.manager.head
    with pytest.raises(Incompatible, match=r"lightning: 'hyper_parameters/metric'.*object"):
        run.save_checkpoint(tmp_path / "x.ckpt")
    assert io.manager.head == before


def test_b4_only_the_best_and_the_last_keep_their_names(tmp_path: Path) -> None:
    io = StoreIO(tmp_path / "store", keep=Keep(last=1))
    checkpoint = ModelCheckpoint(tmp_path / "run", monitor="val_loss", save_top_k=2, save_last=True)
    run = trainer(io, checkpoint, epochs=5)
    run.fit(Net(), batches(), batches())
    here = {os.path.relpath(path, tmp_path) for path in (tmp_path / "run").iterdir()}
    named = {os.path.relpath(path, tmp_path) for path in [*checkpoint.best_k_models, checkpoint.last_model_path]}
    assert set(io.manager.tags()) == here == named
    assert len(named) == 3
    saved = {snapshot.step for snapshot in io.manager.log() if snapshot.step}
    assert saved == {4, 8, 12, 16, 20}
    first_of_last = next(snapshot.id for snapshot in io.manager.log() if snapshot.step == 4)
    with pytest.raises(Pruned):
        io.load_checkpoint(first_of_last)
    assert run.test(dataloaders=batches(), ckpt_path="best", verbose=False)
    io.close()


@pytest.mark.parametrize(("kind", "module"), [(Trainer, Net), (pytorch_lightning.Trainer, Twin)])
def test_b4_a_trainer_takes_any_revision(io: StoreIO, kind: Any, module: Any) -> None:
    trainer(io, StoreCheckpoint(2), epochs=2, kind=kind).fit(module(), batches())
    assert [snapshot.step for snapshot in io.manager.list_snapshots()] == [2, 4, 6, 8]
    for revision, step in [("main~2", 4), ("step:6", 6), (io.manager.head, 8)]:
        run = trainer(io, Begins(), StoreCheckpoint(100), epochs=3, kind=kind)
        run.fit(module(), batches(), ckpt_path=revision)
        assert run.callbacks[0].step == step
    with pytest.raises(NotFound, match="nowhere"):
        trainer(io, kind=kind).fit(module(), batches(), ckpt_path="nowhere")


def test_b4_a_path_is_found_without_its_file(io: StoreIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer(io, ModelCheckpoint(tmp_path / "run", save_last=True), epochs=1)
    run.fit(Net(), batches())
    (tmp_path / "run" / "last.ckpt").unlink()
    assert io.load_checkpoint(tmp_path / "run" / "last.ckpt")["global_step"] == 4
    monkeypatch.chdir(tmp_path)
    assert io.load_checkpoint("run/last.ckpt")["global_step"] == 4
    io.manager.delete_tag("run/epoch=0-step=4.ckpt")
    with pytest.raises(NotFound, match=r"stands for the tag 'run/epoch=0-step=4\.ckpt'"):
        io.load_checkpoint("run/epoch=0-step=4.ckpt")


def test_b4_last_may_be_a_link(io: StoreIO, tmp_path: Path) -> None:
    checkpoint = ModelCheckpoint(tmp_path / "run", save_last="link", save_top_k=1, monitor="loss")
    trainer(io, checkpoint, epochs=3).fit(Net(), batches())
    last = tmp_path / "run" / "last.ckpt"
    assert last.is_symlink()
    step = io.load_checkpoint(checkpoint.best_model_path)["global_step"]
    assert io.load_checkpoint(last)["global_step"] == step
    io.remove_checkpoint(last)
    assert not last.is_symlink()
    assert io.load_checkpoint(checkpoint.best_model_path)["global_step"] == step


def test_b4_files_of_lightnings_own_still_load(io: StoreIO, tmp_path: Path) -> None:
    Trainer(
        max_epochs=1, logger=False, enable_progress_bar=False, accelerator="cpu", default_root_dir=tmp_path,
        enable_model_summary=False, callbacks=[ModelCheckpoint(tmp_path / "files", save_last=True)],
    ).fit(Net(), batches())  # fmt: skip
    run = trainer(io, StoreCheckpoint(2), epochs=2)
    run.fit(Net(), batches(), ckpt_path=tmp_path / "files" / "last.ckpt")
    assert [snapshot.step for snapshot in io.manager.list_snapshots()] == [6, 8]


def test_b4_a_manager_and_lightning_read_each_others_commits(io: StoreIO, tmp_path: Path) -> None:
    run = trainer(io, ModelCheckpoint(tmp_path / "run", save_last=True), Generators(), epochs=1)
    run.fit(Net(), batches())
    net = Net()
    optimizer, scheduler = (each[0] for each in net.configure_optimizers())
    with CheckpointManager(tmp_path / "store") as mgr:
        start = mgr.resume(model=net, optimizer=optimizer, scheduler=scheduler, rng=True)
    assert start == 5
    assert equal(net.state_dict(), run.lightning_module.state_dict())
    assert equal(optimizer.state_dict()["state"], run.optimizers[0].state_dict()["state"])


def test_b4_the_best_has_a_tag_and_listings_show_its_metric(io: StoreIO, tmp_path: Path) -> None:
    checkpoint = StoreCheckpoint(100, monitor="val_loss")
    run = trainer(io, checkpoint, epochs=3)
    run.fit(Net(), batches(), batches())
    best = io.manager.describe("best").snapshot
    said = [snapshot.metadata["val_loss"] for snapshot in io.manager.list_snapshots()]
    assert said == sorted(said, reverse=True)  # each was better than the one before
    assert best.metadata["val_loss"] == said[-1]
    assert best.metadata["epoch"] in {0, 1, 2}
    assert run.test(dataloaders=batches(), ckpt_path="best", verbose=False)
    other = StoreCheckpoint(100, monitor="val_loss")
    trainer(io, other, epochs=3).fit(Net(), batches(), ckpt_path="best")
    assert other.best_model_path == "best"
    with pytest.raises(Incompatible, match="monitor='val_los' was not logged"):
        trainer(io, StoreCheckpoint(100, monitor="val_los"), epochs=1).fit(Net(), batches(), batches())


def test_b4_metadata_and_tags_are_taken_and_other_options_refused(io: StoreIO, tmp_path: Path) -> None:
    run = trainer(io, StoreCheckpoint(100), epochs=1)
    run.fit(Net(), batches())
    run.save_checkpoint(tmp_path / "a.ckpt", storage_options={"metadata": {"note": "good"}, "message": "why"})
    found = io.manager.describe("a.ckpt").snapshot
    assert (found.metadata["note"], found.message, found.step) == ("good", "why", 4)
    with pytest.raises(Incompatible, match="storage_options: mesage"):
        run.save_checkpoint(tmp_path / "b.ckpt", storage_options={"mesage": "why"})
    with pytest.raises(Incompatible, match="give a local dirpath"):
        run.save_checkpoint("s3://bucket/c.ckpt")


@pytest.mark.parametrize("name", ["run 1: a~b^?*[c", ".hidden", "a..b", "x.lock", "-a", "a@{1}", "100%", "é"])
def test_b4_any_directory_has_a_tag(name: str, io: StoreIO, tmp_path: Path) -> None:
    path = tmp_path / name / "epoch=0.ckpt"
    io.save_checkpoint({"global_step": 4}, path)
    other = tmp_path / name.replace("%", "%25") / "other.ckpt"
    io.save_checkpoint({"global_step": 5}, other)
    assert io.load_checkpoint(path)["global_step"] == 4
    path.unlink()
    assert io.load_checkpoint(path)["global_step"] == 4
    assert io.load_checkpoint("main~1")["global_step"] == 4
    assert len(io.manager.tags()) == 2
    io.remove_checkpoint(path)
    io.remove_checkpoint(other)
    io.teardown()
    assert io.manager.tags() == {}


def test_b4_a_failed_save_is_told_when_the_trainer_ends(tmp_path: Path) -> None:
    def refuse(snapshot: Any) -> None:
        raise ValueError(f"not {snapshot.step}")

    io = StoreIO(tmp_path / "store", pre_finalize=refuse)
    with pytest.raises(Exception, match="not 4"):
        trainer(io, ModelCheckpoint(tmp_path / "run", save_last=True), epochs=1).fit(Net(), batches())
    assert not (tmp_path / "run" / "last.ckpt").exists()
    assert io.resume() is None
    io.close()


def test_b4_a_shuffled_loader_goes_on_to_the_bit_after_an_epoch(tmp_path: Path) -> None:
    def fitted(io: StoreIO, epochs: int, path: Any) -> Any:
        torch.manual_seed(5)
        run = trainer(io, ModelCheckpoint(tmp_path / "run", save_last=True), Generators(), epochs=epochs)
        run.fit(Net(), batches(), batches(), ckpt_path=path)
        return run.lightning_module.state_dict()

    one = StoreIO(tmp_path / "one", async_save=False)
    unbroken = fitted(one, 3, None)
    for path in (tmp_path / "run").iterdir():
        path.unlink()
    two = StoreIO(tmp_path / "two", async_save=False)
    fitted(two, 2, None)
    torch.randn(7)
    assert equal(fitted(two, 3, "last"), unbroken)
    one.close(), two.close()


def test_b4_a_damaged_tip_is_passed_over(tmp_path: Path) -> None:
    io = StoreIO(tmp_path / "store", async_save=False)
    trainer(io, StoreCheckpoint(2), epochs=1).fit(Net(width=40), batches())
    whole, tip = (snapshot.id for snapshot in io.manager.list_snapshots())
    io.close()
    with Repository.open(tmp_path / "store", read_only=True) as repo:
        tree = dict(repo.tree(repo.commit(repo.resolve(tip)), "optimizer"))
        damage(repo, next(chunk for entry in tree.values() if isinstance(entry, TensorEntry) for chunk in entry.chunks))
    assert io.resume() == whole
    with pytest.raises(Corrupt):
        io.load_checkpoint(tip)
    run = trainer(io, StoreCheckpoint(2), epochs=2)
    run.fit(Net(width=40), batches(), ckpt_path=io.resume())
    assert [snapshot.step for snapshot in io.manager.list_snapshots()] == [2, 4, 6, 8]
    io.close()


def test_b4_a_step_of_several_batches_is_saved_once(io: StoreIO) -> None:
    for epochs in (1, 2):  # four batches and two steps each
        run = trainer(io, StoreCheckpoint(2), epochs=epochs, accumulate_grad_batches=2)
        run.fit(Net(), batches(), ckpt_path=io.resume())
    assert [snapshot.step for snapshot in io.manager.list_snapshots()] == [2, 4]


@pytest.mark.parametrize("stop", [2, 3])
def test_b9_sigterm_between_the_batches_of_a_step_loses_no_gradient(stop: int, tmp_path: Path) -> None:
    class Wide(Net):
        def __init__(self) -> None:
            super().__init__()
            self.net[0] = torch.nn.Linear(6, 8)

        def training_step(self, batch: Any, index: int) -> Any:
            return super().training_step([batch], index)

    class Stop(base("callbacks", "Callback")):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
            if index == stop:
                os.kill(os.getpid(), signal.SIGTERM)

    def fitted(io: StoreIO, *more: Any) -> Any:
        torch.manual_seed(5)
        run = trainer(io, StoreCheckpoint(100), Generators(), *more, epochs=2, accumulate_grad_batches=3)
        with suppress(SIGTERMException):
            run.fit(Wide(), Batches(), ckpt_path=io.resume())
        return run.lightning_module.state_dict()

    one, two = (StoreIO(tmp_path / name, async_save=False) for name in ("one", "two"))
    unbroken = fitted(one)
    assert not equal(fitted(two, Stop()), unbroken)
    assert len(list(two.manager.log())) == 1
    assert equal(fitted(two), unbroken)
    one.close(), two.close()


def test_b4_without_the_plugin_the_callback_says_what_is_missing(tmp_path: Path) -> None:
    run = Trainer(callbacks=[StoreCheckpoint(2)], accelerator="cpu", logger=False, default_root_dir=tmp_path)
    with pytest.raises(Incompatible, match=r"plugins=\[StoreIO"):
        run.fit(Net(), batches())


def test_b4_strategies_that_spawn_are_refused(io: StoreIO, tmp_path: Path) -> None:
    run = trainer(io, StoreCheckpoint(2), strategy="ddp_spawn", devices=2)
    with pytest.raises(Incompatible, match="use ddp"):
        run.callbacks[-1].setup(run, Net(), "fit")
    with pytest.raises(Incompatible, match="use ddp"):
        io.save_checkpoint({}, tmp_path / ".temp.ckpt")


@pytest.mark.slow
def test_b4_the_example_trains_and_branches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # which it sets
    example = str(ROOT / "examples" / "lightning_run.py")
    for arguments, branches in [((), {"main"}), (("--from", "step:40", "--branch", "lr3"), {"main", "lr3"})]:
        monkeypatch.setattr("sys.argv", [example, str(tmp_path), *arguments])
        runpy.run_path(example, run_name="__main__")
        listed = [line.split() for line in capsys.readouterr().out.splitlines() if line[:8].isalnum()]
        assert {line[1] for line in listed if line[1] in {"main", "lr3"}} == branches
    with CheckpointManager(tmp_path / "store") as mgr:
        assert {mgr.describe(name).snapshot.step for name in ("main", "lr3")} == {80}
