"""A state taken apart into tensors by name and a skeleton that JSON can hold, for formats that keep only tensors."""

from typing import Any

import torch


def taken_apart(state: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """The skeleton of nested state dicts, and their tensors; one that is tied comes once."""
    tensors: dict[str, torch.Tensor] = {}
    names: dict[tuple[int, torch.Size], str] = {}

    def walk(node: Any, name: str) -> Any:
        if isinstance(node, torch.Tensor):
            known = names.setdefault((node.data_ptr(), node.shape), name)
            tensors.setdefault(known, node.contiguous())
            return {"tensor": known}
        if isinstance(node, dict):
            return {"dict": [[key, walk(child, f"{name}.{key}")] for key, child in node.items()]}
        if isinstance(node, list | tuple):
            kind = "list" if isinstance(node, list) else "tuple"
            return {kind: [walk(child, f"{name}.{position}") for position, child in enumerate(node)]}
        return {"value": node}

    return walk(state, ""), tensors


def fill(skeleton: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """The state again."""
    ((kind, content),) = skeleton.items()
    match kind:
        case "tensor":
            return tensors[content]
        case "dict":
            return {key: fill(child, tensors) for key, child in content}
        case "list":
            return [fill(child, tensors) for child in content]
        case "tuple":
            return tuple(fill(child, tensors) for child in content)
        case _:
            return content
