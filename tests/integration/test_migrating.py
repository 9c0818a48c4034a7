"""Checkpoints of other libraries, brought into a store."""

import json
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from moonclip import CheckpointManager
from moonclip.migrating.committing import commit
from moonclip.migrating.detecting import source_at
from moonclip.migrating.migrate import Step, migrate, plan
from moonclip.migrating.verifying import verify
from moonclip.state.flattening import flatten
from moonclip.state.items import flattened
from moonclip.state.policy import SAFE
from store.disk.calls import Disk
from store.disk.files import Files
from store.errors import Corrupt, Incompatible, NotFound, Unsafe
from store.repository import Repository
from tests.state_trip import stored

Make = Callable[[Path, int], None]


def trained(step: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(step)
    model = torch.nn.Sequential(torch.nn.Linear(7, 200), torch.nn.LayerNorm(200), torch.nn.Linear(200, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 7)).sum().backward()
    optimizer.step()
    return model, optimizer


def states(step: int) -> dict[str, Any]:
    model, optimizer = trained(step)
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def same(one: Any, other: Any) -> bool:
    return stored(flatten(one)) == stored(flatten(other))


def torch_files(root: Path, step: int) -> None:
    root.mkdir(exist_ok=True)
    torch.save({**states(step), "step": step, "loss": 1 / step}, root / f"step_{step}.pt")


def lightning(root: Path, step: int) -> None:
    (root / "version_0" / "checkpoints").mkdir(parents=True, exist_ok=True)
    found = states(step)
    torch.save(
        {
            "epoch": 1,
            "global_step": step,
            "pytorch-lightning_version": "2.5",
            "state_dict": found["model"],
            "optimizer_states": [found["optimizer"]],
            "lr_schedulers": [{"last_epoch": 1}, {"last_epoch": 2}],
            "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(0.5)}},
            "hyper_parameters": OrderedDict(lr=0.1),
        },
        root / "version_0" / "checkpoints" / f"epoch=1-step={step}.ckpt",
    )


def hugging_face(root: Path, step: int) -> None:
    directory = root / f"checkpoint-{step}"
    directory.mkdir(parents=True)
    found = states(step)
    tensors = {name: tensor.contiguous() for name, tensor in found["model"].items()}
    first, *others = tensors
    save_file({first: tensors[first]}, directory / "model-00001-of-00002.safetensors")
    save_file({name: tensors[name] for name in others}, directory / "model-00002-of-00002.safetensors")
    where = {first: "model-00001-of-00002.safetensors"} | dict.fromkeys(others, "model-00002-of-00002.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    torch.save(found["optimizer"], directory / "optimizer.pt")
    torch.save({"last_epoch": step}, directory / "scheduler.pt")
    torch.save(
        {"python": (3, (1, 2), None), "numpy": np.random.default_rng(0).normal(size=3)}, directory / "rng_state.pth"
    )
    (directory / "training_args.bin").write_bytes(pickle.dumps(Path("somewhere")))
    history = [{"loss": 1 / step, "epoch": 0.5, "step": step}, {"eval_time": 3.0, "step": step}]
    (directory / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": history}))


def torch_checkpointing(root: Path, step: int) -> None:
    directory = root / f"{step:06d}"
    directory.mkdir(parents=True)
    for item, state in {**states(step), "step": step}.items():
        torch.save(state, directory / f"{item}_0.pt")
    (directory / "conf_0.json").write_text('{"lr": [0.1, null]}')
    (directory / "notes.txt").write_bytes(b"text")


def migrated(place: Path, store: Path) -> list[Step]:
    """What a run commits."""
    source = source_at(place, None)
    repo = Repository.open(store) if store.exists() else None
    steps = plan(source, place, repo, "main")
    if repo is not None:
        repo.close()
    done = list(migrate(source, place, store, "main", steps))
    source.close()
    return done


@pytest.mark.parametrize("make", [torch_files, lightning, hugging_face, torch_checkpointing])
def test_each_kind_comes_bit_for_bit_in_the_order_of_its_steps(make: Make, tmp_path: Path) -> None:
    place, store = tmp_path / "source", tmp_path / "store"
    for step in (10, 9, 100):
        make(place, step)
    assert [step.found.step for step in migrated(place, store)] == [9, 10, 100]
    with CheckpointManager(store) as manager:
        assert [snapshot.step for snapshot in manager.list_snapshots()] == [9, 10, 100]
        for step in (9, 10, 100):
            loaded = manager.load(f"step:{step}")
            assert same(dict(sorted(loaded["model"].items())), dict(sorted(states(step)["model"].items())))
            assert same(loaded["optimizer"], states(step)["optimizer"])
        origin = manager.list_snapshots()[0].metadata["migrated"]
        assert origin["source"] == str(place.resolve())
        assert origin["time_ns"] == next(found.time_ns for found in source_at(place, None).found() if found.step == 9)
        assert manager.fsck(full=True).clean
    assert migrated(place, store) == []
    make(place, 200)
    assert [step.found.step for step in migrated(place, store)] == [200]


def test_what_was_migrated_resumes_a_run(tmp_path: Path) -> None:
    lightning(tmp_path / "run", 50)
    migrated(tmp_path / "run", tmp_path / "store")
    model, optimizer = trained(1)
    with CheckpointManager(tmp_path / "store") as manager:
        assert manager.resume(model=model, optimizer=optimizer) == 51
    assert same(dict(model.state_dict()), dict(states(50)["model"]))


def test_items_metadata_and_files_of_each_kind(tmp_path: Path) -> None:
    lightning(tmp_path / "lightning", 50)
    hugging_face(tmp_path / "hf", 50)
    torch_checkpointing(tmp_path / "tc", 50)
    torch_files(tmp_path / "pt", 50)
    torch.save(states(60)["model"], tmp_path / "pt" / "weights-60.pth")
    for name in ("lightning", "hf", "tc", "pt"):
        migrated(tmp_path / name, tmp_path / f"{name}.store")
    with CheckpointManager(tmp_path / "lightning.store") as manager:
        loaded = manager.load("main")
        assert loaded.keys() == {"model", "optimizer", "scheduler_0", "scheduler_1", "trainer"}
        assert loaded["trainer"]["hyper_parameters"] == OrderedDict(lr=0.1)
        assert manager.list_snapshots()[0].metadata["epoch"] == 1
    with CheckpointManager(tmp_path / "hf.store") as manager, Repository.open(tmp_path / "hf.store") as repo:
        assert manager.load("main").keys() == {"model", "optimizer", "scheduler", "files"}
        assert manager.list_snapshots()[0].metadata["loss"] == 0.02
        files = repo.at("main").files
        assert files.keys() == {"rng_state.pth", "trainer_state.json", "training_args.bin"}
        for path, file in files.items():
            assert file.read() == (tmp_path / "hf" / "checkpoint-50" / path).read_bytes()
    with CheckpointManager(tmp_path / "tc.store") as manager:
        loaded = manager.load("main")
        assert (loaded["step"], loaded["conf"], loaded["files"]) == (50, {"lr": [0.1, None]}, {"notes.txt": b"text"})
    with CheckpointManager(tmp_path / "pt.store") as manager:
        assert manager.load("step:50")["loss"] == manager.list_snapshots()[0].metadata["loss"] == 0.02
        assert same(dict(manager.load("step:60")["model"]), dict(states(60)["model"]))


def test_a_damaged_checkpoint_ends_it_and_the_next_run_goes_on_there(tmp_path: Path) -> None:
    place, store = tmp_path / "source", tmp_path / "store"
    for step in (1, 2, 3):
        torch_files(place, step)
    whole = (place / "step_2.pt").read_bytes()
    (place / "step_2.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Corrupt, match=r"step_2\.pt is not what torch.save writes"):
        migrated(place, store)
    with CheckpointManager(store) as manager:
        assert [snapshot.step for snapshot in manager.list_snapshots()] == [1]
    (place / "step_2.pt").write_bytes(whole)
    assert [step.found.step for step in migrated(place, store)] == [2, 3]


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("was-run"),))


def test_nothing_is_run_that_a_checkpoint_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source").mkdir()
    torch.save({"model": Evil()}, tmp_path / "source" / "step_1.pt")
    with pytest.raises(Unsafe, match="reading that runs code"):
        migrated(tmp_path / "source", tmp_path / "store")
    assert not (tmp_path / "was-run").exists()


def test_shards_of_several_ranks_are_refused(tmp_path: Path) -> None:
    torch_checkpointing(tmp_path / "source", 1)
    torch.save({}, tmp_path / "source" / "000001" / "model_1.pt")
    with pytest.raises(Incompatible, match="was saved by several ranks"):
        migrated(tmp_path / "source", tmp_path / "store")


def test_a_lightning_checkpoint_without_a_step_in_its_name_is_looked_into(tmp_path: Path) -> None:
    lightning(tmp_path, 70)
    directory = tmp_path / "version_0" / "checkpoints"
    (directory / "epoch=1-step=70.ckpt").rename(directory / "last.ckpt")
    (found,) = source_at(tmp_path, None).found()
    assert (found.name, found.step) == ("version_0/checkpoints/last.ckpt", 70)


@pytest.mark.parametrize(("make", "name"), [(hugging_face, "checkpoint-8"), (torch_checkpointing, "000008")])
def test_one_directory_that_is_a_checkpoint_will_do(make: Make, name: str, tmp_path: Path) -> None:
    make(tmp_path / "run", 8)
    (step,) = migrated(tmp_path / "run" / name, tmp_path / "store")
    assert (step.found.name, step.found.step) == (name, 8)
    with CheckpointManager(tmp_path / "store") as manager:
        assert same(dict(sorted(manager.load("main")["model"].items())), dict(sorted(states(8)["model"].items())))


def test_a_first_step_is_no_rank(tmp_path: Path) -> None:
    torch_files(tmp_path / "source", 3)
    (tmp_path / "source" / "step_3.pt").rename(tmp_path / "source" / "step_0.pt")
    assert [found.step for found in source_at(tmp_path / "source", None).found()] == [0]


def test_what_has_no_step_is_passed_over_and_told(tmp_path: Path) -> None:
    torch_files(tmp_path / "source", 3)
    torch.save({}, tmp_path / "source" / "best.pt")
    source = source_at(tmp_path / "source", None)
    assert (source.passed_over, [found.name for found in source.found()]) == (["best.pt"], ["step_3.pt"])


def test_other_directories_are_no_sources(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"")
    with pytest.raises(NotFound, match="holds no checkpoints that can be migrated"):
        source_at(tmp_path, None)
    with pytest.raises(NotFound, match="there is no directory"):
        source_at(tmp_path / "nowhere", None)


class Garbling(Disk):
    """Gives back other bits than it was given, of one large tensor, as a failing disk may."""

    def pread_into(self, fd: int, out: memoryview, offset: int) -> int:
        count = super().pread_into(fd, out, offset)
        if count > 100_000:
            out[count // 2] ^= 1
        return count

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        data = bytearray(size_bytes)
        count = self.pread_into(fd, memoryview(data), offset)
        return bytes(data[:count])


def test_what_cannot_be_read_back_is_not_committed(tmp_path: Path) -> None:
    tensor = torch.from_numpy(np.random.default_rng(0).integers(0, 255, 300_000, np.uint8))
    with Repository.init(tmp_path / "store", files=Files(Garbling())) as repo:
        commit(repo, "main", {"small": torch.ones(3)}, 1, {})
        with pytest.raises(Corrupt):
            commit(repo, "main", {"large": tensor}, 2, {})
        assert [row.step for row in repo.log([repo.resolve("main")])] == [1]
    with Repository.open(tmp_path / "store") as repo:
        commit(repo, "main", {"large": tensor}, 2, {})
        assert [row.step for row in repo.log([repo.resolve("main")])] == [2, 1]


def test_a_commit_that_differs_in_one_bit_is_found(tmp_path: Path) -> None:
    tensor = torch.arange(1000, dtype=torch.float32)
    items = {"model": {"w": tensor, "tied": tensor, "n": 1}, "epoch": 2}
    flipped = tensor.clone()
    flipped.view(torch.int32)[500] ^= 1
    with Repository.init(tmp_path / "store") as repo:
        made = commit(repo, "main", items, None, {})
        verify(repo, made, flattened(items, SAFE))
        for wrong, told in (
            ({"w": flipped, "tied": flipped, "n": 1}, "model::tied, model::w;"),
            ({"w": tensor, "tied": tensor.clone(), "n": 1}, "which names are one tensor"),
            ({"w": tensor, "tied": tensor, "n": True}, "model::n;"),
            ({"w": tensor, "tied": tensor}, "model::n;"),
            ({"w": tensor.view(10, 100), "tied": tensor, "n": 1}, "model::w"),
        ):
            with pytest.raises(Corrupt, match=told):
                verify(repo, made, flattened({**items, "model": wrong}, SAFE))
        with pytest.raises(Corrupt, match="stored: epoch;"):
            verify(repo, made, flattened({"model": items["model"]}, SAFE))


def checkpoint_of_trainer(root: Path, **files: str | bytes) -> Path:
    directory = root / "checkpoint-5"
    directory.mkdir(parents=True)
    save_file({"w": torch.ones(2)}, directory / "model.safetensors")
    for name, content in files.items():
        path = directory / name.replace("__", ".")
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


@pytest.mark.parametrize("text", ["[]", '{"log_history": 5}', '{"log_history": [1, "loss"]}', '{"log_history": {}}'])
def test_a_trainers_log_of_another_form_tells_nothing(text: str, tmp_path: Path) -> None:
    place = checkpoint_of_trainer(tmp_path / "source", trainer_state__json=text)
    assert [step.found.step for step in migrated(place, tmp_path / "store")] == [5]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[]", Corrupt),
        ("{}", Corrupt),
        ('{"weight_map": {"a": 5}}', Corrupt),
        ('{"weight_map": {"a": "b"}}', Corrupt),
        ('{"weight_map": {"a": "../../b"}}', Unsafe),
        ('{"weight_map": {"a": "\\ud800"}}', Unsafe),
        ("[" * 100_000, Corrupt),
    ],
)
def test_an_index_of_another_form_is_refused(text: str, error: type[Exception], tmp_path: Path) -> None:
    place = checkpoint_of_trainer(tmp_path / "source", trainer_state__json="{}", model__safetensors__index__json=text)
    with pytest.raises(error, match=r"index\.json"):
        migrated(place, tmp_path / "store")


def test_a_lightning_checkpoint_of_another_form_is_kept_as_it_is(tmp_path: Path) -> None:
    place = tmp_path / "source"
    (place / "sharded.ckpt").mkdir(parents=True)
    torch.save({"optimizer_states": {"a": 1}, "lr_schedulers": 5, "state_dict": 3}, place / "step=3.ckpt")
    assert [step.found.name for step in migrated(place, tmp_path / "store")] == ["step=3.ckpt"]
    with CheckpointManager(tmp_path / "store") as manager:
        assert manager.load("main") == {"model": 3, "trainer": {"optimizer_states": {"a": 1}, "lr_schedulers": 5}}


def test_a_number_that_is_no_step_is_none(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    torch.save({"w": torch.ones(2)}, tmp_path / "source" / f"{10**25}.pt")
    source = source_at(tmp_path / "source", None)
    assert (source.found(), list(source.passed_over)) == ([], [f"{10**25}.pt"])


def test_an_optimizers_state_alone_is_one_item_as_import_makes_it(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    torch.save(trained(1)[1].state_dict(), tmp_path / "source" / "step_1.pt")
    migrated(tmp_path / "source", tmp_path / "store")
    with CheckpointManager(tmp_path / "store") as manager:
        assert manager.load("main").keys() == {"optimizer"}


def test_metadata_that_somebody_else_calls_migrated_is_passed_over(tmp_path: Path) -> None:
    torch_files(tmp_path / "source", 1)
    with CheckpointManager(tmp_path / "store", async_save=False) as manager:
        place = str((tmp_path / "source").resolve())
        manager.save(step=0, model={"w": torch.ones(1)}, metadata={"migrated": {"source": place}})
    assert [step.found.step for step in migrated(tmp_path / "source", tmp_path / "store")] == [1]
