"""Hugging Face's ``Trainer``: its saves become commits, and it resumes from any of them.

    callback = MoonclipCallback(CheckpointManager("checkpoints"))
    trainer = WithoutFiles(model=model, args=args, train_dataset=data, callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.resume_from())

The callback needs nothing but the Trainer's public hooks, and works with any ``Trainer``. That always writes its own
directory before it calls ``on_save``, and no public hook keeps it from doing so: hence :class:`WithoutFiles`.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import SaveStrategy, TrainOutput

from store.beside.files import ITEM as FILES
from store.errors import Incompatible
from store.upkeep.retention import Keep

from ..manager import CheckpointManager
from ..managing.milestones import BEST
from ..managing.upkeep import Revision
from ..saving.jobs import SaveFuture
from ..specs import Layout
from ..state.items import GENERATORS
from ..state.wrappers import canonical_names
from .directories import Passing, put_files, streams, taken_up

STATE: Final = "trainer_state"
"""Item that the Trainer's own state is saved as: steps, epochs, logs, the best metric, callbacks that have a state."""

_log: Final = logging.getLogger("moonclip")

_STATE_FILE: Final = "trainer_state.json"

_LAYOUTS: Final = {
    "model": Layout("safetensors", "model.safetensors"),
    "optimizer": Layout("torch", "optimizer.pt"),
    "scheduler": Layout("torch", "scheduler.pt"),
    "scaler": Layout("torch", "scaler.pt"),
}
"""Where a Trainer looks for them."""


class MoonclipCallback(TrainerCallback):
    """Commits whenever its ``Trainer`` saves, and has it resume from commits.

    When to save is the Trainer's to say: ``save_strategy`` and ``save_steps`` hold. A commit has the model, optimizer,
    scheduler, scaler, random number generators, the Trainer's state and the small files beside a model. One that is
    the best so far by ``metric_for_best_model`` gets the tag. With ``save_total_limit`` no more commits of the
    manager's branch keep their content; those that other branches, tags or pins need do. With
    ``load_best_model_at_end`` the model has the best weights once training ends. Saves are written in the background
    if the manager does so; all are durable when ``train`` returns.

    Args:
        manager: saves, on its branch. It stays open.
        tag: name of the best commit's tag. Runs that share a store each want their own.

    Raises:
        Incompatible: there are several processes, or trials of a hyper-parameter search: those have no best in common.
    """

    def __init__(self, manager: CheckpointManager, *, tag: str = BEST) -> None:
        self._manager = manager
        self._tag = tag
        self._best: SaveFuture | None = None
        self._begun: str | None = None
        self._files: dict[str, bytes] = {}
        self._directory: str | None = None
        self._around: Passing | None = None

    def resume_from(self, rev: Revision | None = None, *, branch: str | None = None) -> str | None:
        """What to give ``trainer.train(resume_from_checkpoint=…)``.

        Args:
            rev: the commit; the tip of the manager's branch if ``None``.
            branch: branch to go on with, as for :meth:`CheckpointManager.resume`.

        Returns:
            A directory that looks like one of the Trainer's own. It is gone once the first step is made. ``None`` if
            the branch has no commit yet: training begins at the beginning.

        Raises:
            Conflict: ``rev`` is not the tip of the branch to go on with; the message names the ways out.
            NotFound: ``rev`` names nothing, or the commit is none of a Trainer's.
            Corrupt: stored bytes are damaged, of ``rev`` or, without it, of all commits.
            OSError: the directory could not be written.
        """
        self._clean_up()
        around = self._around = Passing(self._directory)
        path: Path | None = None
        try:
            path = taken_up(self._manager, rev, branch, lambda found: as_checkpoint(self._manager, found, around.path))
        finally:
            if path is None:
                self._clean_up()
        return None if path is None else str(path)

    # --- hooks ------------------------------------------------------------------------------------------------------

    def on_init_end(self, args: TrainingArguments, *_: Any, **__: Any) -> None:
        """Remember where there is room for a checkpoint."""
        self._directory = args.output_dir

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **given: Any) -> None:
        """Remember the small files of a model, which do not change, and what training goes on from."""
        _require_one_run(args, state)
        self._best = None
        self._begun = self._manager.head if state.global_step else None
        resumed = self._manager.resumed
        if self._around is not None and resumed is not None and _is_wrapped(given["model"]):
            self._manager.load(resumed.commit, model=given["model"])  # a Trainer passes over names that differ
        self._files = _beside(given["model"], given["processing_class"])

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """The directory that was resumed from is not needed any more."""
        self._clean_up()

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: Any, **given: Any) -> None:
        """Commit."""
        _remove_stub(args, state)
        self._limit(args)
        is_best = state.best_global_step is not None and state.best_global_step == state.global_step
        optimizer = given["optimizer"]
        items = {
            "model": given["model"],
            "optimizer": optimizer,
            "scheduler": given["lr_scheduler"],
            "scaler": getattr(optimizer, "scaler", None),  # Accelerate's optimizer has it, and is what a Trainer has
            STATE: json.loads(json.dumps(asdict(state))),  # a Trainer's own file holds the same
            FILES: self._files or None,
        }
        future = self._manager.save(
            self._tag if is_best else None,
            {name: item for name, item in items.items() if item is not None},
            step=state.global_step,
            metadata=_logged(state),
            overwrite=is_best,
            rng=True,
        )
        if is_best:
            self._best = future

    def on_train_end(self, args: TrainingArguments, state: TrainerState, *_: Any, **given: Any) -> None:
        """Wait for the last save, and load the best if that is wanted."""
        self._clean_up()
        self._manager.flush()
        self._limit(args)
        if args.load_best_model_at_end and state.best_global_step is not None and state.best_model_checkpoint is None:
            best = self._best or self._best_before(state.best_global_step)
            if best is None:
                _log.warning("the best step, %d, was not saved: the model stays as it is", state.best_global_step)
            else:
                self._manager.load(best, model=given["model"])

    # --- how --------------------------------------------------------------------------------------------------------

    def _limit(self, args: TrainingArguments) -> None:
        """Keep as many commits as the Trainer would keep directories: the best and the newest always."""
        limit = args.save_total_limit
        if limit is None or limit <= 0 or self._manager.head is None:
            return
        newest = {snapshot.id for snapshot in self._manager.log(limit=limit)}
        best = self._manager.tags().get(self._tag)
        last = limit if best is None or best in newest else max(1, limit - 1)
        self._manager.prune(Keep(last=last), branches=[self._manager.bound_branch])

    def _best_before(self, step: int) -> str | None:
        """The best commit that training began with. The best step of all is none if it was evaluated, not saved."""
        if self._begun is None:
            return None
        tagged = self._manager.tags().get(self._tag)
        before = list(self._manager.log(self._begun))
        of_step = (snapshot.id for snapshot in before if snapshot.step == step and not snapshot.absent)
        return next(of_step, tagged if any(snapshot.id == tagged for snapshot in before) else None)

    def _clean_up(self) -> None:
        if self._around is not None:
            self._around.clean_up()
            self._around = None


class WithoutFiles(Trainer):
    """A ``Trainer`` whose checkpoints are its callback's alone. Mix it into others: ``(WithoutFiles, SFTTrainer)``.

    A Trainer writes each checkpoint into its output directory whatever callbacks do. With this, all that it writes
    there is its own state, which the callback takes away again. ``save_model`` by a person writes as ever. It sets
    ``save_only_model`` in the arguments it is given: an ordinary Trainer wants arguments of its own.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.args.save_only_model = True

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,  # noqa: FBT001 - a Trainer's own
        *args: Any,
        **options: Any,
    ) -> TrainOutput:
        """Train; ``True`` goes on from the newest commit of the callback's, if there is one.

        Raises:
            Incompatible: there is no :class:`MoonclipCallback`, so nothing would be saved.
        """
        callbacks = [each for each in self.callback_handler.callbacks if isinstance(each, MoonclipCallback)]
        if not callbacks:
            raise Incompatible("without files and without a MoonclipCallback nothing is saved; add one to callbacks")
        if resume_from_checkpoint is True:
            resume_from_checkpoint = callbacks[0].resume_from()
        return super().train(resume_from_checkpoint, *args, **options)

    def save_model(
        self,
        output_dir: str | None = None,
        _internal_call: bool = False,  # noqa: FBT001, FBT002 - likewise
    ) -> None:
        """Write the model, unless it is for a checkpoint."""
        if not _internal_call or output_dir is None:
            super().save_model(output_dir)
        elif self.args.should_save:
            Path(output_dir).mkdir(parents=True, exist_ok=True)


def as_checkpoint(manager: CheckpointManager, rev: Revision | None, directory: str | Path) -> Path:
    """Write a commit of :class:`MoonclipCallback`'s as the directory that a ``Trainer`` writes.

    Args:
        manager: has the commit.
        rev: which; the bound branch's tip if ``None``.
        directory: where to make it.

    Returns:
        The directory: ``checkpoint-`` and the step, in ``directory``.

    Raises:
        NotFound: there is no such commit, or it is none of a Trainer's.
        Conflict: the directory has such files already.
        Unsafe: the commit has a file that would lie elsewhere.
        Corrupt: stored bytes are damaged.
        OSError: a file could not be written.
    """
    items = manager.snapshot(rev).items
    loaded = manager.load(rev, items=[STATE, GENERATORS, *({FILES} & set(items))])
    state = loaded[STATE]
    target = Path(directory, f"checkpoint-{state['global_step']}")
    layouts = {item: layout for item, layout in _LAYOUTS.items() if item in items}
    manager.export(rev, target, format="dir", items=list(layouts), layouts=layouts)
    put_files(target, loaded.get(FILES, {}))
    (target / _STATE_FILE).write_text(json.dumps(state, indent=2, sort_keys=True) + "\n")
    torch.save(_generators(loaded[GENERATORS]), target / "rng_state.pth")
    return target


def _require_one_run(args: TrainingArguments, state: TrainerState) -> None:
    if args.world_size > 1:
        raise Incompatible("MoonclipCallback saves from one process; in several, save in the loop, or through DCP")
    if state.is_hyper_param_search and args.save_strategy != SaveStrategy.NO:
        raise Incompatible(
            "the trials of a hyper-parameter search would be one history with one best: set save_strategy='no' for the"
            " search, then train with what it found"
        )


def _is_wrapped(model: Any) -> bool:
    """Whether names in its state dict differ from those that it is stored by: it, or a part of it, is compiled."""
    names = model.state_dict().keys()
    return any(name != stored for name, stored in canonical_names(names).items())


def _beside(model: Any, processing: Any) -> dict[str, bytes]:
    """What a model's directory has beside weights: its configuration, and the tokenizer's files."""
    with TemporaryDirectory(prefix="moonclip-") as name:
        for part in (getattr(model, "config", None), getattr(model, "generation_config", None), processing):
            if save := getattr(part, "save_pretrained", None):
                save(name)
        found = (path for path in Path(name).rglob("*") if path.is_file())
        return {path.relative_to(name).as_posix(): path.read_bytes() for path in found}


def _remove_stub(args: TrainingArguments, state: TrainerState) -> None:
    """Take away what a :class:`WithoutFiles` has written, and whatever the Trainer took it for."""
    directory = Path(args.output_dir, f"checkpoint-{state.global_step}")
    if directory.is_dir() and [path.name for path in directory.iterdir()] == [_STATE_FILE]:
        rmtree(directory)
        state.best_model_checkpoint = None


def _logged(state: TrainerState) -> dict[str, float]:
    """What was logged at this step: the loss, the metrics."""
    entries: Iterable[Mapping[str, Any]] = (entry for entry in state.log_history if entry["step"] == state.global_step)
    numbers = {name: value for entry in entries for name, value in entry.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if name != "step"}


def _generators(state: Mapping[str, Any]) -> dict[str, Any]:
    """States of the random number generators as a Trainer keeps them."""
    found = streams(state)
    kept: dict[str, Any] = {"python": found.python, "numpy": found.numpy, "cpu": found.torch}
    has_cuda = torch.cuda.is_available() and len(found.cuda) > torch.cuda.current_device()
    return kept | ({"cuda": found.cuda[torch.cuda.current_device()]} if has_cuda else {})
