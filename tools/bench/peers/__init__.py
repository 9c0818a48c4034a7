"""The libraries that are measured, each in an environment and a process of its own."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RUNNER: Final = Path(__file__).with_name("runner.py")
THEIRS: Final = Path(".venv-peers/bin/python")
_OURS: Final = Path(sys.executable)


@dataclass(frozen=True, slots=True)
class Peer:
    """A library with certain settings.

    Attributes:
        name: its adapter's, and what the command line calls it.
        label: what people call it.
        python: interpreter of the environment it is installed in.
    """

    name: str
    label: str
    python: Path


OURS: Final = Peer("ours", "moonclip-store", _OURS)
OURS_BF16: Final = Peer("ours-bf16", "moonclip-store, bf16", _OURS)
OURS_DCP: Final = Peer("ours-dcp", "moonclip-store through DCP", _OURS)
OVERLAP: Final = Peer("overlap", "moonclip-store, overlap", _OURS)
PREWARMED: Final = Peer("prewarmed", "moonclip-store, prewarmed", _OURS)
RUST: Final = Peer("rust", "moonclip 0.3.1 (Rust)", THEIRS)
RUST_BF16: Final = Peer("rust-bf16", "moonclip 0.3.1, bf16", THEIRS)
TORCH: Final = Peer("torch", "torch.save + fsync", THEIRS)
SAFETENSORS: Final = Peer("safetensors", "safetensors + fsync", THEIRS)
TORCH_CHECKPOINTING: Final = Peer("tckpt", "torch-checkpointing 0.1.1", THEIRS)
DCP: Final = Peer("dcp", "DCP async_save", THEIRS)
COPY: Final = Peer("copy", "bare copy, 2 threads", _OURS)

PEERS: Final = {
    peer.name: peer
    for peer in (
        COPY,
        OURS,
        OURS_BF16,
        OURS_DCP,
        OVERLAP,
        PREWARMED,
        RUST,
        RUST_BF16,
        TORCH,
        SAFETENSORS,
        TORCH_CHECKPOINTING,
        DCP,
    )
}
