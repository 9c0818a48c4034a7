"""Other tools' checkpoints as a commit: what is in their files, read while it is stored."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Final, Literal

from store.boxes import whole
from store.disk.files import Files
from store.errors import Corrupt, Incompatible
from store.format.dtypes import dtype
from store.history.walks import first_parents
from store.ids import CommitId
from store.naming.refnames import branch_name
from store.parallel import Threads
from store.repository import Repository
from store.saving.ingest import Counts
from store.saving.inputs import ContainerInput, Input, ItemInput, MadeInput
from store.saving.saver import SaveRequest
from store.saving.underway import saving

from ..families import SEARCH, against, base_for
from ..families import Found as Base
from ..loading.stored import SEPARATOR
from ..state.names import ROOT, segment
from . import giving, hub
from .directories import GGUF, Meanwhile, Told, read_directory
from .listing import Found, Skipped, listed, require_unchanged
from .ranges import FileRange, Part, Ranges
from .requirements import require_torch

_DCP: Final = ".metadata"
_SAFETENSORS: Final = ".safetensors"
_MODEL: Final = "model"
_NO_BASE: Final = "none"


@dataclass(frozen=True, slots=True)
class Source:
    """Something to import.

    Attributes:
        path: a directory of torch.distributed.checkpoint or of a model, a ``.safetensors`` or ``.gguf`` file, or a file
            of ``torch.save``.
        item: what to call it as one item, of a model directory its safetensors files alone; ``None`` if its own form
            decides whether it is one or several.
    """

    path: Path
    item: str | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to import, and where.

    Attributes:
        sources: what becomes one commit together.
        branch: branch to commit on, short name; made if it does not exist.
        message: what a person says of it.
        step: training step, if there is one.
        base: the commit that it comes from, as a person named it; ``"search"`` for the nearest that the store has;
            ``None`` for none.
    """

    sources: Sequence[Source]
    branch: str
    message: str = ""
    step: int | None = None
    base: CommitId | Literal["search"] | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """What is in sources.

    Attributes:
        items: all that is to be stored.
        files: files that are to come back byte for byte, as they were found.
        kept: files of tensors that are kept as they are only, and why.
        skipped: what of a directory is not imported, and why.
    """

    items: list[ItemInput]
    files: list[Found] = field(default_factory=list)
    kept: list[Skipped] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import made.

    Attributes:
        commit: the commit.
        base: what it comes from, and what that was expected to save.
        counts: what was stored.
    """

    commit: CommitId
    base: Base
    counts: Counts


def import_files(
    repo: Repository,
    items: Sequence[ItemInput],
    wanted: Wanted,
    files: Sequence[Found] = (),
    told: Told | None = None,
    base: Base | None = None,
) -> Imported:
    """Commit what files hold, after what the branch holds now.

    On a new branch it comes after its base; on one that exists the base is a further parent. Before anybody sees it,
    files are looked at again: those that may have changed unseen are put together from what was stored, and compared.

    Args:
        repo: the store.
        items: as :func:`items_of` found them.
        wanted: where to commit them.
        files: files that have to come back as they are, and must not have changed since they were looked at.
        told: told of so many more bytes of those that are compared, in any thread.
        base: what they come from, if that was found already.

    Raises:
        Incompatible: something that cannot be stored.
        Corrupt: a file is not what its header says. Refs are as before.
        Conflict: the branch moved meanwhile, or a file was changed.
        NotFound: there is no such base, or it was pruned.
        ReadOnly: the store cannot be written from here.
        RemoteError: the remote failed that has the base.
        OSError: reading or writing failed.

    Cost: memory of one chunk, and what is made of it, for each thread. A shard that was written with other strides than
    those of C order is read whole.
    """
    repo.require_writable()
    tip = repo.refs.read(branch_name(wanted.branch))
    base = base or base_for(repo, items, wanted.base)
    request = SaveRequest(
        items=against(items, base.pairs),
        branch=wanted.branch,
        parent=tip,
        step=wanted.step,
        message=wanted.message or f"Import of {', '.join(source.path.name for source in wanted.sources)}",
        metadata=base.metadata(),
        merged=() if base.commit is None or base.commit in _line(repo, tip) else (base.commit,),
    )

    def approve(commit: CommitId) -> None:
        if files:
            fresh = {found.name for found in files if found.is_fresh}
            giving.verify(repo, repo.commit(commit), fresh, told or (lambda _: None))
        require_unchanged(files, repo.files)

    with saving(repo.layout.root, repo.files, wanted.branch):
        try:
            saved = repo.save(request, approve)
        except Corrupt:
            require_unchanged(files, repo.files)  # which says more of why
            raise
    return Imported(saved.commit, base, saved.counts)


class Searching:
    """The search for what an import comes from, for :func:`given_in` to do meanwhile.

    Args:
        repo: the store.
        wanted: what to import.

    Attributes:
        found: what it comes from, once that was looked for.
    """

    def __init__(self, repo: Repository, wanted: Wanted) -> None:
        self._repo = repo
        self._wanted = wanted
        self.found: Base | None = None

    def __call__(self, items: Sequence[ItemInput]) -> None:
        """Look for it. Raises as ``base_for`` does."""
        self.found = base_for(self._repo, items, self._wanted.base)


def named_base(repo: Repository, text: str) -> CommitId | Literal["search"] | None:
    """The base that a person asks for: a revision, ``"search"`` or ``"none"``.

    Raises:
        NotFound: it names nothing.
        Ambiguous: it may be several commits.
        Incompatible: it is no revision.
    """
    if text == SEARCH:
        return "search"
    return None if text == _NO_BASE else repo.resolve(text)


def _line(repo: Repository, tip: CommitId | None) -> Iterator[CommitId]:
    """Commits that led to a tip, as far as anybody asks."""
    return iter(()) if tip is None else (row.id for row in first_parents(repo.lookup, tip))


def items_of(sources: Sequence[Source], ranges: Ranges) -> list[ItemInput]:
    """What is in files, as items: those of :func:`given_in`, which says more."""
    return given_in(sources, ranges).items


def given_in(
    sources: Sequence[Source],
    ranges: Ranges,
    threads: Threads | None = None,
    told: Told | None = None,
    meanwhile: Meanwhile | None = None,
) -> Given:
    """What is in files, as items. Reads headers and values; all files of a model directory, for their SHA-256.

    Args:
        sources: the files.
        ranges: reads the tensors once they are stored.
        threads: read files of directories; ``None`` for the caller's thread.
        told: told of so many more bytes of these that were read, in any thread.
        meanwhile: called with the items of tensors once they are known; while files are read, if that can be.

    Raises:
        Unsafe: reading it would run code, or it names files elsewhere. Nothing was run.
        Corrupt: it is not what it should be.
        Conflict: a file was changed meanwhile.
        Incompatible: there is nothing in it, something that cannot be stored, or an item twice.
        MoonclipError: reading it takes torch, which is not installed.
        OSError: it cannot be read.
    """
    given = Given([])
    beside = meanwhile if len(sources) == 1 and _is_model(sources[0]) else None
    for source in sources:
        found = _given_in(source, ranges, threads, told, beside)
        for item in found.items:
            if any(item.name == known.name for known in given.items):
                raise Incompatible(f"there are two items {item.name!r}; name one of them, as in other={source.path}")
        given.items.extend(found.items)
        given.files.extend(found.files)
        given.kept.extend(found.kept)
        given.skipped.extend(found.skipped)
    if not given.items:
        raise Incompatible("there is nothing to import in what was named")
    if meanwhile is not None and beside is None:
        meanwhile(given.items)
    return given


def _given_in(
    source: Source, ranges: Ranges, threads: Threads | None, told: Told | None, meanwhile: Meanwhile | None
) -> Given:
    if not _is_model(source):
        return Given(_items_in(source, ranges))
    found = read_directory(source.path, ranges, threads, told, meanwhile)
    return Given(found.items, found.files, found.kept, found.skipped)


def directory_bytes(sources: Sequence[Source]) -> int:
    """Bytes of all files of models that :func:`given_in` would read.

    Raises:
        Incompatible: a name that is no UTF-8, or a link that leads nowhere.
        OSError: a directory cannot be read.
    """
    listings = (listed(source.path, Files()) for source in sources if _is_model(source))
    return sum(found.size_bytes for listing in listings for found in listing.files)


def _is_model(source: Source) -> bool:
    path = source.path
    return source.item is None and (path.suffix == GGUF or (path.is_dir() and not (path / _DCP).exists()))


def tensor_bytes(items: Sequence[ItemInput]) -> int:
    """Bytes of all tensors that are to be read."""
    return sum(prod(given.shape) * dtype(given.dtype).item_bytes for given in _tensors(items))


def telling(items: Sequence[ItemInput], told: Told) -> list[ItemInput]:
    """The same items, which tell how much of them has been read."""
    return [
        item._replace(entries={name: _telling(given, told) for name, given in item.entries.items()}) for item in items
    ]


def _tensors(items: Sequence[ItemInput]) -> Iterator[MadeInput]:
    return (given for item in items for given in item.entries.values() if isinstance(given, MadeInput))


def _telling(given: Input, told: Told) -> Input:
    if not isinstance(given, MadeInput):
        return given

    def make(start: int, stop: int) -> memoryview:
        data = given.make(start, stop)
        told(stop - start)
        return data

    return given._replace(make=make)


def _items_in(source: Source, ranges: Ranges) -> list[ItemInput]:
    path = source.path
    if (path / _DCP).exists():
        require_torch("a directory of torch.distributed.checkpoint")
        from . import dcpreading

        return dcpreading.items_in(path, ranges, source.item)
    if path.suffix == _SAFETENSORS or hub.is_hub(path):
        return list(_safetensors(source, ranges))
    if path.is_dir():
        raise Incompatible(
            f"{path} holds no checkpoint that is known: neither {_DCP} of torch.distributed.checkpoint nor"
            f" {_SAFETENSORS} files; name a file in it",
            path=str(path),
        )
    require_torch("a file of torch.save")
    from . import pickling
    from .tensorinputs import by_item, input_of

    state = pickling.load(path, str(path))
    return [input_of(name, each) for name, each in by_item(state, source.item).items()]


def _safetensors(source: Source, ranges: Ranges) -> Iterator[ItemInput]:
    """Tensors by name; as several items where all of them are named ``item::name``, as our exports name them."""
    tensors = hub.tensors_in(source.path, ranges.files)
    is_several = source.item is None and all(SEPARATOR in name for name in tensors)
    items: dict[str, dict[str, Input]] = {}
    for name, (path, tensor) in tensors.items():
        item, _, key = name.partition(SEPARATOR) if is_several else (source.item or _MODEL, "", name)
        entries = items.setdefault(item, {ROOT: ContainerInput(0, "dict")})
        part = Part(whole(tensor.shape), FileRange(path, tensor.start, tensor.size_bytes))
        entries[segment(key)] = ranges.input(ranges.entry(len(entries) - 1, tensor.dtype, tensor.shape, [part]))
    for item, entries in items.items():
        yield ItemInput(item, entries)
