"""Many items, some at a time. Pure."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def batches(items: Iterable[T], count: int) -> Iterator[list[T]]:
    """So many at a time, and the rest."""
    remaining = iter(items)
    while batch := list(islice(remaining, count)):
        yield batch


def fitting(
    items: Iterable[T], size_bytes: Callable[[T], int], room_bytes: int, most_count: int | None = None
) -> Iterator[list[T]]:
    """As many at a time as fit, in order; one that is too large for itself alone.

    Args:
        items: the items.
        size_bytes: how large one is.
        room_bytes: how large those that are given together may be.
        most_count: how many they may be, if there is a bound.
    """
    window: list[T] = []
    left_bytes = room_bytes
    for item in items:
        if window and (size_bytes(item) > left_bytes or len(window) == most_count):
            yield window
            window, left_bytes = [], room_bytes
        window.append(item)
        left_bytes -= size_bytes(item)
    if window:
        yield window
