"""Models as those take them that keep tensors, not files."""

import json
from pathlib import Path
from typing import Final

from safetensors.torch import load_file, save_file
from torch import Tensor

from .keeper import Model, placed

_INDEX: Final = "model.safetensors.index.json"


def read(model: Model) -> dict[str, Tensor]:
    """All tensors of a model directory, by name."""
    folder = Path(model.path)
    index = folder / _INDEX
    if index.exists():
        files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        files = sorted(path.name for path in folder.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(folder / file).items()}


def write(folder: Path, model: Model, tensors: dict[str, Tensor]) -> None:
    """One file, as a user would have it."""
    save_file(tensors, placed(folder, model, "model.safetensors"), {"format": "pt"})
