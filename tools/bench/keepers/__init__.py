"""Ways to keep a family of models, each in an environment and a process of its own."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Final

from ..peers import THEIRS, Peer
from .keeper import Keeper

_OURS: Final = Path(sys.executable)

OURS: Final = Peer("ours", "moonclip-store", _OURS)
COPY: Final = Peer("copy", "cp + fsync", _OURS)
ZSTD: Final = Peer("zstd", "zstd -3, each file", THEIRS)
XET: Final = Peer("xet", "hf-xet 1.8.0, local", THEIRS)
ZIPNN: Final = Peer("zipnn", "zipnn 0.5.4", THEIRS)
ZIPNN_DELTA: Final = Peer("zipnn-delta", "zipnn 0.5.4, deltas", THEIRS)
HEXZ: Final = Peer("hexz", "hexz 0.8.2, one archive", THEIRS)
HEXZ_THIN: Final = Peer("hexz-thin", "hexz 0.8.2, thin archives", THEIRS)
CORAL: Final = Peer("coral", "coral-ml 1.0.0", THEIRS)
RUST: Final = Peer("rust", "moonclip 0.3.1 (Rust)", THEIRS)

KEEPERS: Final = {peer.name: peer for peer in (COPY, OURS, ZSTD, XET, ZIPNN, ZIPNN_DELTA, HEXZ, HEXZ_THIN, CORAL, RUST)}

_KINDS: Final = {
    "ours": "ours:Ours",
    "copy": "plain:Copies",
    "zstd": "plain:Zstd",
    "xet": "xet:Xet",
    "zipnn": "zipnn:Zipnn",
    "zipnn-delta": "zipnn:ZipnnDeltas",
    "hexz": "hexz:OneArchive",
    "hexz-thin": "hexz:ThinArchives",
    "coral": "coral:Coral",
    "rust": "rust:Snapshots",
}


def keeper(name: str) -> type[Keeper]:
    """The class of that name; imported, with its library, only where it is asked for."""
    module, _, kind = _KINDS[name].partition(":")
    found: type[Keeper] = getattr(import_module(f"{__package__}.{module}"), kind)
    return found
