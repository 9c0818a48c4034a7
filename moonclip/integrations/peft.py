"""PEFT: adapters as items of their own, on branches that begin at their base model.

    items = adapters_of(model) | {"optimizer": optimizer}
    has_begun = begin(mgr, branch="french", base="base")
    start = mgr.resume(rng=True, **items) if has_begun else 0
    ...
    mgr.save(step=step, rng=True, metadata=lineage(mgr, "base"), **items)

Only the adapters' weights are saved; their commits come after the base model's, which has the rest.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict

from store.beside.files import ITEM as FILES
from store.errors import Conflict, Incompatible, NotFound

from ..families.lineage import FROM
from ..loading.descriptions import Snapshot
from ..manager import CheckpointManager
from ..managing.upkeep import Revision
from ..specs import Layout
from .directories import Passing, put_files

_DEFAULT: Final = "default"
_ITEM: Final = "adapter"
_CONFIG: Final = "adapter_config.json"
_WEIGHTS: Final = "adapter_model.safetensors"


class Adapter:
    """One adapter of a model, as an item: its weights by the names that PEFT gives them in files.

    Args:
        model: has the adapter.
        name: the adapter's name.

    Raises:
        Incompatible: the model has no such adapter.
    """

    def __init__(self, model: PeftModel, name: str = _DEFAULT) -> None:
        self._model = model
        self._name = name
        self._has_embeddings = self._weights(has_embeddings="auto").keys() != self._weights(has_embeddings=False).keys()

    def state_dict(self) -> dict[str, Any]:
        """Its weights.

        Raises:
            Incompatible: the adapter was deleted.
        """
        return self._weights(
            has_embeddings=self._has_embeddings
        )  # found out once: to do so, PEFT asks the hub for the base

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy weights into the model's own.

        Raises:
            Incompatible: they do not belong to such an adapter, or it is merged into the model.
        """
        own = self.state_dict()
        if own.keys() != state.keys():
            odd = sorted(own.keys() ^ state.keys())
            raise Incompatible(f"adapter {self._name!r} is made otherwise: {', '.join(odd[:4])} is on one side only")
        for name, tensor in own.items():
            here, there = tuple(tensor.shape), tuple(state[name].shape)
            if here != there:
                raise Incompatible(f"adapter {self._name!r} is made otherwise: {name} is {there}, and {here} here")
        if any(self._name in getattr(each, "merged_adapters", ()) for each in self._model.modules()):
            raise Incompatible(f"adapter {self._name!r} is merged into the model, which would not change; unmerge it")
        set_peft_model_state_dict(self._model, dict(state), adapter_name=self._name)

    def _weights(self, *, has_embeddings: bool | Literal["auto"]) -> dict[str, Any]:
        known = getattr(self._model, "peft_config", {})
        if self._name not in known:
            names = ", ".join(known) or "none"
            raise Incompatible(f"the model has no adapter {self._name!r}, it has {names}; add_adapter makes one")
        found = get_peft_model_state_dict(self._model, adapter_name=self._name, save_embedding_layers=has_embeddings)
        return dict(found)


def item_of(name: str = _DEFAULT) -> str:
    """Name of the item that an adapter is saved as, the same as an import of its directory makes."""
    return _ITEM if name == _DEFAULT else f"{name}/{_ITEM}"


def adapters_of(model: PeftModel, *names: str) -> dict[str, Any]:
    """What to save and resume of a model: its adapters, and their configurations as files.

    Args:
        model: has them.
        *names: which; all if there are none.

    Returns:
        Items for ``CheckpointManager.save`` and ``resume``.

    Raises:
        Incompatible: the model has no such adapter.
    """
    wanted = names or tuple(getattr(model, "peft_config", ())) or (_DEFAULT,)
    adapters: dict[str, Any] = {item_of(name): Adapter(model, name) for name in wanted}
    return adapters | {FILES: {_inside(name, _CONFIG): _configuration(model, name) for name in wanted}}


def begin(manager: CheckpointManager, *, branch: str, base: Revision) -> str | None:
    """Have a manager save adapters on a branch that begins at their base model's commit. Loads nothing.

    Args:
        manager: from now on saves there.
        branch: name of the branch; made if there is none.
        base: the base model's commit.

    Returns:
        Hex id of the newest commit of adapters there, which ``manager.resume`` loads; ``None`` before the first.

    Raises:
        NotFound: ``base`` names nothing.
        Conflict: the branch exists and does not come from that base.
    """
    origin = manager.snapshot(base).id
    if branch not in manager.branches():
        manager.resume(rev=origin, branch=branch)
        return None
    manager.resume(branch=branch)
    if manager.head == origin:
        return None
    if all(snapshot.id != origin for snapshot in manager.list_snapshots()):
        raise Conflict(
            f"branch {branch!r} does not come from {origin[:8]}: choose another name, or another base", branch=branch
        )
    return manager.head


def lineage(manager: CheckpointManager, base: Revision) -> dict[str, str]:
    """Metadata for saves that say which base they are made for: ``{"derived-from": …}``.

    Raises:
        NotFound: ``base`` names nothing.
    """
    return {FROM: manager.snapshot(base).id}


@contextmanager
def adapter_directory(manager: CheckpointManager, rev: Revision | None = None) -> Iterator[Path]:
    """A commit's adapters as PEFT's own directory, as long as the block runs.

        with adapter_directory(mgr, "french") as path:
            model = PeftModel.from_pretrained(base_model, path)
            model.load_adapter(path / "formal", "formal")

    The adapter ``default`` lies in it, others in directories of their names.

    Args:
        manager: has the commit.
        rev: which; the bound branch's tip if ``None``.

    Yields:
        The directory.

    Raises:
        NotFound: there is no such commit, or it has no adapter.
        Unsafe: the commit has a file that would lie elsewhere.
        Corrupt: stored bytes are damaged.
        OSError: the directory could not be written.
    """
    snapshot = manager.snapshot(rev)
    items = [item for item in snapshot.items if item == _ITEM or item.endswith(f"/{_ITEM}")]
    if not items:
        raise NotFound(f"commit {snapshot.id[:8]} has no adapter; it has {', '.join(snapshot.items)}")
    layouts = {item: Layout("safetensors", _inside(_directory(item), _WEIGHTS)) for item in items}
    around = Passing(None)
    try:
        target = around.path / "adapters"
        manager.export(snapshot.id, target, format="dir", items=items, layouts=layouts)
        put_files(target, _configurations(manager, snapshot, items))
        yield target
    finally:
        around.clean_up()


def _inside(name: str, file: str) -> str:
    """Path of an adapter's file in PEFT's directory."""
    return file if name in {"", _DEFAULT} else f"{name}/{file}"


def _directory(item: str) -> str:
    """Where an item's files lie in PEFT's directory; empty for the directory itself."""
    return item.removesuffix(_ITEM).rstrip("/")


def _configurations(manager: CheckpointManager, snapshot: Snapshot, items: Sequence[str]) -> dict[str, bytes]:
    """Files that say what adapters are. An import has others as well, in nested dictionaries."""
    files: Any = manager.load(snapshot.id, items=[FILES])[FILES]
    found = {}
    for path in (_inside(_directory(item), _CONFIG) for item in items):
        held = files.get(path) or reduce(_child, path.split("/"), files)
        if not isinstance(held, bytes):
            raise NotFound(f"commit {snapshot.id[:8]} has no file {path}, without which PEFT loads no adapter")
        found[path] = held
    return found


def _child(node: Any, name: str) -> Any:
    return node.get(name) if isinstance(node, dict) else None


def _configuration(model: PeftModel, name: str) -> bytes:
    with TemporaryDirectory(prefix="moonclip-") as directory:
        model.peft_config[name].save_pretrained(directory)
        return Path(directory, _CONFIG).read_bytes()
