"""Pytrees in a store: those of JAX where it is installed, else the same of NumPy arrays.

    python examples/pytrees.py checkpoints

A pytree is dictionaries, lists and tuples with arrays for leaves. Its leaves are stored by their paths, and its form as
a value beside them, so that nothing is pickled and any leaf, or some rows of it, can be read alone.
"""

import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from store import Repository, StoredCommit

LEAF = "leaf"
"""What stands in a form for a leaf, with its name."""


def leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The leaves of a tree, by name."""
    if isinstance(tree, dict | list | tuple):
        for key, child in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(child, (*path, str(key)))
    else:
        yield "/".join(path), tree


def form(tree: Any, path: tuple[str, ...] = ()) -> Any:
    """The same tree with names for leaves: dictionaries, lists and tuples, which a store keeps as they are."""
    if isinstance(tree, dict):
        return {key: form(child, (*path, str(key))) for key, child in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)([form(child, (*path, str(index))) for index, child in enumerate(tree)])
    return {LEAF: "/".join(path)}


def rebuilt(shape: Any, arrays: dict[str, Any]) -> Any:
    """Inverse of :func:`form`, with arrays for names."""
    if isinstance(shape, dict):
        if shape.keys() == {LEAF}:
            return arrays[shape[LEAF]]
        return {key: rebuilt(child, arrays) for key, child in shape.items()}
    return type(shape)([rebuilt(child, arrays) for child in shape])


def save(repo: Repository, tree: Any, step: int) -> str:
    """Commit a tree."""
    items = {"params": dict(leaves(tree)), "form": [form(tree)]}
    return repo.save_arrays(items, step=step).hex()


def load(commit: StoredCommit) -> Any:
    """The tree of a commit, of NumPy arrays."""
    arrays = commit.read(["params::*"])
    (shape,) = commit.values(["form"])["form"]
    return rebuilt(shape, {name.removeprefix("params::"): array for name, array in arrays.items()})


def made(numpy: Any) -> Any:
    """Parameters of a small network, and the state of an optimizer, of ``jax.numpy`` or NumPy."""
    layers = [{"kernel": numpy.ones((64, 64)) * n, "bias": numpy.zeros((64,))} for n in (1, 2)]
    return {"layers": layers, "adam": ({"count": numpy.asarray(7)}, layers)}


def main(path: Path) -> None:
    """Save a tree, load it back, and read a few rows of one leaf."""
    has_jax = find_spec("jax") is not None
    tree = made(import_module("jax.numpy") if has_jax else np)
    print("JAX" if has_jax else "NumPy", "pytree of", len(list(leaves(tree))), "leaves")
    with Repository.init(path) as repo:
        save(repo, tree, step=0)
        commit = repo.at("main")
        loaded = load(commit)
        equal = all(np.array_equal(a, b) for (_, a), (_, b) in zip(leaves(tree), leaves(loaded), strict=True))
        print("equal:", equal, "same form:", form(tree) == form(loaded))
        print("rows:", commit.arrays["params::layers/1/kernel"][10:12].shape)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "checkpoints"))
