"""Entries of one item on their way between a person's objects and the engine."""

from dataclasses import dataclass
from typing import Any

import torch

from store.format.values import Plain

from .tensors import TensorSource


@dataclass(slots=True)  # not frozen: that takes three times as long to make, of twenty thousand
class FlatTensor:
    """A tensor to be captured. Never altered.

    Attributes:
        position: its place among its siblings.
        source: where its bytes come from; tied names share one.
    """

    position: int
    source: TensorSource


@dataclass(frozen=True, slots=True)
class FlatValue:
    """A value, with all that is inside it.

    Attributes:
        position: its place among its siblings.
        value: plain value.
    """

    position: int
    value: Plain


@dataclass(frozen=True, slots=True)
class FlatContainer:
    """A container with tensors somewhere below.

    Attributes:
        position: its place among its siblings.
        container: what it is.
        info: what else is needed to build it, a plain value.
    """

    position: int
    container: str
    info: Plain = None


@dataclass(frozen=True, slots=True)
class LoadedTensor:
    """A tensor that was read.

    Attributes:
        position: its place among its siblings.
        tensor: plain and strided.
    """

    position: int
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class LoadedValue:
    """A value that was decoded.

    Attributes:
        position: its place among its siblings.
        value: whatever was saved.
    """

    position: int
    value: Any


FlatEntry = FlatTensor | FlatValue | FlatContainer
LoadedEntry = LoadedTensor | LoadedValue | FlatValue | FlatContainer


@dataclass(frozen=True, slots=True)
class FlatState:
    """One item, flattened.

    Attributes:
        entries: by name, each container before its children, children in order. The root is named ``""``.
        ties: groups of names of one tensor: same memory, shape, strides, dtype and device. Views that only overlap are
            no tie: they come back with their values, each in memory of its own.
    """

    entries: dict[str, FlatEntry]
    ties: tuple[tuple[str, ...], ...]
