"""Coral: weights as NumPy arrays in HDF5, the similar ones as differences."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from . import tensors
from .keeper import Model

coral: Any = import_module("coral")
weight_tensor: Any = import_module("coral.core.weight_tensor")


class Coral:
    """A commit for each model. It finds by itself what is similar, among what this process has stored.

    NumPy has no bfloat16, so such weights go in and come out through float32, which loses nothing.
    """

    keeps_files: ClassVar[bool] = False

    def __init__(self, root: Path) -> None:
        is_new = not root.exists()
        root.mkdir(parents=True, exist_ok=True)
        self._repo: Any = coral.Repository(root, init=is_new)

    def put(self, models: Sequence[Model]) -> None:
        """See :class:`Keeper`. Names tell models apart: differences are looked up by name alone."""
        for model in models:
            weights = {name: _weight(name, tensor) for name, tensor in _named(model).items()}
            self._repo.stage_weights(weights)
            self._repo.commit(model.name)

    def get(self, models: Sequence[Model], folder: Path) -> None:
        """See :class:`Keeper`."""
        commits = {commit.metadata.message: commit.commit_hash for commit in self._repo.log(max_commits=len(models))}
        for model in models:
            found = self._repo.get_all_weights(commits[model.name])
            kinds = {name: tensor.dtype for name, tensor in _named(model).items()}
            given = {name: torch.from_numpy(np.array(weight.data)).to(kinds[name]) for name, weight in found.items()}
            plain = {name.removeprefix(f"{model.name}/"): tensor for name, tensor in given.items()}
            tensors.write(folder, model, plain)


def _named(model: Model) -> dict[str, Tensor]:
    return {f"{model.name}/{name}": tensor for name, tensor in tensors.read(model).items()}


def _weight(name: str, tensor: Tensor) -> Any:
    data = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return coral.WeightTensor(
        data=data, metadata=weight_tensor.WeightMetadata(name=name, shape=data.shape, dtype=data.dtype)
    )
