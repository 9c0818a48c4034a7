"""What a script of the Rust engine says means the same here: arguments, positions, names, and the environment."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from moonclip import CheckpointManager, Conflict, Incompatible, Keep, NotFound
from moonclip.managing.givens import placed, tensor_of
from moonclip.managing.rustwords import MoreArguments, understood
from moonclip.specs import ItemSpec
from store.disk.calls import NO_SYNC
from tests import preloaded
from tests.workers import no_large_file

PROJECT = Path(__file__).parents[2]


class Run:
    """A model, and what goes with it."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Linear(30, 20)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.5)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        self.model(torch.ones(1, 30)).sum().backward()
        self.optimizer.step()

    @property
    def objects(self) -> tuple[Any, ...]:
        return self.model, self.optimizer, self.scheduler

    def is_like(self, other: "Run") -> bool:
        moments = [run.optimizer.state[run.model.weight]["exp_avg"] for run in (self, other)]
        return torch.equal(self.model.weight, other.model.weight) and torch.equal(*moments)


# --- arguments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({}, None),
        ({"max_total_snapshots": 7}, Keep(last=7)),
        ({"max_total_snapshots": 0}, Keep(last=1)),
        ({"max_total_snapshots": 1, "max_full_snapshots": 9}, Keep(last=1)),
        ({"max_full_snapshots": 2}, Keep(last=22)),
        ({"max_full_snapshots": 2, "max_deltas_per_full": 0}, Keep(last=2)),
        ({"max_full_snapshots": 0, "max_deltas_per_full": 3}, Keep(last=1)),
        ({"max_deltas_per_full": 1}, Keep(last=10)),
        ({"max_total_snapshots": 3, "rollback_interval_steps": 500}, Keep(last=3, every=500)),
        ({"rollback_interval_steps": 500}, Keep(last=55, every=500)),
        ({"max_total_snapshots": 3, "rollback_interval_steps": 500, "max_rollback_snapshots": 0}, Keep(last=3)),
        ({"max_total_snapshots": 3, "rollback_interval_steps": 0}, Keep(last=3)),
        ({"max_total_snapshots": None}, None),
    ],
)
def test_a11_retention_in_their_words_always_keeps_the_newest(said: dict[str, Any], meant: Keep | None) -> None:
    assert understood("x", None, None, said).keep == meant


@pytest.mark.parametrize("name", ["max_total_snapshots", "max_full_snapshots", "rollback_interval_steps"])
@pytest.mark.parametrize("count", [-1, 2.5, "20", True])
def test_a11_retention_that_cannot_be_meant_drops_nothing(name: str, count: Any) -> None:
    with pytest.raises(Incompatible, match=f"{name} takes a whole number.*leave it out"):
        understood("x", None, None, {name: count})


@pytest.mark.parametrize(
    ("slip", "meant"), [("max_total_snapshot", "max_total_snapshots"), ("kep", "keep"), ("s3_buket", "s3_bucket")]
)
def test_a_slip_is_told_with_the_nearest_name(tmp_path: Path, slip: str, meant: str) -> None:
    slipped: dict[str, Any] = {slip: 3}
    with pytest.raises(TypeError, match=f"no keyword '{slip}'; was it '{meant}'"):
        CheckpointManager(tmp_path / "store", **slipped)
    assert not (tmp_path / "store").exists()


def test_an_item_that_looks_like_an_argument_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    net = torch.nn.Linear(2, 2)
    with CheckpointManager(tmp_path) as mgr:
        for step in range(2):
            mgr.save(step=step, model=net, metdata={"loss": 1}, tag="v1", steps=torch.ones(3), ema=net)
        mgr.save_best(3, 0.5, model=net, lower_is_beter=False)
        mgr.save_final(4, model=net, dead_line_s=5)
    told = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert told == [
        "save has no argument metdata=…",
        "save has no argument tag=…",
        "save_best has no argument lower_is_beter=…",
        "save_final has no argument dead_line_s=…",
    ]


def test_what_only_tunes_their_engine_is_passed_over_with_one_notice_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tuning: dict[str, Any] = {
        "compression_level": 3,
        "full_every_steps": 5000,
        "delta_max_ratio": 0.95,
        "merge_stride": 0,
        "merge_max_chain": 10,
        "keep_base_in_memory": True,
        "pin_device_copies": True,
    }
    with CheckpointManager(storage_root=str(tmp_path / "store"), **tuning) as mgr:
        mgr.save(1, torch.nn.Linear(2, 2)).result()
    told = [record.message for record in caplog.records]
    assert [text.partition(" ")[0] for text in told] == sorted(tuning)
    assert all("is passed over: " in text for text in told)


def test_no_argument_of_theirs_is_unknown(tmp_path: Path) -> None:
    assert len(MoreArguments.__annotations__) == 22
    with pytest.raises(TypeError, match="delta_threshold"):
        understood("x", None, None, {"delta_threshold": 0.5})
    with CheckpointManager(tmp_path, save_dtype="fp8", max_total_snapshots=2, async_save=False) as mgr:
        for step in range(4):
            mgr.save(step=step, model={"weight": torch.randn(400, 300)})
        assert [bool(each.absent) for each in mgr.list_snapshots()] == [True, True, False, False]
        assert mgr.describe_latest().tensors["model::weight"].stored_dtype == "float8_e4m3fn"


def test_what_is_said_twice_is_refused() -> None:
    with pytest.raises(Incompatible, match="root and storage_root"):
        understood("x", None, None, {"storage_root": "y"})
    with pytest.raises(Incompatible, match="keep and max_"):
        understood("x", Keep(last=1), None, {"max_total_snapshots": 2})


def test_nothing_said_is_a_store_where_they_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with CheckpointManager() as mgr:
        mgr.save(1, torch.nn.Linear(2, 2)).result()
    assert (tmp_path / "checkpoints" / "format").exists()


# --- positions ----------------------------------------------------------------------------------------------------


def test_objects_by_position_are_those_by_name(tmp_path: Path) -> None:
    run, fresh, again = Run(), Run(1), Run(2)
    with CheckpointManager(tmp_path) as mgr:
        assert mgr.resume(*fresh.objects) == 0
        saved = mgr.save(7, *run.objects, None, {"ema": Run(3).model, "seen": 5}, metadata={"loss": "0.5"})
        assert mgr.describe(saved).snapshot.items == ("extra", "model", "optimizer", "scheduler")
        assert mgr.resume(*fresh.objects) == 8
        assert fresh.is_like(run)
        assert mgr.last_resume_metadata == {"loss": "0.5"}
        for rev in (saved, 7, "main", saved.result()):
            assert mgr.load(rev, model=again.model, optimizer=again.optimizer)["model"] is again.model
            assert again.is_like(run)
        extra = mgr.load_latest()["extra"]
        assert torch.equal(extra["ema"]["weight"], Run(3).model.weight)
        assert extra["seen"] == 5
        mgr.load_latest(Run(4).model, None, again.scheduler)
        assert mgr.save(8, {"model": run.model}, extra={}).result()
        assert mgr.load_latest()["extra"] == {}


def test_state_dicts_by_position_are_the_objects_they_are_of(tmp_path: Path) -> None:
    run, fresh = Run(), Run(1)
    with CheckpointManager(tmp_path) as mgr:
        mgr.save(7, run.model.state_dict(), run.optimizer.state_dict())
        assert mgr.resume(fresh.model, fresh.optimizer) == 8
        assert fresh.is_like(run)


@pytest.mark.parametrize("number", [int, np.int64, torch.tensor])
def test_any_whole_number_is_a_step(tmp_path: Path, number: Any) -> None:
    run = Run()
    with CheckpointManager(tmp_path) as mgr:
        saved = mgr.save(number(7), run.model)
        assert mgr.load(number(7)).keys() == {"model"}
        assert mgr.pin(number(7)) == saved.result()
        assert mgr.resume(run.model, rev=number(7)) == mgr.resume(run.model, rev=saved) == 8


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as mgr:
        for odd in (torch.nn.Linear(2, 2), 5.0):
            with pytest.raises(Incompatible, match="a step is a whole number, not a"):
                mgr.save(odd, torch.nn.Linear(2, 2))  # type: ignore[call-overload,unused-ignore]
        with pytest.raises(Incompatible, match="a step is a whole number, not a str"):
            mgr.save(step="5", model=torch.nn.Linear(2, 2))  # type: ignore[arg-type]
        with pytest.raises(Incompatible, match="objects by position come after a step"):
            mgr.save("tag", {"ema": 1}, torch.nn.Linear(2, 2))
        for odd in (True, -1):
            with pytest.raises(Incompatible, match="named by text, a step"):
                mgr.load(odd)
        with pytest.raises(Incompatible, match="two steps, 5 and 6"):
            mgr.save(5, torch.nn.Linear(2, 2), step=6)
        with pytest.raises(Incompatible, match="given twice: model"):
            mgr.save(5, torch.nn.Linear(2, 2), model=torch.nn.Linear(2, 2))
        with pytest.raises(Incompatible, match="takes items by name"):
            mgr.save("tag", torch.nn.Linear(2, 2))
        with pytest.raises(Incompatible, match="give what follows by name"):
            mgr.resume(*[torch.nn.Linear(2, 2)] * 6)
        with pytest.raises(Incompatible, match="named by text, a step, or what save returned"):
            mgr.load(2.5)  # type: ignore[arg-type]
        with pytest.raises(NotFound):
            mgr.load(5)
        with pytest.raises(Incompatible, match="given twice: model"):
            mgr.load(5, torch.nn.Linear(2, 2), into={"model": torch.nn.Linear(2, 2)})
    assert placed((1, None, 3), {"x": 4}) == {"model": 1, "scheduler": 3, "x": 4}


def test_a_scheduler_that_was_never_saved_stays_unless_it_is_required(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, fresh = Run(), Run(1)
    with CheckpointManager(tmp_path) as mgr:
        mgr.save(7, run.model).result()
        assert mgr.resume(fresh.model, scheduler=fresh.scheduler, scaler=torch.amp.GradScaler("cpu")) == 8
        assert "has no scheduler: it stays" in caplog.text
        assert "has no scaler: it stays" in caplog.text
        with pytest.raises(Incompatible, match="optimizer: no such item"):
            mgr.resume(fresh.model, fresh.optimizer)
        with pytest.raises(Incompatible, match="scheduler: no such item"):
            mgr.load_latest(scheduler=fresh.scheduler)
    required = {"scheduler": ItemSpec(required=True)}
    with CheckpointManager(tmp_path, items=required) as mgr, pytest.raises(Incompatible, match="scheduler"):
        mgr.resume(fresh.model, scheduler=fresh.scheduler)


# --- names --------------------------------------------------------------------------------------------------------


def test_tensors_by_name_as_they_give_them(tmp_path: Path) -> None:
    weight = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    given = {
        "model/weight": ([2, 3], "bfloat16", weight.view(torch.uint8).numpy().tobytes()),
        "model/bias": torch.ones(2),
        "empty": ([0], "uint8", b""),
    }
    with CheckpointManager(tmp_path) as mgr:
        mgr.save_raw(3, given, {"source": "executor"})
        found = mgr.load_latest()["tensors"]
        assert torch.equal(found["model/weight"], weight)
        assert found["empty"].shape == (0,)
        assert mgr.describe_latest().snapshot.metadata == {"source": "executor"}
    for odd in (5, ([2], "float32", b"123"), ([2], "float31", b"12345678"), (2, 3)):
        with pytest.raises(Incompatible):
            tensor_of(odd)


def test_a11_pins_by_step_hold_against_every_retention_and_other_processes_pins_too(tmp_path: Path) -> None:
    sync: dict[str, Any] = {"async_save": False}
    with CheckpointManager(tmp_path, keep=Keep(last=1), **sync) as mgr, CheckpointManager(tmp_path) as other:
        mgr.save(0, torch.nn.Linear(2, 2)).result()
        other.pin(0, "from elsewhere")
        for step in range(1, 4):
            mgr.save(step, torch.nn.Linear(2, 2))
            if step == 2:
                mgr.pin(2)
        assert mgr.pinned_steps() == [0, 2]
        mgr.merge_now()
        mgr.gc()
        assert {each.step for each in mgr.list_snapshots() if not each.absent} == {0, 2, 3}
        for step in (0, 2, 3):
            assert mgr.load(step)
        mgr.unpin(2)
        mgr.prune(Keep(last=1))
        assert {each.step for each in mgr.list_snapshots() if not each.absent} == {0, 3}


def test_statistics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with CheckpointManager(tmp_path) as mgr:
        weight = torch.randn(400, 300)
        for step in range(3):
            mgr.save(step=step, model={"weight": weight})
        summed = mgr.stats()
        assert (summed.commit_count, summed.tensor_bytes) == (3, 3 * 480_000)
        assert summed.shared_bytes == 2 * 480_000
        mgr.print_stats()
    told = capsys.readouterr().out
    assert "was stored already" in told
    assert "3 commits" in told


def test_a19_the_wait_for_the_queue_and_the_copying_are_told_apart(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as mgr:
        mgr.save(step=0, model={"weight": torch.randn(3000, 300)}).result()
        assert mgr.last_queue_wait() * 1e9 == mgr.last_wait_ns
        blocked_ns = mgr.last_blocked_ns
        assert blocked_ns > 0
        first = mgr.save(step=1, model={"weight": torch.randn(3000, 300)})
        second = mgr.save(step=2, model={"weight": torch.randn(3000, 300)})
        assert first.done()  # the second waited for it, and says how long
        assert second.result()
        assert second.profile["wait"] == pytest.approx(mgr.last_queue_wait(), rel=0.5, abs=0.01)


def test_live_state_as_files_of_other_tools(tmp_path: Path) -> None:
    run = Run()
    tied = torch.nn.ModuleDict({"embed": torch.nn.Linear(4, 4, bias=False), "head": torch.nn.Linear(4, 4, bias=False)})
    tied["head"].weight = tied["embed"].weight
    with CheckpointManager(tmp_path / "store") as mgr:
        assert mgr.save_to_pt(tmp_path / "all.pt", *run.objects) == str(tmp_path / "all.pt")
        mgr.save_to_safetensors(str(tmp_path / "tied.safetensors"), model=tied, metadata={"of": "test"})
        with pytest.raises(Incompatible, match="nothing to write"):
            mgr.save_to_pt(tmp_path / "none.pt")
        with pytest.raises(Incompatible, match="no tensor"):
            mgr.save_to_safetensors(tmp_path / "none.safetensors", {"lr": 0.5})
        assert mgr.head is None
    loaded = torch.load(tmp_path / "all.pt", weights_only=True)
    assert loaded.keys() == {"model", "optimizer", "scheduler"}
    assert torch.equal(loaded["model"]["weight"], run.model.weight)
    tensors = load_file(tmp_path / "tied.safetensors")
    assert torch.equal(tensors["head.weight"], tensors["embed.weight"])
    with safe_open(tmp_path / "tied.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "of": "test"}
    assert {path.name for path in tmp_path.iterdir()} == {"store", "all.pt", "tied.safetensors"}


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(b"old")

    class Broken:
        def state_dict(self) -> dict[str, Any]:
            return {"it": lambda: None}

    with CheckpointManager(tmp_path / "store") as mgr, pytest.raises(Exception, match="pickle"):
        mgr.save_to_pt(tmp_path / "x.pt", broken=Broken())
    assert (tmp_path / "x.pt").read_bytes() == b"old"
    assert {path.name for path in tmp_path.iterdir()} == {"store", "x.pt"}


def test_live_state_is_written_as_it_looks_and_objects_in_extra_by_their_state(tmp_path: Path) -> None:
    lazy = torch.tensor([1 + 2j, 3 + 4j]).conj()
    with CheckpointManager(tmp_path / "store") as mgr:
        mgr.save_to_safetensors(tmp_path / "x.safetensors", {"conj": lazy, "neg": lazy.imag})
        mgr.save_to_pt(tmp_path / "x.pt", Run().model, extra={"ema": Run(3).model, "seen": 5})
        with pytest.raises(Incompatible, match="z is sparse"):
            mgr.save_to_safetensors(tmp_path / "x.safetensors", {"z": torch.eye(3).to_sparse()})
    found = load_file(tmp_path / "x.safetensors")
    assert torch.equal(found["conj"], lazy.resolve_conj())
    assert torch.equal(found["neg"], torch.tensor([-2.0, -4.0]))
    extra = torch.load(tmp_path / "x.pt", weights_only=True)["extra"]
    assert torch.equal(extra["ema"]["weight"], Run(3).model.weight)


def test_a_live_file_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    large = {"weight": torch.randn(1_000_000)}
    with CheckpointManager(tmp_path / "store") as mgr:
        for path in (tmp_path / "none" / "x", tmp_path / "x"):
            with no_large_file(os.getpid()):
                for write in (mgr.save_to_pt, mgr.save_to_safetensors):
                    with pytest.raises(OSError, match="x"):
                        write(path, large)
    assert {path.name for path in tmp_path.iterdir()} == {"store"}


def test_a_tensor_that_is_spread_over_ranks_is_in_no_live_file(tmp_path: Path) -> None:
    spread = torch.ones(4)
    with CheckpointManager(tmp_path / "store") as mgr, spread_over_ranks(tmp_path, spread) as tensor:
        for write in (mgr.save_to_pt, mgr.save_to_safetensors):
            with pytest.raises(Incompatible, match="spread over ranks"):
                write(tmp_path / "x", {"inner": tensor})


@contextmanager
def spread_over_ranks(directory: Path, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    dist.init_process_group("gloo", init_method=f"file://{directory / 'meet'}", rank=0, world_size=1)
    try:
        yield distribute_tensor(tensor, init_device_mesh("cpu", (1,)), [Shard(0)])
    finally:
        dist.destroy_process_group()


# --- the environment ----------------------------------------------------------------------------------------------

SAVING = """
import logging, sys, torch
from moonclip import CheckpointManager
with CheckpointManager(sys.argv[1], compression_level=3) as mgr:
    mgr.save(1, torch.nn.Linear(2, 2)).result()
    logging.getLogger("store.saving").debug("in detail")
"""


def saved(root: Path, script: str = SAVING, **environment: str) -> "subprocess.CompletedProcess[str]":
    known = {name: value for name, value in os.environ.items() if not name.startswith("MOONCLIP_")}
    return preloaded.run("-c", script, str(root), environment=known | environment)


NOTICE = "moonclip: compression_level is passed over: how a chunk is compressed is chosen by what it holds\n"


@pytest.mark.parametrize(
    ("level", "told"),
    [
        ("", NOTICE.removeprefix("moonclip: ")),
        ("warning", NOTICE),
        ("DEBUG", f"{NOTICE}store.saving: in detail\n"),
        ("off", ""),
    ],
)
def test_how_much_is_logged(tmp_path: Path, level: str, told: str) -> None:
    done = saved(tmp_path / "store", MOONCLIP_LOG=level)
    assert (done.returncode, done.stderr) == (0, told)


def test_a_program_that_has_set_up_logging_hears_all_once(tmp_path: Path) -> None:
    script = f"import logging; logging.basicConfig(format='%(message)s here')\n{SAVING}"
    done = saved(tmp_path / "store", script, MOONCLIP_LOG="warn")
    assert done.stderr == NOTICE.removeprefix("moonclip: ").replace("\n", " here\n")


def test_a_level_that_there_is_not_is_named(tmp_path: Path) -> None:
    done = saved(tmp_path / "store", MOONCLIP_LOG="loud")
    assert done.returncode == 1
    assert "MOONCLIP_LOG is 'loud'; it must be one of debug, info" in done.stderr
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(("told", "is_printed"), [("", False), ("0", False), ("1", True)])
def test_phases_are_printed_if_that_is_asked_for(tmp_path: Path, told: str, is_printed: bool) -> None:
    assert ("the save of step 1" in saved(tmp_path / "store", MOONCLIP_PROFILE=told).stderr) == is_printed


COUNTING = """
import os, sys, torch
synced = []
real = os.fsync
os.fsync = lambda fd: (synced.append(fd), real(fd))
from moonclip import CheckpointManager
with CheckpointManager(sys.argv[1], async_save=False) as mgr:
    mgr.save(1, torch.nn.Linear(2, 2))
print(len(synced))
"""


def test_syncs_can_be_turned_off_which_is_said_once(tmp_path: Path) -> None:
    safe = saved(tmp_path / "safe", COUNTING)
    assert int(safe.stdout) > 0
    assert safe.stderr == ""
    unsafe = saved(tmp_path / "unsafe", COUNTING, **{NO_SYNC: "0"})
    assert (unsafe.returncode, int(unsafe.stdout)) == (0, 0)
    assert unsafe.stderr.count("UNSAFE: MOONCLIP_FSYNC=0") == 1
    with CheckpointManager(tmp_path / "unsafe") as mgr:
        assert mgr.fsck(full=True).clean


def test_a_tag_is_not_moved_by_a_name_alone(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as mgr:
        mgr.save("nightly", {"x": 1}).result()
        with pytest.raises(Conflict):
            mgr.save("nightly", {"x": 2})
