"""Directories of directories, of which each is a checkpoint: Hugging Face's trainer's, and torch_checkpointing's."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from store.disk.files import Files
from store.errors import Corrupt, Incompatible, Unsafe

from ..exchange.hub import weight_map
from ..exchange.tensorinputs import DEFAULT_ITEM
from .files import found_at
from .source import Found, Loaded, in_order, step_in, step_of
from .torchfiles import read_safetensors, read_torch

_TRAINER_STATE: Final = "trainer_state.json"
_SHARDED: Final = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WHOLE: Final = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin")
_STATES: Final = {"optimizer.pt": "optimizer", "scheduler.pt": "scheduler", "scaler.pt": "scaler"}
_RANDOM: Final = "rng_state.pth"

_ITEM_FILE: Final = re.compile(r"(?P<item>.+)_(?P<rank>\d+)\.(?P<form>pt|json|safetensors)")
_STEP: Final = "step"


class HuggingFace:
    """``checkpoint-500`` and the like, as the trainer of ``transformers`` leaves them.

    Args:
        directories: the checkpoints.
    """

    kind = "Hugging Face checkpoints"
    passed_over: Sequence[str] = ()

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = {path.name: path for path in directories}

    def found(self) -> list[Found]:
        """By step."""
        return in_order([found_at(name, path, step_in(name)) for name, path in self._directories.items()])

    def load(self, found: Found) -> Loaded:
        """Model, optimizer, scheduler and scaler are items; whatever else lies there is kept as files.

        So are random states, if reading them would run code. What the trainer logged last becomes metadata.
        """
        directory = self._directories[found.name]
        files = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*") if path.is_file()}
        model, taken = _model(directory, files)
        items = {DEFAULT_ITEM: model} if taken else {}
        for name in [name for name in _STATES if name in files]:
            items[_STATES[name]] = read_torch(files[name])
            taken.add(name)
        if _RANDOM in files and (random := _random(files[_RANDOM])) is not None:
            items[Path(_RANDOM).stem] = random
            taken.add(_RANDOM)
        kept = {name: path for name, path in sorted(files.items()) if name not in taken}
        return Loaded(items, _last_logged(files.get(_TRAINER_STATE)), kept)

    def close(self) -> None:
        """Nothing is open."""


class TorchCheckpointing:
    """Directories in which ``torch_checkpointing`` saved from one rank, in its default layout.

    Args:
        directories: the checkpoints.
    """

    kind = "torch_checkpointing checkpoints"
    passed_over: Sequence[str] = ()

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = {path.name: path for path in directories}

    def found(self) -> list[Found]:
        """By step: the item of that name, if there is one, else what the directory's name tells."""
        return in_order([found_at(name, path, _own_step(path)) for name, path in self._directories.items()])

    def load(self, found: Found) -> Loaded:
        """Each file of an item is one; whatever else lies there is kept as files.

        Raises:
            Incompatible: several ranks saved it.
        """
        directory = self._directories[found.name]
        items: dict[str, Any] = {}
        files: dict[str, Path] = {}
        for path in sorted(path for path in directory.rglob("*") if path.is_file()):
            match = _ITEM_FILE.fullmatch(path.name) if path.parent == directory else None
            if match is None:
                files[path.relative_to(directory).as_posix()] = path
            elif match["rank"] != "0":
                raise Incompatible(
                    f"{directory} was saved by several ranks; load it whole with torch_checkpointing, into a model on"
                    " one process, save that with torch.save, and migrate the file",
                    path=str(path),
                )
            else:
                items[match["item"]] = _read(path)
        return Loaded(items, {}, files)

    def close(self) -> None:
        """Nothing is open."""


def is_checkpoint_of_trainer(directory: Path) -> bool:
    """Whether a directory is one checkpoint of Hugging Face's trainer."""
    return directory.name.startswith("checkpoint-") and (directory / _TRAINER_STATE).is_file()


def items_in(directory: Path) -> set[str]:
    """Items that ``torch_checkpointing`` left in a directory; none if that is no checkpoint of its."""
    matches = (_ITEM_FILE.fullmatch(path.name) for path in directory.iterdir())
    return {match["item"] for match in matches if match is not None and match["rank"] == "0"}


def _own_step(directory: Path) -> int | None:
    path = directory / f"{_STEP}_0.pt"
    step = step_of(read_torch(path)) if path.exists() else None
    return step_in(directory.name) if step is None else step


def _read(path: Path) -> Any:
    if path.suffix == ".json":
        return _read_json(path)
    return read_torch(path) if path.suffix == ".pt" else _read_tensors(path)


def _model(directory: Path, files: Mapping[str, Path]) -> tuple[dict[str, Any], set[str]]:
    """The model of a checkpoint, and the files that it was read from."""
    for index in [name for name in _SHARDED if name in files]:
        parts = sorted(set(weight_map(files[index], Files()).values()))
        missing = [part for part in parts if part not in files]
        if missing:
            raise Corrupt(f"{directory} lacks {', '.join(missing)}, which {index} names", path=str(directory))
        model = {name: tensor for part in parts for name, tensor in _read_tensors(files[part]).items()}
        return model, {index, *parts}
    for name in [name for name in _WHOLE if name in files]:
        return _read_tensors(files[name]), {name}
    return {}, set()


def _read_tensors(path: Path) -> dict[str, Any]:
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    state = read_torch(path)
    if not isinstance(state, dict):
        raise Corrupt(f"{path} holds a {type(state).__name__}, not tensors by name", path=str(path))
    return state


def _random(path: Path) -> Any:
    """Random states, or ``None`` if they cannot be read safely: those of NumPy are pickled."""
    try:
        return read_torch(path)
    except Unsafe:
        return None


def _last_logged(path: Path | None) -> dict[str, Any]:
    """Numbers of the last line of the trainer's log that tells a loss, else of the last one."""
    state = _read_json(path) if path is not None else {}
    found = state.get("log_history") if isinstance(state, dict) else None
    history = [line for line in found if isinstance(line, dict)] if isinstance(found, list) else []
    telling = [line for line in history if "loss" in line] or history
    last = telling[-1] if telling else {}
    return {name: value for name, value in last.items() if type(value) in {int, float} and name != _STEP}


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{path} is no JSON: {error}", path=str(path)) from error
