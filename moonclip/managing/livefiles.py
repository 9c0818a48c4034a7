"""Live objects as files that other tools read, by no commit."""

from collections.abc import Callable, Iterator, Mapping
from os import fspath
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from store.disk.files import Files
from store.errors import Incompatible
from store.repository import Repository

from ..exchange import pickling
from ..state.composites import is_distributed
from ..state.items import gathered, state_of
from .givens import placed, unfolded


class LiveFiles:
    """Files of live objects, as methods of a manager."""

    _repo: Repository

    def save_to_pt(self, path: str | Path, *objects: Any, **items: Any) -> str:
        """Write the state of some objects into a file for ``torch.load``: a dict of their states, by item.

            mgr.save_to_pt("final.pt", model=model, optimizer=optimizer)

        It is complete or not there; one that is there is replaced. A commit is exported by ``moonclip export``.

        Args:
            path: the file.
            *objects: model, optimizer, scheduler, scaler, and a mapping of others, may be given by position.
            **items: items by name, as for :meth:`save`.

        Returns:
            The path, as text.

        Raises:
            Incompatible: there is nothing to write, an item is given twice, pickle has no form for something, or a
                tensor is spread over ranks.
            OSError: it could not be written.
        """
        wanted = gathered(None, unfolded(placed(objects, items)), rng=False)
        state = {name: state_of(given) for name, given in wanted.items()}
        if not state:
            raise Incompatible("there is nothing to write; name at least one item, as in save_to_pt(path, model=model)")
        _require_whole(state)

        def write(temporary: Path) -> None:
            blocks = self._repo.files.open_blocks(temporary)
            try:
                pickling.save(blocks, state, fspath(path))
                blocks.finish()
            except BaseException:
                blocks.abandon()
                raise

        return _written(self._repo.files, path, write)

    def save_to_safetensors(self, path: str | Path, model: Any, metadata: Mapping[str, str] | None = None) -> str:
        """Write the tensors of a model into a safetensors file. Those that share memory are written one by one.

        It is complete or not there; one that is there is replaced. A commit is exported by ``moonclip export``.

        Args:
            path: the file.
            model: a module, or tensors by name. What is no tensor is left out.
            metadata: the file's own metadata.

        Returns:
            The path, as text.

        Raises:
            Incompatible: there is no tensor, or the format has no form for one, or one is spread over ranks.
            OSError: it could not be written.
        """
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        tensors = _apart(state_of(model))
        said = {"format": "pt", **(metadata or {})}
        files = self._repo.files

        def write(temporary: Path) -> None:
            try:
                save_file(tensors, temporary, said)
            except SafetensorError as error:
                raise OSError(f"{fspath(path)} could not be written: {error}") from error
            files.append_durable(temporary, b"")  # the library syncs nothing

        return _written(files, path, write)


def _require_whole(state: Any) -> None:
    for name, tensor in _tensors(state, ""):
        if is_distributed(tensor):
            raise _spread(name)


def _tensors(state: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(state, torch.Tensor):
        yield name, state
    elif isinstance(state, Mapping):
        for key, each in state.items():
            yield from _tensors(each, f"{name}/{key}" if name else str(key))
    elif isinstance(state, list | tuple):
        for number, each in enumerate(state):
            yield from _tensors(each, f"{name}/{number}")


def _apart(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Contiguous tensors as they look, no two of which share memory: the format's own writer refuses those.

    It also copies memory as it is, where a conjugation or negation may be pending.
    """
    tensors: dict[str, torch.Tensor] = {}
    taken: set[int] = set()
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        if is_distributed(tensor):
            raise _spread(name)
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
            kind = "a meta tensor" if tensor.is_meta else "quantized" if tensor.is_quantized else "sparse"
            raise Incompatible(f"{name} is {kind}, for which safetensors has no form; write it with save_to_pt")
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        address = plain.untyped_storage().data_ptr()
        tensors[name] = plain.clone() if address in taken else plain
        taken.add(address)
    if not tensors:
        raise Incompatible("there is no tensor to write")
    return tensors


def _spread(name: str) -> Incompatible:
    return Incompatible(f"{name} is spread over ranks: save it, and export that commit with `moonclip export`")


def _written(files: Files, path: str | Path, write: Callable[[Path], None]) -> str:
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{uuid4().hex}")
    try:
        write(temporary)
        files.rename_durable(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return fspath(path)
