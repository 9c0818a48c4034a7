"""Stores with a history, made without torch, for tests of what reads them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from store.format.values import Plain, Tagged
from store.ids import CommitId
from store.naming.refnames import branch_name, tag_name
from store.reading.packs import pack_path
from store.repository import Repository
from store.saving.inputs import ContainerInput, Input, ItemInput, TensorInput, ValueInput
from store.saving.saver import SaveRequest

WIDTH = 512
"""Elements of each weight: too many to be kept inline."""


def noise(seed: object, size_bytes: int) -> bytes:
    """Bytes that do not compress."""
    return Random(str(seed)).randbytes(size_bytes)


def tensor(data: bytes, dtype: str = "uint8", shape: tuple[int, ...] | None = None, position: int = 0) -> TensorInput:
    """A tensor of these bytes; flat unless a shape is given."""
    return TensorInput(position, dtype, (len(data),) if shape is None else shape, memoryview(data))


def item(name: str, tensors: Mapping[str, TensorInput], values: Mapping[str, Plain] | None = None) -> ItemInput:
    """An item that is a flat dict."""
    entries: dict[str, Input] = {"": ContainerInput(0, "dict")}
    entries |= tensors
    entries |= {name: ValueInput(len(tensors) + n, value) for n, (name, value) in enumerate((values or {}).items())}
    return ItemInput(name, entries)


def state(step: int) -> list[ItemInput]:
    """A small training state. ``model::embed.weight`` is the same at every step, the rest is not."""
    weights = {
        "embed.weight": tensor(noise("embed", 4 * WIDTH), "float32", (WIDTH // 16, 16)),
        "fc.weight": tensor(noise(step, 4 * WIDTH), "float32", (WIDTH // 8, 8), position=1),
        "fc.bias": tensor(noise(("bias", step), 2 * 8), "bfloat16", (8,), position=2),
    }
    groups = [{"lr": 0.5, "betas": (0.9, 0.999)}]
    moments = {"exp_avg": tensor(noise(("moment", step), 4 * WIDTH), "float32", (WIDTH // 8, 8))}
    settings = {"dtype": Tagged("torch.dtype", "bfloat16"), "seed": b"\x00\x01"}
    return [
        item("model", weights),
        item("optimizer", moments, {"param_groups": groups, "step": step}),
        ItemInput("settings", {"": ValueInput(0, settings)}),
    ]


def commit(repo: Repository, branch: str = "main", items: list[ItemInput] | None = None, **request: Any) -> CommitId:
    """Commit a training state, or other items, at the tip of a branch.

    Args:
        repo: the store.
        branch: short name.
        items: what to commit; the state of the request's step if ``None``.
        **request: as for ``SaveRequest``.
    """
    parent = repo.refs.read(branch_name(branch))
    saved = items if items is not None else state(request.get("step", 0))
    return repo.save(SaveRequest(saved, branch=branch, parent=parent, **request)).commit


@dataclass(frozen=True, slots=True)
class History:
    """A store with two lines of history.

    Attributes:
        root: the store.
        main: commits of ``main``, oldest first: steps 0, 100, 200, 300.
        branched: commits of ``exp/lr3``, which branches off at step 100: steps 200, 300. They came before the last
            two of ``main``. The tag ``best`` is on the first.
    """

    root: Path
    main: tuple[CommitId, ...]
    branched: tuple[CommitId, ...]


def history(root: Path) -> History:
    """Make such a store."""
    with Repository.init(root) as repo:
        main = [commit(repo, step=step, metadata={"loss": f"{2 - step / 200}"}) for step in (0, 100)]
        repo.set_ref(branch_name("exp/lr3"), None, main[1], "branch", "made at step:100")
        branched = [commit(repo, "exp/lr3", step=step, message=f"lr 3, step {step}\n\nmore") for step in (200, 300)]
        main += [commit(repo, step=step, metadata={"loss": f"{2 - step / 200}"}) for step in (200, 300)]
        repo.set_ref(tag_name("best"), None, branched[0], "tag", "put on exp/lr3~1")
    return History(root, tuple(main), tuple(branched))


def damage(root: Path, name: str, revision: str, item_name: str = "model") -> None:
    """Flip a byte in the middle of a tensor's first chunk, as it is stored."""
    with Repository.open(root, read_only=True) as repo:
        entry = repo.tree(repo.commit(repo.resolve(revision)), item_name)[name]
        place = repo.index.places(entry.chunks[0])[0]
    path = pack_path(root / "packs", place.pack)
    data = bytearray(path.read_bytes())
    data[place.offset + place.stored_bytes // 2] ^= 0xFF
    path.write_bytes(data)
