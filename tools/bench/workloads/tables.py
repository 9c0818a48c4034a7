"""Runs that are no transformer: very many small tensors, and one very large table of which little changes."""

from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from .run import Run

LAYER_COUNT: Final = 2_500
"""Each with a weight and a bias, each of those with AdamW's step and two moments: 20,000 tensors."""

ROW_COUNT: Final = 1_000_000
ROW_FLOATS: Final = 128
"""512 MB in all."""
TOUCHED_PER_STEP: Final = 1_000
"""Of a million: one per cent in ten steps, which is how far apart the saves of the size bench are."""


class Experts(nn.Module):
    """Many little layers whose outputs are added up."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 96) for _ in range(count))

    def forward(self, inputs: Tensor) -> Tensor:
        """float32[batch, 8] to float32[batch, 96]."""
        return torch.stack([expert(inputs) for expert in self.experts]).mean(0)


def tiny(layer_count: int, threads: int) -> Run:
    """Very many small tensors: model and AdamW."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, teacher = Experts(layer_count), nn.Linear(8, 96).requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def learn() -> None:
        inputs = torch.randn(16, 8)
        optimizer.zero_grad()
        functional.mse_loss(model(inputs), teacher(inputs).sin()).backward()  # type: ignore[no-untyped-call]

    return Run({"model": model, "optimizer": optimizer}, optimizer, learn, optimizer.step)


def embedding(row_count: int, threads: int) -> Run:
    """A table whose rows learn to tell pairs that belong together from others; plain SGD moves only rows it met."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    table = nn.Embedding(row_count, ROW_FLOATS, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    pair_count = max(1, row_count * TOUCHED_PER_STEP // ROW_COUNT // 2)

    def learn() -> None:
        left, right = torch.randint(row_count, (2, pair_count))
        belong = (left % 16 == right % 16).float()
        optimizer.zero_grad()
        scores = (table(left) * table(right)).mean(1)
        loss = functional.binary_cross_entropy_with_logits(scores, belong, reduction="sum")
        loss.backward()  # type: ignore[no-untyped-call]

    return Run({"model": table, "optimizer": optimizer}, optimizer, learn, optimizer.step)
