"""Lightning's trainer, killed and resumed. Run as a program: ``lightning_trials.py <directory>``.

It prints, as JSON, the losses of each run.
"""

import json
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch
import pytorch_lightning
import torch

from moonclip.integrations.lightning import Generators, StoreCheckpoint, StoreIO
from moonclip.integrations.lightningtwins import base
from tests.trials import Curve, Told, curve_of, die

STEPS, EPOCH, EVERY = 13, 5, 3


class Batches:
    """A data loader that shuffles anew each epoch and knows where it is."""

    def __init__(self) -> None:
        self._data = torch.randn(EPOCH, 4, 6, generator=torch.Generator().manual_seed(0))
        self._state = {"epoch": 0, "position": 0}

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[torch.Tensor]:
        if self._state["position"] == len(self):
            self._state = {"epoch": self._state["epoch"] + 1, "position": 0}
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(self._state["epoch"])).tolist()
        for index in order[self._state["position"] :]:
            self._state["position"] += 1
            yield self._data[index]

    def state_dict(self) -> dict[str, int]:
        return dict(self._state)

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._state = dict(state)


def module(package: Any, told: Told) -> Any:
    class Net(package.LightningModule):  # type: ignore[misc, name-defined] # of one package or of the other
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            step = self.global_step
            loss: torch.Tensor = self.net(batch).square().mean()
            told.note(step, loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)]

    return Net()


class Killer(base("callbacks", "Callback")):  # type: ignore[misc] # both packages take it
    """Kills the process as a step begins; what was saved is durable then, or has just been given to the worker."""

    def __init__(self, io: StoreIO, step: int | None, *, in_save: bool = False, stop: int | None = None) -> None:
        self._io, self._step, self._in_save, self._stop = io, step, in_save, stop

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self._stop:
            os.kill(os.getpid(), signal.SIGTERM)
        if trainer.global_step == self._step:
            if not self._in_save:
                self._io.manager.flush()
            die(with_worker=self._in_save)
        if self._in_save:
            self._io.manager.flush()  # only the last save is in the making


class Way(NamedTuple):
    """How checkpoints are named: by Lightning's own callback, or by ours."""

    package: Any
    has_paths: bool

    def callback(self, directory: Path) -> Any:
        if not self.has_paths:
            return StoreCheckpoint(EVERY)
        named = {"dirpath": directory / "run", "save_top_k": 2, "monitor": "step", "mode": "max", "save_last": True}
        return self.package.callbacks.ModelCheckpoint(every_n_train_steps=EVERY, **named)

    def resumed(self, io: StoreIO) -> str | None:
        return "last" if self.has_paths else io.resume()


WAYS = {
    "lightning, paths": Way(lightning.pytorch, True),
    "lightning, store": Way(lightning.pytorch, False),
    "pytorch_lightning, paths": Way(pytorch_lightning, True),
}


def train(
    way: Way,
    directory: Path,
    told: Told,
    *,
    kill: int | None = None,
    in_save: bool = False,
    stop: int | None = None,
    resumed: Callable[[StoreIO], str | None] | None = None,
) -> None:
    io = StoreIO(directory / "store", threads=1)
    torch.manual_seed(1)
    trainer = way.package.Trainer(
        max_steps=STEPS,
        plugins=[io],
        callbacks=[way.callback(directory), Generators(), Killer(io, kill, in_save=in_save, stop=stop)],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with nullcontext() if stop is None else suppress(way.package.utilities.exceptions.SIGTERMException):
        trainer.fit(module(way.package, told), Batches(), ckpt_path=(resumed or way.resumed)(io))
    io.close()


def trials(way: Way, directory: Path) -> dict[str, Curve]:
    def run(name: str, where: str, **given: Any) -> Curve:
        work = partial(train, way, directory / where, **given)
        return curve_of(work, directory / f"{name}.txt", is_killed="kill" in given)

    directory.mkdir()
    stopped = {} if way.has_paths else {"stopped": run("stopped", "four", stop=7), "taken up": run("taken up", "four")}
    return stopped | {
        "unbroken": run("unbroken", "unbroken"),
        "killed": run("killed", "one", kill=8),
        "resumed": run("resumed", "one"),
        "branched": run("branched", "one", resumed=lambda io: io.resume("step:9", branch="other")),
        "killed in a save": run("killed in a save", "two", kill=6, in_save=True),
        "resumed after that": run("resumed after that", "two"),
        "killed before any": run("killed before any", "three", kill=2),
        "begun anew": run("begun anew", "three"),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "pytorch_lightning", "lightning.fabric", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print(json.dumps({name: trials(way, Path(sys.argv[1]) / name) for name, way in WAYS.items()}))
