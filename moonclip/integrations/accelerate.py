"""Accelerate: what a loop has prepared, as items that are saved and resumed exactly, in the middle of an epoch too.

    batches = Batches(loader)
    items = items_of(accelerator, model=model, optimizer=optimizer, scheduler=scheduler, batches=batches)
    mgr.resume(rng=True, **items)
    for _ in range(batches.epoch, 3):
        for batch in batches:
            ...
            mgr.save(step=batches.step, rng=True, **items)

``accelerator.load_state`` reads such a commit too: :func:`state_directory` makes what it asks for.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.data_loader import DataLoaderShard
from torch.utils.data import BatchSampler

from store.errors import Incompatible

from ..manager import CheckpointManager
from ..managing.upkeep import Revision
from ..specs import Layout
from ..state import rng
from ..state.items import GENERATORS
from .directories import Passing, streams, taken_up

ACCELERATOR: Final = "accelerator"
"""Item that the accelerator's own count of steps is."""

_END: Final = object()


class Batches:
    """The batches of a prepared loader, and how many of them were given out: an item that is saved and resumed.

    An iteration begins where the last one was left, be it in this process or in the one that saved: after so many
    batches of the same permutation. Nothing is loaded to be thrown away. What comes after is drawn from the random
    number generators as they are then; so save with ``rng=True``.

    Datasets that draw from the process's own generators when they are read, and such workers, are not repeated
    exactly: Accelerate reads one batch ahead.

    Args:
        loader: what ``accelerator.prepare`` made of a loader.

    Attributes:
        epoch: how many times all batches were given out.
        batch: how many were since.
        step: how many were in all.

    Raises:
        Incompatible: it is no such loader.
    """

    def __init__(self, loader: Any) -> None:
        if not isinstance(loader, DataLoaderShard):
            raise Incompatible(
                f"{type(loader).__name__} is no loader that accelerator.prepare made for batches of its own process;"
                " prepare it first, without dispatch_batches"
            )
        self._loader = loader
        self._begun: dict[str, Any] = {}
        self.epoch = 0
        self.batch = 0
        self.step = 0

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left of this epoch."""
        for batch in self._left():
            self.batch += 1
            self.step += 1
            yield batch
        self.epoch += 1
        self.batch = 0

    def state_dict(self) -> dict[str, Any]:
        """Where this is, and what its permutation was drawn from."""
        counts = {"epoch": self.epoch, "batch": self.batch, "step": self.step}
        return counts | {"batch_size": self._batch_size, "begun": self._begun}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there with the next iteration.

        Raises:
            Incompatible: that is within an epoch, of batches of another size.
        """
        size = state.get("batch_size", self._batch_size)
        if state["batch"] and size != self._batch_size:
            raise Incompatible(
                f"{state['batch']} batches of {size} were given out in this epoch, and this loader's are of"
                f" {self._batch_size}: the size can be changed between two epochs"
            )
        self.epoch, self.batch, self.step = state["epoch"], state["batch"], state["step"]
        self._begun = dict(state["begun"])

    # --- how --------------------------------------------------------------------------------------------------------

    @property
    def _batch_size(self) -> int | None:
        """Examples that all processes together take at once; ``None`` if the dataset makes the batches."""
        return None if self._loader.batch_sampler is None else int(self._loader.total_batch_size)

    def _left(self) -> Iterator[Any]:
        self._loader.set_epoch(self.epoch)
        if self.batch == 0:
            self._begun = self._streams()
            yield from self._loader
            return
        now = rng.capture()
        self._rewind()
        batches = iter(skip_first_batches(self._loader, self.batch))
        first = next(batches, _END)
        rng.restore(now)
        if first is not _END:
            yield first
            yield from batches

    def _streams(self) -> dict[str, Any]:
        """All that a permutation is drawn from."""
        sampler = _sampler(self._loader)
        generator, seed = getattr(sampler, "generator", None), getattr(sampler, "initial_seed", None)
        own = None if generator is None else generator.get_state().numpy().tobytes()
        return {"rng": rng.capture(), "generator": own, "seed": seed}

    def _rewind(self) -> None:
        """Have the loader draw the permutation that it had drawn for this epoch."""
        rng.restore(self._begun["rng"])
        sampler = _sampler(self._loader)
        if self._begun["seed"] is not None:
            sampler.initial_seed = self._begun["seed"]
        if self._begun["generator"] is not None and sampler.generator is not None:
            sampler.generator.set_state(torch.frombuffer(bytearray(self._begun["generator"]), dtype=torch.uint8))


def _sampler(loader: DataLoaderShard) -> Any:
    """What draws the permutation. Of several processes each has its share of the batches, around those of all."""
    batches = loader.sampler if isinstance(loader.sampler, BatchSampler) else loader.batch_sampler
    return getattr(getattr(batches, "batch_sampler", batches), "sampler", None)


class _Steps:
    """How many micro-batches the accelerator has counted. Gradients that have come together by then are in no item."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def state_dict(self) -> dict[str, int]:
        if not self._accelerator.sync_gradients:
            raise Incompatible(
                "gradients of some micro-batches await the others, and no item has them: save where"
                " accelerator.sync_gradients is true"
            )
        return {"step": self._accelerator.step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self._accelerator.step = state["step"]


def items_of(accelerator: Accelerator, **items: Any) -> dict[str, Any]:
    """What to save and resume of a loop: what it names, the accelerator's scaler if it has one, and its count of steps.

    Args:
        accelerator: has prepared them.
        **items: models, optimizers, schedulers, :class:`Batches`, and whatever else the loop needs, by name.

    Returns:
        Items for ``CheckpointManager.save`` and ``resume``. A save while gradients are accumulated is refused: they
        would be lost.

    Raises:
        Incompatible: a name is taken.
    """
    own = {ACCELERATOR: _Steps(accelerator), "scaler": accelerator.scaler}
    taken = sorted(own.keys() & items.keys())
    if taken:
        raise Incompatible(f"{taken[0]!r} is the accelerator's own; give yours another name", items=taken)
    return {name: item for name, item in {**items, **own}.items() if item is not None}


@contextmanager
def state_directory(
    manager: CheckpointManager,
    rev: Revision | None = None,
    *,
    branch: str | None = None,
    models: Sequence[str] = ("model",),
    optimizers: Sequence[str] = ("optimizer",),
    schedulers: Sequence[str] = ("scheduler",),
    registered: Sequence[str] = (),
) -> Iterator[Path | None]:
    """A directory for ``accelerator.load_state``, of one process, as long as the block runs.

        accelerator.register_for_checkpointing(batches)
        with state_directory(mgr, registered=["batches"]) as path:
            if path is not None:
                accelerator.load_state(path)

    Args:
        manager: goes on from that commit.
        rev: the commit; the tip of the manager's branch if ``None``.
        branch: branch to go on with, as for :meth:`CheckpointManager.resume`.
        models: items that are models, in the order in which they were prepared.
        optimizers: likewise.
        schedulers: likewise.
        registered: likewise, of what was registered for checkpointing.

    Yields:
        The directory; ``None`` if the branch has no commit yet.

    Raises:
        Conflict: ``rev`` is not the tip of the branch to go on with; the message names the ways out.
        NotFound: ``rev`` names nothing, or the commit lacks an item.
        Corrupt: stored bytes are damaged, of ``rev`` or, without it, of all commits.
        OSError: the directory could not be written.
    """
    # Accelerate's safetensors has to lack all names but one of a tensor with several, and only a model tells which.
    layouts = _named(models, "pytorch_model") | _named(optimizers, "optimizer") | _named(schedulers, "scheduler")
    layouts |= {item: Layout("torch", f"custom_checkpoint_{number}.pkl") for number, item in enumerate(registered)}
    around = Passing(None)
    try:
        yield taken_up(manager, rev, branch, lambda commit: _written(manager, commit, around.path / "state", layouts))
    finally:
        around.clean_up()


def _named(items: Sequence[str], stem: str) -> dict[str, Layout]:
    names = [f"{stem}_{number}.bin" if number else f"{stem}.bin" for number in range(len(items))]
    return {item: Layout("torch", name) for item, name in zip(items, names, strict=True)}


def _written(manager: CheckpointManager, rev: str, target: Path, layouts: Mapping[str, Layout]) -> Path:
    if "scaler" in manager.snapshot(rev).items:
        layouts = {**layouts, "scaler": Layout("torch", "scaler.pt")}
    manager.export(rev, target, format="dir", items=list(layouts), layouts=layouts)
    loaded = manager.load(rev, items=[GENERATORS, ACCELERATOR])
    found = streams(loaded[GENERATORS])
    states = {
        "step": loaded[ACCELERATOR]["step"],
        "random_state": found.python,
        "numpy_random_seed": found.numpy,
        "torch_manual_seed": found.torch,
        **({"torch_cuda_manual_seed": found.cuda} if found.cuda else {}),
    }
    torch.save(states, target / "random_states_0.pkl")
    return target
