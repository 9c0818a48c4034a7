"""Several ranks of Accelerate that train, break off in the middle of an epoch, and go on, each with its own batches."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

rank, world_size = int(sys.argv[2]), int(sys.argv[3])
os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size), "ACCELERATE_USE_CPU": "1"}
os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}  # asked for, and not used: the group is there already

from accelerate import Accelerator, DataLoaderConfiguration

from moonclip import CheckpointManager
from moonclip.integrations.accelerate import Batches, items_of

STEPS, SAVED = 11, 8


def train(root: Path, *, is_seedable: bool, seed: int, until: int = STEPS) -> dict[int, float]:
    torch.manual_seed(seed)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=is_seedable))
    net: Any = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
    optimizer: Any = torch.optim.AdamW(net.parameters(), lr=0.01)
    data = torch.arange(48.0).reshape(12, 4) / 48
    loader: Any = torch.utils.data.DataLoader(data, batch_size=1, shuffle=True)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    batches = Batches(loader)
    items = items_of(accelerator, model=net, optimizer=optimizer, batches=batches)
    torch.manual_seed(10 * seed + rank)
    losses = {}
    told = {"world_size": "auto", "rank": "auto", "per_rank": ["batches"], "async_save": False}
    with CheckpointManager(root, **told) as mgr:
        mgr.resume(rng=True, **items)
        while batches.step < until:
            for batch in batches:
                loss = net(batch).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                losses[batches.step] = loss.item()
                if batches.step == SAVED:
                    mgr.save(step=batches.step, rng=True, **items)
                if batches.step == until:
                    break
    return losses


def main(directory: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{directory}/group", rank=rank, world_size=world_size)
    for is_seedable in (False, True):
        unbroken = train(directory / f"unbroken{is_seedable}", is_seedable=is_seedable, seed=1)
        root = directory / f"broken{is_seedable}"
        train(root, is_seedable=is_seedable, seed=1, until=SAVED + 1)
        resumed = train(root, is_seedable=is_seedable, seed=2)
        assert resumed == {step: loss for step, loss in unbroken.items() if step > SAVED}, (unbroken, resumed)
    print("done", flush=True)


main(Path(sys.argv[1]))
os._exit(0)  # torch's own threads, of many groups, now and then abort an interpreter that ends
