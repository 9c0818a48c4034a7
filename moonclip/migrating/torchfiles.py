"""Files of other tools, read without running anything that they hold."""

from pathlib import Path
from typing import Any

import torch

from store.disk.files import Files

from ..exchange import pickling, safetensors
from ..exchange.loading import load_files
from ..state.tensors import torch_dtype


def read_torch(path: Path) -> Any:
    """What a file of ``torch.save`` holds, on the CPU. Not mapped: a run that goes on may write the file anew.

    Raises:
        Unsafe: it holds more than tensors, values and containers.
        Corrupt: it cannot be read.
        OSError: likewise.
    """
    with path.open("rb") as file:
        return pickling.load(file, str(path))


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file by name.

    Raises:
        Corrupt: it is not whole.
        Incompatible: a dtype that cannot be stored.
        OSError: it cannot be read.
    """
    located = safetensors.read_header(path, Files())
    into = {name: torch.empty(each.shape, dtype=torch_dtype(each.dtype)) for name, each in located.items()}
    loaded: dict[str, torch.Tensor] = load_files(path, into)
    return loaded
