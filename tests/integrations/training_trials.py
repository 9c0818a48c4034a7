"""Runs of Hugging Face's Trainer, of Accelerate and of PEFT, killed and resumed. Run as a program with a directory.

It prints, as JSON, the losses of each run.
"""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from moonclip import CheckpointManager
from moonclip.integrations.accelerate import Batches, items_of, state_directory
from moonclip.integrations.peft import adapters_of, begin, lineage
from moonclip.integrations.transformers import MoonclipCallback, WithoutFiles
from tests.preloaded import preload
from tests.trials import Curve, Told, curve_of, die

STEPS, EVERY = 13, 3


class Run(NamedTuple):
    """One run of a training.

    Attributes:
        directory: all that it leaves is in it.
        kill: the step after which it is killed; ``None`` for never.
        in_save: whether that is in the middle of the save that follows the step.
        rev: the commit to go on from, on a branch of its own; ``None`` for the tip.
        branch: that branch.
    """

    directory: Path
    kill: int | None = None
    in_save: bool = False
    rev: str | None = None
    branch: str | None = None

    def manager(self) -> CheckpointManager:
        """In the background where that matters; a worker takes a second to start."""
        return CheckpointManager(self.directory / "store", threads=1, async_save=self.kill is not None)

    def after_step(self, step: int, mgr: CheckpointManager) -> None:
        if step == self.kill and not self.in_save:
            mgr.flush()
            die()

    def after_save(self, step: int, mgr: CheckpointManager) -> None:
        if step == self.kill and self.in_save:
            die(with_worker=True)
        if self.in_save:
            mgr.flush()  # only the last save is in the making


def model() -> GPT2LMHeadModel:
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, **ends))


def texts() -> torch.Tensor:
    return torch.randint(32, (20, 8), generator=torch.Generator().manual_seed(0))


# --- the libraries --------------------------------------------------------------------------------------------------


class Telling(TrainerCallback):
    """Tells of losses, and dies when it is time."""

    def __init__(self, run: Run, mgr: CheckpointManager, told: Told) -> None:
        self.run, self.mgr, self.told = run, mgr, told

    def on_log(self, _: Any, state: Any, *__: Any, logs: dict[str, float], **___: Any) -> None:
        if "loss" in logs:
            self.told.note(state.global_step, logs["loss"])

    def on_step_begin(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        self.run.after_step(state.global_step, self.mgr)

    def on_save(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        self.run.after_save(state.global_step, self.mgr)


def trainer(kind: type[Trainer], run: Run, told: Told) -> None:
    mgr = run.manager()
    torch.manual_seed(1)
    arguments = TrainingArguments(
        output_dir=str(run.directory / f"out{os.getpid()}"),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=0.01,
        logging_steps=1,
        save_steps=EVERY,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    callback = MoonclipCallback(mgr)
    callbacks = [callback, Telling(run, mgr, told)]
    rows = [{"input_ids": row, "labels": row} for row in texts()]
    training = kind(model=model(), args=arguments, train_dataset=rows, callbacks=callbacks)
    training.train(resume_from_checkpoint=callback.resume_from(run.rev, branch=run.branch))
    mgr.close()


def accelerated(resumes: Callable[[Any, Run, CheckpointManager, dict[str, Any]], None], run: Run, told: Told) -> None:
    mgr = run.manager()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(1)
    net: Any = model()
    optimizer: Any = torch.optim.AdamW(net.parameters(), lr=0.01)
    scheduler: Any = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=STEPS)
    loader: Any = torch.utils.data.DataLoader(texts(), batch_size=2, shuffle=True)
    net, optimizer, scheduler, loader = accelerator.prepare(net, optimizer, scheduler, loader)
    batches = Batches(loader)
    accelerator.register_for_checkpointing(batches)
    items = items_of(accelerator, model=net, optimizer=optimizer, scheduler=scheduler, batches=batches)
    resumes(accelerator, run, mgr, items)
    while batches.step < 2 * STEPS:
        for batch in batches:
            with accelerator.accumulate(net):
                loss = net(input_ids=batch, labels=batch).loss
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            told.note(batches.step, loss.item())
            step = batches.step // 2
            if accelerator.sync_gradients and step % EVERY == 0:
                mgr.save(step=step, rng=True, **items)
                run.after_save(step, mgr)
            if batches.step % 2:  # in the middle of a step
                run.after_step(step, mgr)
            if batches.step == 2 * STEPS:
                break
    mgr.close()


def by_manager(_: Any, run: Run, mgr: CheckpointManager, items: dict[str, Any]) -> None:
    mgr.resume(rng=True, rev=run.rev, branch=run.branch, **items)


def by_load_state(accelerator: Any, run: Run, mgr: CheckpointManager, _: dict[str, Any]) -> None:
    with state_directory(mgr, run.rev, branch=run.branch, registered=["batches"]) as path:
        if path is not None:
            accelerator.load_state(path)


def adapters(run: Run, told: Told) -> None:
    mgr = run.manager()
    torch.manual_seed(1)
    base = model()
    if "base" not in mgr.tags():
        mgr.save("base", {"model": base}).result()
    mgr.load("base", model=base)
    lora = LoraConfig(target_modules=["c_attn"], r=2, lora_dropout=0.1, fan_in_fan_out=True)
    net: Any = get_peft_model(base, lora)
    net.add_adapter("formal", lora)
    net.train()
    optimizer = torch.optim.AdamW([each for each in net.parameters() if each.requires_grad], lr=0.01)
    items = adapters_of(net) | {"optimizer": optimizer}
    has_begun = begin(mgr, branch="french", base="base")
    wanted = {"rng": True, "rev": run.rev, "branch": run.branch, **items}
    start = mgr.resume(**wanted) if has_begun else 1
    for step in range(start, STEPS + 1):
        rows = texts()[torch.randint(20, (2,))]
        loss = net(input_ids=rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told.note(step, loss.item())
        if step % EVERY == 0:
            mgr.save(step=step, rng=True, metadata=lineage(mgr, "base"), **items)
            run.after_save(step, mgr)
        run.after_step(step, mgr)
    mgr.close()


# --- trials ---------------------------------------------------------------------------------------------------------

Training = Callable[[Run, Told], None]

TRAININGS: dict[str, Training] = {
    "trainer": partial(trainer, WithoutFiles),
    "accelerate": partial(accelerated, by_manager),
    "peft": adapters,
}
OTHER_WAYS: dict[str, tuple[str, Training]] = {
    "plain trainer": ("trainer", partial(trainer, Trainer)),
    "load_state": ("accelerate", partial(accelerated, by_load_state)),
}
"""Other ways to save or resume the same training, and which that is."""


class Trials(NamedTuple):
    """Runs of one training in a directory."""

    train: Training
    directory: Path

    def go(self, name: str, where: str, **given: Any) -> Curve:
        run = Run(self.directory / where, **given)
        self.directory.mkdir(exist_ok=True)
        return curve_of(partial(self.train, run), self.directory / f"{name}.txt", is_killed=run.kill is not None)

    def all(self) -> dict[str, Curve]:
        return {
            "unbroken": self.go("unbroken", "unbroken"),
            "killed": self.go("killed", "one", kill=8),
            "branched": self.go("branched", "one", rev="step:3", branch="other"),
            "branched again": self.go("branched again", "one", rev="step:3", branch="another"),
            "resumed": self.go("resumed", "one"),
            "killed in a save": self.go("killed in a save", "two", kill=6, in_save=True),
            "resumed after that": self.go("resumed after that", "two"),
            "killed before any": self.go("killed before any", "three", kill=2),
            "begun anew": self.go("begun anew", "three"),
        }

    def few(self) -> dict[str, Curve]:
        return {"killed": self.go("killed", "one", kill=8), "resumed": self.go("resumed", "one")}


def main(directory: Path) -> dict[str, dict[str, Curve]]:
    told = {name: Trials(train, directory / name).all() for name, train in TRAININGS.items()}
    for name, (same, train) in OTHER_WAYS.items():
        told[name] = {"unbroken": told[same]["unbroken"], **Trials(train, directory / name).few()}
    return told


if __name__ == "__main__":
    preload()
    torch.set_num_threads(1)
    print(json.dumps(main(Path(sys.argv[1]))))
