"""Files of a model that are damaged anywhere: each is imported as what it is, and comes back byte for byte."""

import io
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from moonclip import CheckpointManager
from tests.modeldirs import digests, write_gguf

Damage = tuple[int, bytes]


def whole_files() -> dict[str, bytes]:
    """One of each kind, small enough to damage any byte of it, and large enough not to be stored as it is."""
    generator = torch.Generator().manual_seed(3)
    state = {"a": torch.randn(5, 7, generator=generator), "b": torch.randn(4_000, generator=generator), "n": 3}
    zipped = io.BytesIO()
    torch.save(state, zipped)
    with TemporaryDirectory() as name:
        write_gguf(Path(name) / "m.gguf", {"a": b"x" * 70_000, "b": b"y" * 300})
        gguf = (Path(name) / "m.gguf").read_bytes()
    tensors = {name: tensor for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}
    return {"m.pt": zipped.getvalue(), "m.safetensors": save(tensors), "m.gguf": gguf}


WHOLE = whole_files()
PLACES = st.one_of(st.integers(0, 700), st.integers(0, 80_000), st.integers(-700, -1))
DAMAGE = st.lists(st.tuples(PLACES, st.binary(min_size=1, max_size=9)), max_size=3)


def damaged(data: bytes, damage: list[Damage], cut: int) -> bytes:
    out = bytearray(data)
    for at, new in damage:
        place = at % len(out)
        out[place : place + len(new)] = new
    return bytes(out[: len(out) - cut % len(out)])


@given(damage=DAMAGE, cut=st.one_of(st.just(0), st.integers(0, 80_000)))
def test_whatever_is_wrong_with_a_file_it_comes_back(damage: list[Damage], cut: int) -> None:
    with TemporaryDirectory() as name:
        root = Path(name)
        (root / "in").mkdir()
        for file, data in WHOLE.items():
            (root / "in" / file).write_bytes(damaged(data, damage, cut))
        with CheckpointManager(root / "store", async_save=False) as mgr:
            mgr.import_model(root / "in", base=None)
            mgr.export("main", root / "out", format="files")
        assert digests(root / "out") == digests(root / "in")
