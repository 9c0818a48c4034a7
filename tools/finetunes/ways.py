"""How each kind of fine-tune begins, what it learns, and what is saved of it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.nn import functional
from transformers import BertForSequenceClassification, BertModel

from .recipes import Kind
from .texts import Batch

Loss = Callable[[Any, Batch], Tensor]
"""What is made small, given a model and what it is trained on."""

_SHARPNESS: Final = 20.0
"""What similarities are multiplied by before the softmax, as sentence-transformers do."""

_NEW_TOKENS: Final = tuple(f"[NEW{number}]" for number in range(13))
_PUBLIC_NAME: Final = "sentence-transformers/all-MiniLM-L6-v2"
"""What an adapter says of its base: not where that lies on this machine."""


def contrast(model: Any, batch: Batch) -> Tensor:
    """Each function is to be nearest to what is said of it, of all that the batch says."""
    code, words = (_meaning(model, texts) for texts in batch)
    return functional.cross_entropy(code @ words.T * _SHARPNESS, torch.arange(len(code)))


def classify(model: Any, batch: Batch) -> Tensor:
    """Tell functions from words."""
    found = torch.cat([model(**texts).logits for texts in batch])
    return functional.cross_entropy(found, torch.arange(2).repeat_interleave(len(found) // 2))


def _meaning(model: Any, texts: dict[str, Tensor]) -> Tensor:
    """Unit vectors, float32[texts, width]: means over tokens."""
    hidden = model(**texts).last_hidden_state.float()
    present = texts["attention_mask"][..., None]
    return functional.normalize((hidden * present).sum(1) / present.sum(1))


# --- beginnings -------------------------------------------------------------------------------------------------------


def _whole(base: Path, _: Any) -> Any:
    return BertModel.from_pretrained(base)


def _last_layer(base: Path, _: Any) -> Any:
    model = BertModel.from_pretrained(base).requires_grad_(requires_grad=False)
    model.encoder.layer[-1].requires_grad_(requires_grad=True)
    return model


def _low_rank(base: Path, _: Any) -> Any:
    settings = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.1, target_modules=["query", "value"])
    model = BertModel.from_pretrained(base)
    model.name_or_path = model.config._name_or_path = _PUBLIC_NAME  # noqa: SLF001 - both are written down beside an adapter
    return get_peft_model(model, settings)


def _half(base: Path, _: Any) -> Any:
    return BertModel.from_pretrained(base, dtype=torch.bfloat16)


def _more_tokens(base: Path, tokenizer: Any) -> Any:
    tokenizer.add_special_tokens(list(_NEW_TOKENS))
    model = BertModel.from_pretrained(base)
    model.resize_token_embeddings(tokenizer.get_vocab_size())
    return model


def _classifier(base: Path, _: Any) -> Any:
    return BertForSequenceClassification.from_pretrained(base, num_labels=2)


# --- ends -------------------------------------------------------------------------------------------------------------


def _as_it_is(model: Any) -> Any:
    return model


def _merged(model: Any) -> Any:
    return model.merge_and_unload()


def _as_half(model: Any) -> Any:
    return model.to(torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to train.

    Attributes:
        begin: the model to train, given the base's directory and a tokenizer, which may get more tokens.
        end: what is saved, given the trained model.
        loss: what is made small.
        is_sharded: whether it is saved as several files.
    """

    begin: Callable[[Path, Any], Any] = _whole
    end: Callable[[Any], Any] = _as_it_is
    loss: Loss = contrast
    is_sharded: bool = False


WAYS: Final[dict[Kind, Way]] = {
    "full": Way(),
    "sharded": Way(is_sharded=True),
    "frozen": Way(_last_layer),
    "adapter": Way(_low_rank),
    "merged": Way(_low_rank, _merged),
    "bf16": Way(_half),
    "cast": Way(end=_as_half),
    "extended": Way(_more_tokens),
    "wrapped": Way(_classifier, loss=classify),
}
