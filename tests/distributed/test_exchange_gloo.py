"""Real ranks: what one process exported they load sharded, and what they wrote with torch we import whole."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import get_state_dict

from moonclip import CheckpointManager
from moonclip.exchange.importing import Wanted, import_files
from moonclip.exchange.ranges import Ranges
from moonclip.exchange.sources import Source, items_of
from store.disk.files import Files
from store.repository import Repository
from tests.distributed.load_rank import network, optimizer_of, train
from tests.launching import launch


@pytest.mark.slow
def test_b25_hubs_and_dcp_across_layouts(tmp_path: Path) -> None:
    model = network()
    optimizer = optimizer_of(model)
    train(model, optimizer, 0, 3)
    states = get_state_dict(model, optimizer)  # by name, as FSDP has it
    with CheckpointManager(tmp_path / "store", async_save=False) as mgr:
        mgr.save(step=3, model=states[0], optimizer=states[1])
        mgr.export("main", tmp_path / "ours", format="dcp")
        mgr.export("main", tmp_path / "hub", format="hf", max_shard_size="2kB")
    torch.save(dict(model.state_dict()), tmp_path / "expected.pt")
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    moment = optimizer.state[model[0].weight]["exp_avg"].clone()
    torch.save(train(model, optimizer, 3, 6), tmp_path / "losses.pt")

    codes, told = launch("exchange_rank.py", tmp_path, 2)
    assert codes == [0, 0], "\n".join(told)

    with Repository.init(tmp_path / "imported") as repo:
        sources = [Source(tmp_path / "theirs")]
        import_files(repo, items_of(sources, Ranges(Files())), Wanted(sources, "main"))
    fresh = network()
    with CheckpointManager(tmp_path / "imported") as mgr:
        loaded = mgr.load("main")
        mgr.load("main", into={"model": fresh})
    assert loaded["step"] == 3
    for name, tensor in fresh.state_dict().items():
        assert torch.allclose(tensor, expected[name], rtol=1e-5, atol=1e-7), name
    assert torch.allclose(loaded["optimizer"]["state"]["0.weight"]["exp_avg"], moment, rtol=1e-5, atol=1e-7)
    from_ranks = load_file(tmp_path / "from_ranks" / "model.safetensors")
    assert all(torch.equal(from_ranks[name], tensor) for name, tensor in network().state_dict().items())
