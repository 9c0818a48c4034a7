"""Callbacks for Lightning's trainer: the random number generators, and saves by step and by metric, without paths."""

import math
from collections.abc import Mapping
from typing import Any, Final, Literal

import torch

from store.errors import Incompatible
from store.naming.tags import Better

from ..managing.milestones import BEST
from ..state import rng
from ..state.items import GENERATORS
from .lightningtwins import base

_STOPPED: Final = "SIGTERMException"
"""What a trainer raises after a step in which SIGTERM came: a class of each package."""

_SPAWNING: Final = "_MultiProcessingLauncher"
"""What starts the processes of such a strategy: a class of each package."""

NO_SPAWNING: Final = "strategies that spawn or fork hand weights on in a file, which the store would keep: use ddp"

_GRADIENTS: Final = "gradients"
"""Key of a checkpoint."""

Trainer = Any
Module = Any
Checkpoint = dict[str, Any]


class Generators(base("callbacks", "Callback")):  # type: ignore[misc] # of the packages that are installed
    """Keeps the random number generators' states in checkpoints, which Lightning does not, and restores them.

    A run that is resumed goes on to the bit where its data loader has a ``state_dict`` or the checkpoint lies between
    epochs, unless a validation with random numbers came between the save and the next step. Trainers of several
    processes save what rank 0 has, so there nothing is kept.
    """

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[str, Any] | None = None
        self._is_between_epochs = False

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: Checkpoint) -> None:  # noqa: ARG002
        """Add the states to a checkpoint."""
        if trainer.world_size == 1:
            checkpoint[GENERATORS] = rng.capture()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: Checkpoint) -> None:  # noqa: ARG002
        """Take the states out of a checkpoint that training goes on from."""
        if trainer.state.fn == "fit" and trainer.world_size == 1:
            self._found = checkpoint.get(GENERATORS)
            progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
            self._is_between_epochs = progress["is_last_batch"]

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:  # noqa: ARG002
        """Go on with them between two epochs: a data loader draws from them as it begins the next one."""
        if self._is_between_epochs:
            self._restore()

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Go on with them within an epoch: whatever has begun meanwhile had begun before the save."""
        self._restore()

    def _restore(self) -> None:
        if self._found is not None:
            found, self._found = self._found, None
            rng.restore(found)


class StoreCheckpoint(base("callbacks", "Checkpoint")):  # type: ignore[misc] # of the packages that are installed
    """Saves by step onto the store's branch, when SIGTERM comes, and the best after each validation under a tag.

        io = StoreIO("./checkpoints", keep=Keep(last=3, every=1000))
        trainer = Trainer(plugins=[io], callbacks=[StoreCheckpoint(100, monitor="val_loss")])
        trainer.fit(model, ckpt_path=io.resume())

    A save between two batches of one step, as ``SIGTERM`` makes it, has the gradients that came together by then.

    It takes the place of ``ModelCheckpoint``: no paths, what stays is what the plugin's ``keep`` says, and listings
    show the metrics. ``ckpt_path="best"`` finds the best.

    Args:
        every_n_train_steps: save after so many optimizer steps.
        monitor: a metric that the module logs; without it nothing is best.
        mode: whether the least of it is best, or the most.
        tag: name of the tag.

    Raises:
        Incompatible: an argument is none of those described.
    """

    def __init__(
        self,
        every_n_train_steps: int,
        *,
        monitor: str | None = None,
        mode: Literal["min", "max"] = "min",
        tag: str = BEST,
    ) -> None:
        super().__init__()
        if every_n_train_steps < 1 or mode not in {"min", "max"}:
            raise Incompatible(f"every_n_train_steps={every_n_train_steps!r} and mode={mode!r}: 1 or more; min or max")
        self.monitor = monitor
        self._interval = every_n_train_steps
        self._is_lower = mode == "min"
        self._tag = tag
        self._best: float | None = None
        self._saved_step = 0
        self._batch_step: int | None = None
        self._is_amid_step = False
        self._gradients: Mapping[str, torch.Tensor] = {}

    @property
    def best_model_path(self) -> str:
        """What ``ckpt_path="best"`` loads, also what another process found best; empty without a metric."""
        return "" if self.monitor is None else self._tag

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:  # noqa: ARG002
        """See that there is a store, and that this process stays.

        Raises:
            Incompatible: the trainer has no such plugin, or a strategy that starts processes for each call.
        """
        if stage == "fit" and not hasattr(trainer.strategy.checkpoint_io, "manager"):
            raise Incompatible("StoreCheckpoint saves by way of a StoreIO: give the trainer plugins=[StoreIO(…)]")
        if type(trainer.strategy.launcher).__name__ == _SPAWNING:
            raise Incompatible(NO_SPAWNING)

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:  # noqa: ARG002
        """What training begins with need not be saved."""
        self._saved_step = trainer.global_step

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Go on with gradients that a checkpoint had."""
        self._batch_step, self._is_amid_step = trainer.global_step, False
        found, self._gradients = self._gradients, {}
        for name, parameter in pl_module.named_parameters():
            if name in found:
                parameter.grad = found[name].to(parameter, copy=True)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: Module,  # noqa: ARG002
        outputs: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """Save if it is time."""
        self._is_amid_step = trainer.global_step == self._batch_step
        if trainer.global_step % self._interval == 0:
            self._save(trainer)

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:  # noqa: ARG002
        """Save if a signal asked the trainer to end, which it does between two steps, once all is durable."""
        if type(exception).__name__ == _STOPPED:
            self._save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:  # noqa: ARG002
        """Save if it is the best so far."""
        if self.monitor is None or trainer.state.fn != "fit" or trainer.sanity_checking or trainer.fast_dev_run:
            return
        score = _numbers(trainer).get(self.monitor)
        if score is None:
            raise Incompatible(f"monitor={self.monitor!r} was not logged; there are {sorted(trainer.callback_metrics)}")
        if trainer.strategy.reduce_boolean_decision(self._is_best(score)):
            self._best = score
            better = Better(self.monitor, score, self._is_lower)
            options = {"metadata": _numbers(trainer), "tag": self._tag, "overwrite": better}
            trainer.save_checkpoint("", weights_only=False, storage_options=options)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: Checkpoint) -> None:
        """Add gradients that await others; those of several processes are not kept, since only rank 0 saves."""
        if self._is_amid_step and trainer.world_size == 1:
            found = {name: each.grad for name, each in pl_module.named_parameters() if each.grad is not None}
            checkpoint[_GRADIENTS] = found

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: Checkpoint) -> None:  # noqa: ARG002
        """Take the gradients out of a checkpoint that training goes on from."""
        if trainer.state.fn == "fit" and trainer.world_size == 1:
            self._gradients = checkpoint.get(_GRADIENTS, {})

    def state_dict(self) -> dict[str, Any]:
        """The best so far."""
        return {"best": self._best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from it."""
        self._best = state_dict["best"]

    def _save(self, trainer: Trainer) -> None:
        step = trainer.global_step
        if step == self._saved_step or trainer.fast_dev_run:
            return
        self._saved_step = step
        numbers = _numbers(trainer)
        numbers.pop(self.monitor or "", None)  # of an earlier step
        trainer.save_checkpoint("", weights_only=False, storage_options={"metadata": numbers})

    def _is_best(self, score: float) -> bool:
        if not math.isfinite(score):
            return False
        return self._best is None or (score < self._best if self._is_lower else score > self._best)


def _numbers(trainer: Trainer) -> dict[str, float]:
    return {name: float(value) for name, value in trainer.callback_metrics.items()}
