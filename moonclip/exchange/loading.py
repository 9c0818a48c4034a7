"""Loading files of other tools straight into a model, whole or spread over ranks, without a store in between."""

import logging
from pathlib import Path
from typing import Any

from store.boxes import whole
from store.disk.files import Files
from store.errors import Incompatible
from store.format.entries import ContainerEntry, Entry
from store.parallel import Threads, default_thread_count

from ..loading.numbering import Parameters
from ..loading.plans import Plan
from ..loading.reading import read
from ..loading.stored import StoredItem
from ..state.items import is_stateful, prepare
from ..state.names import ROOT, segment
from ..state.policy import SAFE
from ..state.refusals import located
from . import hub
from .ranges import FileRange, Part, Ranges

_log = logging.getLogger("moonclip")

_ITEM = "model"


def load_files(path: str | Path, into: Any, *, strict: bool = True) -> Any:
    """Load safetensors files into a model, of whose tensors each process reads what it holds.

        with torch.device("meta"):
            model = Transformer(config)
        fully_shard(model)
        moonclip.load_files("exports/hf", into=model)

    Everything is compared before anything is written: names, shapes and dtypes. Tensors on the meta device get memory.
    A name that the files lack is fine if it is another name of a tensor that they have. Talks with no other process.

    Args:
        path: a ``.safetensors`` file, or a directory that holds ``model.safetensors``, one other such file, or several
            and their index ``model.safetensors.index.json``.
        into: a module, or a mapping with tensors in it by name.
        strict: whether names and dtypes have to agree exactly. If not, names that only one side has are passed over,
            and tensors are cast where torch casts them without changing their kind of number.

    Returns:
        ``into``, or what takes its place if it could not be altered.

    Raises:
        Incompatible: something does not fit; the message lists it all, and nothing was altered.
        Corrupt: a file is not whole. If it broke meanwhile, tensors may be partly written.
        Unsafe: the index names a file elsewhere.
        OSError: a file cannot be read.

    Cost: reads, in parallel, the runs of at most 4 MiB that hold what this process has. Of a shard of rows these are
    little more than the rows; of one of columns, all rows that the columns go through.
    """
    threads = Threads(default_thread_count())
    try:
        return load_ranges(Path(path), into, Ranges(Files(), threads), strict=strict)
    finally:
        threads.close()


def load_ranges(path: Path, into: Any, ranges: Ranges, *, strict: bool) -> Any:
    """The same by way of ``ranges``, which count what is read. Raises as :func:`load_files` does."""
    stored = _stored(path, ranges)
    with located(_ITEM):
        prepared = prepare(stored, into, SAFE, strict=strict, names=None, parameters=Parameters({}, {}))
    _require_none(path, prepared.match.problems(strict=strict))
    plan = Plan(prepared.stored, prepared.match, prepared.names, SAFE, has_template=not is_stateful(into))
    if plan.passed_over:
        names = ", ".join(plan.passed_over)
        _log.warning("%d names are on one side only and were passed over: %s", len(plan.passed_over), names)
    prepared.match.make_ready()
    read(ranges, list(plan.reads()))
    return prepared.finish(plan.built())


def _stored(path: Path, ranges: Ranges) -> StoredItem:
    entries: dict[str, Entry] = {ROOT: ContainerEntry(0, "dict")}
    for name, (file, tensor) in hub.tensors_in(path, ranges.files).items():
        part = Part(whole(tensor.shape), FileRange(file, tensor.start, tensor.size_bytes))
        entries[segment(name)] = ranges.entry(len(entries) - 1, tensor.dtype, tensor.shape, [part])
    return StoredItem(_ITEM, entries, (), {})


def _require_none(path: Path, problems: list[str]) -> None:
    if problems:
        told = [problem.replace(" in the commit", " in the files") for problem in problems]
        lines = "\n".join(f"  {problem}" for problem in told)
        raise Incompatible(f"{path} does not fit; nothing was changed:\n{lines}", path=str(path), problems=told)
