"""``save_best``: a tag that moves to whatever is better, and is remembered by the store."""

import math
import random
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from moonclip import CheckpointManager, Conflict, Incompatible, Keep, SaveFailed
from store.ids import CommitId, from_hex
from store.naming.tags import Better, set_tag
from store.repository import Repository
from tests.workers import no_large_file, only_worker


def model(value: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((300,), value)}


def best(mgr: CheckpointManager, tag: str = "best") -> Any:
    return mgr.load(tag)["model"]["weight"][0].item()


def save(mgr: CheckpointManager, step: int, metric: float, **named: Any) -> bool:
    """Whether a metric was saved as the best."""
    return mgr.save_best(step, metric, model=model(step), **named) is not None


def test_a18_the_tag_moves_to_what_is_better_and_the_next_process_knows(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as mgr:
        assert [save(mgr, step, metric) for step, metric in enumerate([3.0, 2.0, 2.5, 2.0])] == [
            True,
            True,
            False,
            False,
        ]
    with CheckpointManager(tmp_path) as mgr:
        assert best(mgr) == 1
        assert not save(mgr, 4, 2.0)
        assert save(mgr, 5, 1.75)
        assert best(mgr) == 5
        assert [each.step for each in mgr.list_snapshots()] == [0, 1, 5]
        described = mgr.describe("best").snapshot
        assert (described.tags, described.metadata) == (("best",), {"val_loss": 1.75, "best_by": "lower val_loss"})


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, torch.tensor(math.nan)])
def test_a18_what_is_no_finite_number_never_is_best(tmp_path: Path, odd: Any, caplog: pytest.LogCaptureFixture) -> None:
    with CheckpointManager(tmp_path) as mgr:
        assert not save(mgr, 0, odd)
        assert "never best" in caplog.text
        assert (mgr.head, mgr.tags()) == (None, {})
        assert save(mgr, 1, 7.0)
        assert not save(mgr, 2, odd)
        assert not save(mgr, 3, odd, lower_is_better=False)
        assert save(mgr, 4, 6.0)
        assert best(mgr) == 4


@pytest.mark.parametrize("known", [math.nan, "nan", -math.inf])
def test_a18_a_tag_on_what_never_was_best_gives_way(tmp_path: Path, known: Any) -> None:
    with CheckpointManager(tmp_path) as mgr:
        mgr.save("best", {"model": model(0)}, metadata={"val_loss": known})
        assert save(mgr, 1, 7.0)
        assert best(mgr) == 1


@pytest.mark.parametrize("odd", [None, "low", torch.ones(3), torch.tensor(1j), 10**400])
def test_what_is_no_number_is_refused_by_name(tmp_path: Path, odd: Any) -> None:
    with CheckpointManager(tmp_path) as mgr, pytest.raises(Incompatible, match=r"val_loss is .* no number"):
        save(mgr, 1, odd)


def test_a18_of_two_runs_that_share_a_tag_the_better_has_it_whoever_ends_last(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, branch="fast") as fast:

        def meanwhile(_: Any) -> None:
            future = fast.save_best(7, 1.0, model=model(7))
            assert future is not None
            future.result()

        with CheckpointManager(tmp_path, branch="slow", pre_finalize=meanwhile) as slow:
            late = slow.save_best(3, 2.0, model=model(3))
            assert late is not None
            assert slow.describe(late).snapshot.tags == ()
            assert best(slow) == 7


def test_a18_many_at_once_leave_the_tag_on_the_best(tmp_path: Path) -> None:
    numbers = random.Random(5).sample(range(100), 40)
    with CheckpointManager(tmp_path) as mgr:
        ids = [mgr.save(step=each, x=each, metadata={"loss": each}).result() for each in numbers]
    commits = [CommitId(from_hex(each)) for each in ids]

    def set_some(part: slice) -> None:
        with Repository.open(tmp_path) as repo:
            for number, commit in list(zip(numbers, commits, strict=True))[part]:
                set_tag(repo, "best", commit, overwrite=Better("loss", number, is_lower=False))

    threads = [threading.Thread(target=set_some, args=(slice(start, None, 4),)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Repository.open(tmp_path) as repo:
        assert repo.commit(repo.resolve("best", "main")).step == max(numbers)


def test_higher_may_be_better_under_another_name_and_tag(tmp_path: Path) -> None:
    def accurate(step: int, metric: Any) -> bool:
        return save(mgr, step, metric, metric_name="accuracy", lower_is_better=False, tag="most-accurate")

    with CheckpointManager(tmp_path) as mgr:
        assert save(mgr, 0, 0.5)
        assert accurate(1, 0.25)
        assert accurate(2, torch.tensor(0.75, requires_grad=True))
        assert not accurate(3, 0.5)
        assert (best(mgr), best(mgr, "most-accurate")) == (0, 2)


def test_a_run_that_is_taken_up_goes_on_the_way_that_was_said_first(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as mgr:
        assert save(mgr, 0, 0.5, metric_name="accuracy", lower_is_better=False)
    with CheckpointManager(tmp_path) as mgr:
        assert not save(mgr, 1, 0.25, metric_name="accuracy")
        assert save(mgr, 2, 0.75, metric_name="accuracy")
        assert save(mgr, 3, 0.8, metric_name="accuracy", lower_is_better=False)
        with pytest.raises(Conflict, match=r"best by higher accuracy, not the other way round.*tag="):
            save(mgr, 4, 0.1, metric_name="accuracy", lower_is_better=True)
        assert best(mgr) == 3
        assert save(mgr, 5, 0.1, metric_name="accuracy", lower_is_better=True, tag="least-accurate")


def test_a_tag_of_which_nobody_said_the_way_is_taken_either_way(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as mgr:
        mgr.save("best", {"model": model(0)}, metadata={"val_loss": 0.5})
        assert not save(mgr, 1, 0.6)
        assert save(mgr, 2, 0.6, lower_is_better=False)
        with pytest.raises(Conflict, match="best by higher val_loss"):
            save(mgr, 3, 0.7, lower_is_better=True)


def test_numbers_as_text_are_numbers_and_other_metadata_stay(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as mgr:
        mgr.save("best", {"model": model(0)}, metadata={"val_loss": "0.5"})
        assert not save(mgr, 1, 0.6)
        assert save(mgr, 2, 0.4, metadata={"note": "warm"}, message="so far")
        found = mgr.describe("best").snapshot
        assert (found.metadata, found.message) == (
            {"note": "warm", "val_loss": 0.4, "best_by": "lower val_loss"},
            "so far",
        )


def test_a_tag_that_says_nothing_of_the_metric_is_not_moved(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as mgr:
        mgr.save("best", {"model": model(9)}, step=9)
        with pytest.raises(Conflict, match=r"nothing of 'val_loss'.*tag="):
            save(mgr, 1, 0.5)
        assert best(mgr) == 9
        assert save(mgr, 2, 0.5, tag="best-loss")


def test_a_save_that_failed_never_was_the_best(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as mgr:
        save(mgr, 0, 3.0)
        mgr.flush()
        with no_large_file(only_worker()):
            failed = mgr.save_best(1, 1.0, model={"weight": torch.randn(1_000_000)})
            assert failed is not None
            assert failed.exception() is not None
        with pytest.raises(SaveFailed):
            save(mgr, 2, 2.0)
        mgr.flush()
        assert best(mgr) == 2


def test_the_best_outlives_retention(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, keep=Keep(last=1), async_save=False) as mgr:
        for step, metric in enumerate([2.0, 1.0, 5.0, 6.0]):
            save(mgr, step, metric)
            mgr.save(step=step, model=model(step + 10))
        assert best(mgr) == 1
        mgr.gc()
        assert best(mgr) == 1


def test_objects_by_position_and_in_the_foreground(tmp_path: Path) -> None:
    net = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(net.parameters(), momentum=0.9)
    with CheckpointManager(tmp_path, async_save=False) as mgr:
        future = mgr.save_best(5, 0.5, net, optimizer)
        assert future is not None
        assert future.done()
        fresh = torch.nn.Linear(3, 3)
        mgr.load("best", fresh)
        assert torch.equal(fresh.weight, net.weight)
        assert mgr.describe(future).snapshot.items == ("model", "optimizer")
