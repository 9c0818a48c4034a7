"""State of the random number generators: torch's (CPU and CUDA), NumPy's global one and Python's. No pickle.

Generators that a program makes for itself are not covered: save a ``torch.Generator`` as a value, or the
``state_dict`` of what holds it.
"""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from store.errors import Incompatible
from store.format.values import Plain


def capture() -> dict[str, Plain]:
    """State of all global generators, as a plain value.

    CUDA's is left out as long as no CUDA work was done: asking would start CUDA on every device.
    """
    return {
        "python": random.getstate(),
        "numpy": _with_bytes(np.random.get_state(legacy=False)),
        "torch": torch.get_rng_state().numpy().tobytes(),
        "cuda": [state.numpy().tobytes() for state in _cuda_states()],
    }


def restore(state: Mapping[str, Any]) -> None:
    """Continue all streams where :func:`capture` found them.

    Args:
        state: what ``capture`` gave. Devices that are not here are skipped, devices that were not there left alone.

    Raises:
        Incompatible: it is no such state. Generators may have been set in part.
    """
    try:
        random.setstate(state["python"])
        np.random.set_state(_with_arrays(state["numpy"]))
        torch.set_rng_state(_byte_tensor(state["torch"]))
        for device, data in zip(range(torch.cuda.device_count()), state["cuda"], strict=False):
            torch.cuda.set_rng_state(_byte_tensor(data), device)
    except (TypeError, ValueError, KeyError, RuntimeError, AttributeError) as error:
        raise Incompatible(f"not a state of the random number generators ({error})") from error


def _cuda_states() -> list[torch.Tensor]:
    started: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.get_rng_state_all() if started else []


def _byte_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _with_bytes(node: Any) -> Plain:
    """NumPy's state with its arrays spelled as dtype and bytes; bit generators differ in what they hold."""
    if isinstance(node, dict):
        return {key: _with_bytes(child) for key, child in node.items()}
    return (node.dtype.str, node.tobytes()) if isinstance(node, np.ndarray) else node


def _with_arrays(node: Plain) -> Any:
    if isinstance(node, dict):
        return {key: _with_arrays(child) for key, child in node.items()}
    return np.frombuffer(node[1], node[0]).copy() if isinstance(node, tuple) else node
