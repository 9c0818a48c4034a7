"""Two LoRA adapters of one base model, each on a branch that begins at the base, loaded back by PEFT itself.

    python examples/peft_adapters.py checkpoints

The model is small and the text is made up, so nothing is downloaded.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

from moonclip import CheckpointManager
from moonclip.integrations.peft import adapter_directory, adapters_of, begin, lineage

TINY = GPT2Config(vocab_size=64, n_positions=16, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
STEPS = 20


def tune(mgr: CheckpointManager, branch: str, distance: int) -> Any:
    """Teach an adapter to count by some distance."""
    model: Any = GPT2LMHeadModel(TINY)
    mgr.load("base", model=model)
    tuned: Any = get_peft_model(model, LoraConfig(target_modules=["c_attn"], r=4, fan_in_fan_out=True))
    optimizer = torch.optim.AdamW([each for each in tuned.parameters() if each.requires_grad], lr=1e-2)
    items = adapters_of(tuned) | {"optimizer": optimizer}
    has_begun = begin(mgr, branch=branch, base="base")
    start = mgr.resume(rng=True, **items) if has_begun else 0
    rows = (torch.randint(64, (8, 1)) + distance * torch.arange(16)) % 64
    for step in range(start, STEPS):
        loss = tuned(input_ids=rows, labels=rows).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 9:
            metadata = {"loss": loss.item(), **lineage(mgr, "base")}
            mgr.save(step=step, rng=True, metadata=metadata, **items)
    return tuned.eval()


def loaded(mgr: CheckpointManager, branch: str) -> Any:
    """The base from its commit, and the adapter from its own."""
    model: Any = GPT2LMHeadModel(TINY)
    mgr.load("base", model=model)
    with adapter_directory(mgr, branch) as path:
        return PeftModel.from_pretrained(model, str(path)).eval()


def main(path: Path) -> None:
    """Save a base, tune two adapters, and load both."""
    torch.manual_seed(0)
    asked = torch.arange(8)[None]
    with CheckpointManager(path) as mgr:
        if "base" not in mgr.tags():
            mgr.save("base", {"model": GPT2LMHeadModel(TINY)})
        tuned = {branch: tune(mgr, branch, distance) for branch, distance in (("by-two", 2), ("by-five", 5))}
        same = [torch.equal(loaded(mgr, name)(asked).logits, model(asked).logits) for name, model in tuned.items()]
        print("same answers:", *same)
        for rev in ("base", *tuned):
            described = mgr.describe(rev)
            print(f"{rev:8} holds {described.raw_bytes:7} B of tensors, and comes after {described.snapshot.parents}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "checkpoints"))
