"""A small, real training run: a byte-level transformer that learns to write Python, seeded and repeatable.

The demo and the benches train with it, so what they measure is what a run makes: weights that move, moments that
drift, and counters. The text is the standard library of the Python it runs on, so there is nothing to download.
"""

import math
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

THREAD_COUNT: Final = 1
"""Fixed: another number of threads adds in another order, and a run would not repeat bit for bit."""

_MIN_SPECIAL_BYTES: Final = 1_000_000
_UNUSUAL_FOLDERS: Final = frozenset({"test", "tests", "idlelib"})


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model and of a batch; as they stand, 6.3 M parameters."""

    width: int = 320
    layer_count: int = 5
    head_count: int = 5
    context: int = 128
    batch: int = 4
    dropout: float = 0.1


class Block(nn.Module):
    """Attention and a feed-forward layer, each normalized first and added."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_count = shape.head_count
        self.attention_norm = nn.LayerNorm(shape.width)
        self.queries_keys_values = nn.Linear(shape.width, 3 * shape.width)
        self.attention_out = nn.Linear(shape.width, shape.width)
        self.forward_norm = nn.LayerNorm(shape.width)
        self.widen = nn.Linear(shape.width, 4 * shape.width)
        self.narrow = nn.Linear(4 * shape.width, shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """float32[batch, time, width] to the same."""
        batch, time, width = hidden.shape
        heads = self.queries_keys_values(self.attention_norm(hidden)).view(batch, time, 3, self.head_count, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(batch, time, width)
        hidden = hidden + self.dropout(self.attention_out(mixed))
        widened = functional.gelu(self.widen(self.forward_norm(hidden)))
        added: Tensor = hidden + self.dropout(self.narrow(widened))
        return added


class ByteTransformer(nn.Module):
    """Predicts the next byte. Its output layer is tied to its embedding, as in most language models."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, shape.width)
        self.position = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layer_count))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, 256, bias=False)
        self.apply(_initialize)
        self.head.weight = self.embed.weight

    def forward(self, text: Tensor) -> Tensor:
        """int64[batch, time] to logits, float32[batch, time, 256]."""
        hidden = self.embed(text) + self.position(torch.arange(text.shape[1]))
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def library_text(*, unusual: bool = False, limit_bytes: int = 8_000_000) -> Tensor:
    """Sources of the standard library, in order of their paths.

    Args:
        unusual: its tests and its editor, for fine-tuning; where an installation has left them out, the last part of
            the rest.
        limit_bytes: no more than this.

    Returns:
        uint8[n].
    """
    texts = b"".join(path.read_bytes() for path in _library_files(unusual=unusual))
    if unusual and len(texts) < _MIN_SPECIAL_BYTES:
        texts = b"".join(path.read_bytes() for path in _library_files(unusual=False))[-_MIN_SPECIAL_BYTES:]
    return torch.from_numpy(np.frombuffer(texts[:limit_bytes], np.uint8).copy())


def _library_files(*, unusual: bool) -> Iterator[Path]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        folders = set(path.relative_to(root).parts[:-1])
        if not folders & {"site-packages", "dist-packages"} and bool(folders & _UNUSUAL_FOLDERS) == unusual:
            yield path


class Training:
    """A run: model, AdamW, a schedule that warms up and decays, and text.

    All chance comes from torch's global generator (batches, dropout), so a run goes on exactly as it would have if
    model, optimizer, scheduler and that generator are restored.

    Args:
        learning_rate: at its peak.
        seed: of everything random.
        shape: sizes.
        threads: threads that torch computes with.
    """

    def __init__(
        self,
        learning_rate: float = 6e-4,
        *,
        seed: int = 0,
        shape: Shape | None = None,
        threads: int = THREAD_COUNT,
    ) -> None:
        shape = shape or Shape()
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(mode=True)
        torch.manual_seed(seed)
        self._shape = shape
        self.text = library_text()
        self.model = ByteTransformer(shape)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, _warm_up_and_decay)

    def step(self) -> float:
        """Train on one batch; returns its loss, nats per byte."""
        loss = self.learn()
        self.update()
        return loss

    def learn(self) -> float:
        """The first half of a step: gradients of one batch; returns its loss."""
        starts = torch.randint(len(self.text) - self._shape.context, (self._shape.batch, 1))
        batch = self.text[starts + torch.arange(self._shape.context + 1)].long()
        logits = self.model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def update(self) -> None:
        """The other half: the optimizer's and the scheduler's step."""
        self.optimizer.step()
        self.scheduler.step()


def _warm_up_and_decay(step: int) -> float:
    return min((step + 1) / 40, 1 / math.sqrt(1 + step / 2000))
