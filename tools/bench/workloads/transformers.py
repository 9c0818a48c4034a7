"""Runs of the byte transformer: all of it, most of it frozen, low-rank adapters on it, and in mixed precision."""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn

from tools.training import ByteTransformer, Shape, Training

from .run import Held, Items, Run

DENSE: Final = Shape(width=656, layer_count=8, head_count=8, context=256, batch=1)
"""41.7 M parameters; with AdamW's moments 500 MB. One text a batch, so that a step takes well under a second."""

MIDDLE: Final = Shape(width=256, layer_count=4, head_count=4, context=64, batch=1)
"""39 MB of state, to be saved hundreds of times."""

SMALL: Final = Shape(width=32, layer_count=2, head_count=2, context=32, batch=1)
"""For the benches' own tests."""

FINE_TUNE_LEARNING_RATE: Final = 1e-4
_RANK: Final = 8


def dense(shape: Shape, threads: int) -> Run:
    """Model and AdamW, float32, all of it trained."""
    training = Training(shape=shape, threads=threads)
    return Run(
        _items(training.model, training.optimizer),
        training.optimizer,
        training.learn,
        training.update,
        aside={"scheduler": training.scheduler},
    )


def frozen(shape: Shape, threads: int) -> Run:
    """All blocks but the last one frozen; the optimizer owns what trains."""
    training = Training(shape=shape, threads=threads)
    for block in list(training.model.blocks)[:-1]:
        block.requires_grad_(requires_grad=False)
    return _fine_tuned(training)


def lora(shape: Shape, threads: int) -> Run:
    """Adapters of rank 8 at every linear layer of a frozen base; the optimizer owns them alone."""
    training = Training(shape=shape, threads=threads)
    training.model.requires_grad_(requires_grad=False)
    for block in training.model.blocks:
        for name, layer in list(block.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(block, name, Adapted(layer))
    return _fine_tuned(training)


def bf16(shape: Shape, threads: int) -> Run:
    """A bfloat16 model, and AdamW on float32 masters of its weights."""
    training = Training(shape=shape, threads=threads)
    training.model.bfloat16()
    masters = Masters(training.model)
    items = {**_items(training.model, masters.optimizer), "masters": masters}
    return Run(items, masters.optimizer, training.learn, masters.update, parts=_kinds(training.model, masters))


class Adapted(nn.Module):
    """A linear layer and a low-rank one beside it, which begins at zero."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, _RANK, bias=False)
        self.up = nn.Linear(_RANK, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """float32[..., in] to float32[..., out]."""
        added: Tensor = self.base(hidden) + self.up(self.down(hidden))
        return added


class Masters:
    """Float32 masters of a bfloat16 model's parameters, and AdamW on them."""

    def __init__(self, model: ByteTransformer) -> None:
        self._parameters = dict(model.named_parameters())
        self._masters = {name: nn.Parameter(p.detach().float()) for name, p in self._parameters.items()}
        self.optimizer = torch.optim.AdamW(self._masters.values(), lr=FINE_TUNE_LEARNING_RATE)

    def state_dict(self) -> dict[str, Tensor]:
        """The masters, by parameter."""
        return {name: master.detach() for name, master in self._masters.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take masters over."""
        for name, master in self._masters.items():
            master.detach().copy_(state[name])

    def update(self) -> None:
        """Step on the masters, then round them into the model."""
        for name, parameter in self._parameters.items():
            self._masters[name].grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None
        self.optimizer.step()
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(self._masters[name])


def _items(model: nn.Module, optimizer: torch.optim.Optimizer) -> Items:
    return {"model": model, "optimizer": optimizer}


def _fine_tuned(training: Training) -> Run:
    """A run of the parameters that are not frozen."""
    trained = {name: parameter for name, parameter in training.model.named_parameters() if parameter.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=FINE_TUNE_LEARNING_RATE)
    training.optimizer, training.scheduler = optimizer, _constant(optimizer)

    def changing() -> Items:
        return {
            "model": Held({name: parameter.detach() for name, parameter in trained.items()}),
            "optimizer": optimizer,
        }

    return Run(
        _items(training.model, optimizer), optimizer, training.learn, training.update, parts={"what changes": changing}
    )


def _constant(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)


def _kinds(model: ByteTransformer, masters: Masters) -> dict[str, Callable[[], Items]]:
    def moments(kind: str) -> Callable[[], Items]:
        def taken() -> Items:
            return {kind: Held({str(n): state[kind] for n, state in enumerate(masters.optimizer.state.values())})}

        return taken

    return {
        "weights": lambda: {"model": model},
        "masters": lambda: {"masters": masters},
        "exp_avg": moments("exp_avg"),
        "exp_avg_sq": moments("exp_avg_sq"),
    }
