"""ZipNN: planes of bytes through an entropy coder, file by file."""

import json
import shutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final

from .keeper import Model, placed

zipnn: Any = import_module("zipnn")

_TYPES: Final = {"BF16": "bfloat16", "F32": "float32"}
_WEIGHTS: Final = ".safetensors"
"""Of what is compressed; other files are copied, as its scripts leave them."""


class Zipnn:
    """Weights files as its scripts compress any file: as a string of numbers of one type."""

    keeps_files: ClassVar[bool] = True
    has_deltas: ClassVar[bool] = False

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, models: Sequence[Model]) -> None:
        """See :class:`Keeper`."""
        for model in models:
            for file in model.files():
                source = Path(model.path) / file
                if source.suffix == _WEIGHTS:
                    data, beside = source.read_bytes(), self._beside(models, model, file, source.parents[1])
                    packed = _coder(beside, _type(data)).compress(data, **beside)
                    placed(self._root, model, f"{file}.znn").write_bytes(packed)
                else:
                    shutil.copyfile(source, placed(self._root, model, file))

    def get(self, models: Sequence[Model], folder: Path) -> None:
        """See :class:`Keeper`."""
        for model in models:
            for file in model.files():
                target = placed(folder, model, file)
                if target.suffix == _WEIGHTS:
                    beside = self._beside(models, model, file, folder)
                    packed = (self._root / model.name / f"{file}.znn").read_bytes()
                    target.write_bytes(_coder(beside).decompress(packed, **beside))
                else:
                    shutil.copyfile(self._root / model.name / file, target)

    def _beside(self, models: Sequence[Model], model: Model, file: str, folder: Path) -> dict[str, bytes]:
        """What a file is stored against: the first one of its length, if there is one; it takes no other.

        ``folder`` is where earlier models lie: where they came from, or where they were just written.
        """
        length = (Path(model.path) / file).stat().st_size
        for earlier in models[: models.index(model)] if self.has_deltas else ():
            for other in earlier.files():
                path = Path(earlier.path) / other
                if path.suffix == _WEIGHTS and path.stat().st_size == length:
                    return {"delta_second_data": (folder / earlier.name / other).read_bytes()}
        return {}


class ZipnnDeltas(Zipnn):
    """Weights files as their XOR with an earlier one."""

    has_deltas: ClassVar[bool] = True


def _coder(beside: dict[str, bytes], kind: str = "float32") -> Any:
    """For numbers of one type; packed ones say themselves which."""
    delta = {"delta_compressed_type": "byte"} if beside else {}
    return zipnn.ZipNN(input_format="byte", bytearray_dtype=kind, **delta)


def _type(data: bytes) -> str:
    """That of most of a safetensors file's bytes."""
    length = int.from_bytes(data[:8], "little")
    sizes = dict.fromkeys(_TYPES, 0)
    for entry in json.loads(data[8 : 8 + length]).values():
        if entry.get("dtype") in sizes:
            begin, end = entry["data_offsets"]
            sizes[entry["dtype"]] += end - begin
    return _TYPES[max(sizes, key=lambda each: sizes[each])]
