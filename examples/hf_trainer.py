"""Hugging Face's Trainer with its checkpoints in a store: trained, and resumed from a commit on another branch.

    python examples/hf_trainer.py checkpoints

The model is small and the text is made up, so nothing is downloaded.
"""

import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from moonclip import CheckpointManager
from moonclip.integrations.transformers import MoonclipCallback, WithoutFiles

TINY = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)


def train(path: Path, rev: str | None = None, branch: str | None = None) -> dict[int, float]:
    """Train until step 30, from the newest commit or from another one; returns the losses by step."""
    rows = [{"input_ids": row, "labels": row} for row in torch.arange(512).reshape(32, 16) % 64]
    args = TrainingArguments(
        output_dir=f"{path}-out",
        max_steps=30,
        per_device_train_batch_size=4,
        learning_rate=5e-3,
        logging_steps=1,
        save_steps=10,
        eval_strategy="steps",
        eval_steps=10,
        save_total_limit=2,
        load_best_model_at_end=True,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        log_level="error",
    )
    with CheckpointManager(path) as mgr:
        callback = MoonclipCallback(mgr)
        torch.manual_seed(0)
        model = GPT2LMHeadModel(TINY)
        trainer = WithoutFiles(model=model, args=args, train_dataset=rows, eval_dataset=rows[:8], callbacks=[callback])
        trainer.train(resume_from_checkpoint=callback.resume_from(rev, branch=branch))
        for snapshot in mgr.log():
            kept = "pruned" if snapshot.absent else ", ".join(snapshot.tags)
            print(f"{snapshot.id[:8]}  step {snapshot.step:2}  eval_loss {snapshot.metadata['eval_loss']:.4f}  {kept}")
        return {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}


def main(path: Path) -> None:
    """Train, then train the last ten steps again on a branch of their own."""
    first = train(path)
    again = train(path, rev="step:20", branch="again")
    print("the rest of the curve is the same:", first == again)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "checkpoints"))
