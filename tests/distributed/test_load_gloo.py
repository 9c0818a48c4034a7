"""Real ranks that load what ranks of every other layout and number saved."""

from pathlib import Path

import pytest
import torch

from moonclip import CheckpointManager
from moonclip.sharding.layouts import Layout, Split
from store.format.entries import TensorEntry
from tests.distributed import load_rank
from tests.launching import launch
from tests.resharding import reshard

WORLD_SIZES = (1, 2, 4)
SPLITS: dict[str, tuple[Split | None, ...]] = {
    "rows": (Split(0),),
    "columns": (Split(1),),
    "copies": (None,),
    "strided": (Split(0, 2),),
    "disjoint": (Split(1, 3),),
}


def saved() -> dict[str, tuple[tuple[int, ...], tuple[Split | None, ...]]]:
    """Layouts by the branch that has the state as their ranks wrote it."""
    found = {f"{name}{ranks}": ((ranks,), splits) for name, splits in SPLITS.items() for ranks in WORLD_SIZES}
    return found | {"mesh4": ((2, 2), (Split(0), Split(1))), "strided4": ((2, 2), (Split(0, 2), Split(0)))}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a branch for each layout, and one for a training run whose model three ranks saved."""
    directory = tmp_path_factory.mktemp("load")
    with CheckpointManager(directory / "store", async_save=False, world_size=1) as mgr:
        mgr.save(model=load_rank.states())
        for name in saved():
            mgr.branch(f"states/{name}")
        mgr.branch("states/plain")
        mgr.branch("trained")
        mgr.switch("trained")
        load_rank.trained(mgr)
    for name, (mesh, splits) in saved().items():
        reshard(
            directory / "store",
            lambda _, entry, mesh=mesh, splits=splits: Layout(entry.shape, mesh, splits),  # type: ignore[misc]
            f"states/{name}",
        )
    reshard(directory / "store", in_three, "trained")
    return directory


def in_three(_: str, entry: TensorEntry) -> Layout | None:
    return Layout(entry.shape, (3,), (Split(0),)) if entry.shape else None


@pytest.mark.slow
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_b21_b22_b23_every_layout_loads_into_every_other(directory: Path, world_size: int) -> None:
    codes, told = launch("load_rank.py", directory, world_size)
    assert codes == [0] * world_size, "\n".join(told)
    cells = (len(saved()) + 1) * sum(1 for _ in load_rank.layouts(world_size))
    assert all(f"{cells} cells" in text for text in told)


def test_the_states_have_sizes_that_make_uneven_and_empty_shards() -> None:
    rows = [tensor.shape[0] for tensor in load_rank.states().values()]
    assert any(each % 4 for each in rows)
    assert min(rows) < max(load_rank.layouts(4), key=lambda layout: layout[0])[0][0]
    assert torch.equal(load_rank.states()["7"], load_rank.states()["7"])
