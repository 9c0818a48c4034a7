"""Reads a store of the Rust engine, run by an interpreter that has that engine and torch. Imports nothing of ours.

Its package has the name of ours, so it needs a process of its own. Each line on stdin is a JSON list, of a snapshot's
id and a path to write it to; each line on stdout is a JSON object: first what snapshots there are, then for each
request nothing, or an error. State dicts cross over as files of torch.save. Rebuilding them *unpickles what the store
holds*, as that engine always does.
"""

import json
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

_NEVER = 10**9
"""Snapshots that are kept by default are few: opening a store must not make it drop some."""


def _open(root: str) -> Any:
    try:
        engine = import_module("moonclip.moonclip")
    except ImportError:
        raise ImportError(f"{sys.executable} lacks the Rust engine; install moonclip==0.3.1 and torch there") from None
    return engine.MoonclipManager(storage_root=root, max_full_snapshots=_NEVER, max_rollback_snapshots=_NEVER)


def _listed(store: Any) -> list[dict[str, Any]]:
    snapshots = []
    for snapshot in store.list_snapshots():
        told = store.describe(snapshot["id"])
        lossy = any(tensor["stored_dtype"] != tensor["dtype"] for tensor in told["tensors"])
        snapshots.append(
            {
                "id": snapshot["id"],
                "step": snapshot["step"],
                "ranks": snapshot["ranks"],
                "created_at": told["created_at"],
                "metadata": snapshot["metadata"],
                "is_lossy": lossy,
            }
        )
    return snapshots


def _write(store: Any, snapshot: str, path: str) -> None:
    torch, theirs = import_module("torch"), import_module("moonclip.pytorch")
    raw = store.load(snapshot)
    states = theirs.unflatten_state_dict(raw)
    told = {tensor["name"]: tensor for tensor in store.describe(snapshot)["tensors"]}
    parts = tuple(f"{item}{mark}" for item in states for mark in ("/", "._blob", "._metadata"))
    alone = {
        name: theirs._tensor_from_raw(told[name]["shape"], told[name]["dtype"], data)  # noqa: SLF001 - no public door
        for name, data in raw.items()
        if not name.startswith(parts)
    }
    torch.save({"states": states, "tensors": alone}, path)


def main() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not look like an answer
    store: Any = None
    for request in _requests():
        answer: dict[str, Any] = {}
        try:
            if request is None:
                store = _open(sys.argv[1])
                answer["snapshots"] = _listed(store)
            else:
                _write(store, *request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other side tells
            answer["error"] = f"{type(error).__name__}: {error}"
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _requests() -> Iterator[list[str] | None]:
    """What is asked for: first, unasked, what there is."""
    yield None
    for line in sys.stdin:
        yield json.loads(line)


if __name__ == "__main__":
    main()
