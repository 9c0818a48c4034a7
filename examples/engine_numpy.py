"""The engine under a training loop of its own: NumPy, no PyTorch.

    python examples/engine_numpy.py checkpoints

Fits a straight line, commits every ten steps, is stopped in the middle, goes on from the last commit, and looks back.
"""

import sys
from pathlib import Path

import numpy as np

from store import Repository, StoredCommit
from store.errors import NotFound, StoreNotFound
from store.gc import collect

STEPS = 50


def opened(path: Path) -> Repository:
    """The store in a directory, made if there is none."""
    try:
        return Repository.open(path)
    except StoreNotFound:
        return Repository.init(path)


def last(repo: Repository) -> StoredCommit | None:
    """The newest commit of the branch, ``None`` before the first."""
    try:
        return repo.at("HEAD")
    except NotFound:
        return None


def train(repo: Repository, stop: int) -> float:
    """Go on from the last commit up to a step, and return the loss there."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 4)).astype(np.float32)
    y = x @ np.array([1, -2, 3, 0.5], np.float32) + 1
    model = {"weight": np.zeros(4, np.float32), "bias": np.zeros((), np.float32)}
    start, loss = 0, float("inf")
    if (commit := last(repo)) is not None:
        commit.read_into({f"model::{name}": array for name, array in model.items()})
        start = (commit.step or 0) + 1
    for step in range(start, stop):
        error = x @ model["weight"] + model["bias"] - y
        model["weight"] -= 0.1 * (x.T @ error) / len(x)
        model["bias"] -= 0.1 * error.mean()
        loss = float((error**2).mean())
        if step % 10 == 9:
            settings = b'{"learning_rate": 0.1}'
            repo.save_arrays({"model": model}, step=step, metadata={"loss": loss}, files={"run.json": settings})
    return loss


def main(path: Path) -> None:
    """Train in two runs, then look back."""
    with opened(path) as repo:
        train(repo, STEPS // 2)
    with opened(path) as repo:  # a new process would do the same
        print(f"loss {train(repo, STEPS):.4f}")
        for row in repo.log([repo.resolve("HEAD")]):
            commit = repo.at(row.id.hex())
            print(f"step {row.step:3}  loss {commit.metadata['loss']:.4f}  {commit.files['run.json'].size_bytes} B")
        first = repo.at("step:9").arrays["model::weight"]
        print(f"{first.name} at step 9: {first.dtype} {list(first.shape)}, its first half {first[:2]}")
        repo.pin(repo.resolve("step:9"), "the first one")
        print(f"gc frees {collect(repo).freed_bytes} B")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "checkpoints"))
