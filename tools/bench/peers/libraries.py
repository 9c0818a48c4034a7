"""Which adapter is whose; each is imported only in the environment that has its library."""

from importlib import import_module
from typing import Final

from .library import Library

_ADAPTERS: Final = {
    "ours": "ours:Ours",
    "ours-bf16": "ours:OursBf16",
    "ours-dcp": "dcp:OursDcp",
    "overlap": "ours:Overlapping",
    "prewarmed": "ours:Prewarmed",
    "rust": "rust:Rust",
    "rust-bf16": "rust:RustBf16",
    "torch": "plain:TorchSave",
    "safetensors": "plain:Safetensors",
    "tckpt": "torch_checkpointing:TorchCheckpointing",
    "dcp": "dcp:Dcp",
    "copy": "copying:Copying",
}


def adapter(name: str) -> type[Library]:
    """The adapter's class."""
    module, _, kind = _ADAPTERS[name].partition(":")
    found: type[Library] = getattr(import_module(f"{__package__}.{module}"), kind)
    return found
