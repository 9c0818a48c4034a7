"""Files of safetensors in any layout: each comes back byte for byte, and its tensors are what the library reads."""

import json
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from moonclip import CheckpointManager
from tests.modeldirs import digests

WIDTHS = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F64": 8}
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda name: name != "__metadata__")
SHAPES = st.lists(st.integers(0, 40), max_size=3)

Tensor = tuple[str, str, list[int]]
TENSORS = st.lists(
    st.tuples(NAMES, st.sampled_from(sorted(WIDTHS)), SHAPES), max_size=8, unique_by=lambda each: each[0]
)


def written(path: Path, tensors: Sequence[Tensor], padding: int, seed: int) -> None:
    """A file whose tensors lie in the order given, and are told of in another."""
    order = random.Random(seed)
    described: dict[str, object] = {}
    data = b""
    for name, dtype, shape in tensors:
        count = 1
        for size in shape:
            count *= size
        raw = bytes(count) if dtype == "BOOL" else order.randbytes(count * WIDTHS[dtype])
        described[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    items = list(described.items())
    order.shuffle(items)
    header = json.dumps(dict(items), ensure_ascii=bool(seed % 2)).encode() + b" " * padding
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    alike = (left.dtype, left.shape) == (right.dtype, right.shape)
    return alike and bytes(left.reshape(-1).view(torch.uint8)) == bytes(right.reshape(-1).view(torch.uint8))


@given(one=TENSORS, other=TENSORS, padding=st.integers(0, 70), seed=st.integers(0, 1 << 20))
def test_any_layout_comes_back(one: list[Tensor], other: list[Tensor], padding: int, seed: int) -> None:
    with TemporaryDirectory() as name:
        root = Path(name)
        (root / "in").mkdir()
        written(root / "in" / "model.safetensors", one, padding, seed)
        written(root / "in" / "other.safetensors", other, padding // 2, seed + 1)
        with CheckpointManager(root / "store", async_save=False) as mgr:
            made = mgr.import_model(root / "in", base=None)
            mgr.export(made.id, root / "out", format="files")
            assert digests(root / "out") == digests(root / "in")
            several = any("::" in name for name, *_ in one)
            if one and not several:
                loaded = mgr.load(made.id, items=["model"])["model"]
                told = load_file(root / "in" / "model.safetensors")
                assert loaded.keys() == told.keys()
                assert all(same(loaded[name], tensor) for name, tensor in told.items())
