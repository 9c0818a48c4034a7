"""Files of a commit as they were: a directory that was imported, byte for byte."""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from store.beside.composed import Hashed, Window
from store.beside.files import ITEM, StoredFile, files_in
from store.errors import Conflict, Incompatible, NotFound
from store.format.objects import Commit
from store.ids import ChunkId, short
from store.repository import Repository

from .abreast import Proceed, abreast
from .hub import INDEX, SINGLE
from .outputs import Kind, require_free, require_inside, writing_into
from .passing import MAX_PIECE_BYTES, pass_in_order

_MAX_FILES: Final = 4
"""Written at once."""

_ENTRANCES: Final = frozenset({"config.json", "adapter_config.json", "model_index.json", "modules.json", INDEX})
"""What libraries read first of a model: as long as it is not there, whatever else is there is no model."""


def write(
    directory: Path, repo: Repository, commit: Commit, *, names: Sequence[str] | None = None, overwrite: bool = False
) -> dict[str, int]:
    """Write files of a commit: all that are wanted, or none. What was imported has the SHA-256 that it had then.

    Args:
        directory: made if there is none; other files in it stay.
        repo: the store.
        commit: the commit.
        names: paths of files, or globs in which ``*`` crosses ``/``; all if ``None``.
        overwrite: whether files may be replaced.

    Returns:
        Bytes of each file that was written, by its path.

    Raises:
        Incompatible: the commit has no files, or a path would lead out of the directory. Nothing was written.
        Conflict: a file exists, and ``overwrite`` is false; or one that would be read instead of those written.
        NotFound: there is no such file, or an item or chunk of which one consists is missing.
        Pruned: likewise, and that was meant.
        Corrupt: stored bytes are damaged, or make another file than was imported. What was there before is there still.
        OSError: a file could not be written.

    Cost: 8 MiB and 4 MiB for each thread to read a file, 12 MiB to write it; of up to four files at once.
    """
    files = wanted_files(repo, commit, names)
    _require_legal(list(files))
    require_inside(directory, list(files))
    require_free(directory, list(files), overwrite=overwrite)
    _require_read_first(directory, files)
    for file in files.values():
        if file.composed is not None:
            file.parts.require(file.composed)
    entrances = tuple(path for path in files if path in _ENTRANCES)
    with writing_into(repo.files, directory, Kind(entrances)) as outputs:

        def write_one(file: StoredFile, proceed: Proceed) -> None:
            with outputs.open(file.path) as blocks:

                def take(window: memoryview) -> None:
                    proceed()
                    blocks.write([window])

                _pass_through(file, take)

        _each(list(files.values()), repo, write_one)
        outputs.put()
    return {path: file.size_bytes for path, file in files.items()}


def verify(repo: Repository, commit: Commit, chunks: Mapping[str, Sequence[ChunkId]]) -> None:
    """Check that files that consist of tensors come back as they were. Writes nothing.

    Where the chunks of these tensors are those that were hashed together with the file, that is proven. Any other file
    is put together, and compared with its SHA-256.

    Args:
        repo: the store.
        commit: the commit.
        chunks: ids of the chunks of each file, by its path, as they were when its SHA-256 was made.

    Raises:
        NotFound: an item or chunk of which one consists is missing.
        Corrupt: stored bytes are damaged, or make another file.

    Cost: trees, and places of chunks. To put a file together takes what :func:`write` takes.
    """
    unproven: list[StoredFile] = []
    for file in files_in(repo, commit).values():
        if file.composed is not None:
            file.parts.require(file.composed)
            if file.parts.chunks(file.composed) != tuple(chunks.get(file.path, ())):
                unproven.append(file)
    _each(unproven, repo, lambda file, proceed: _pass_through(file, lambda _: proceed()))


def wanted_files(repo: Repository, commit: Commit, names: Sequence[str] | None) -> Mapping[str, StoredFile]:
    """Files of a commit that are asked for, by path.

    Raises:
        Incompatible: the commit has none at all.
        NotFound: nothing is called so.
        Pruned: they were pruned.
        Corrupt: a tree is damaged.
    """
    files = files_in(repo, commit)
    if not files:
        raise Incompatible(
            f"commit {short(commit.id)} has no files that were stored with it; export it in another format",
            commit=commit.id.hex(),
        )
    if names is None:
        return files
    chosen: set[str] = set()
    for name in names:
        hits = [path for path in files if path == name or fnmatchcase(path, name)]
        if not hits:
            raise NotFound(
                f"no file {name!r} in commit {short(commit.id)};"
                f" `moonclip ls {short(commit.id)} '{ITEM}::*'` lists them",
                path=name,
            )
        chosen.update(hits)
    return {path: file for path, file in files.items() if path in chosen}


def _require_legal(paths: Sequence[str]) -> None:
    """A store may be anybody's: a path of it must not lead elsewhere."""
    for path in paths:
        if not {"", ".", ".."}.isdisjoint(path.split("/")) or "\0" in path:
            raise Incompatible(f"{path!r} is no path of a file below a directory; nothing was written", path=path)


def _require_read_first(directory: Path, paths: Mapping[str, StoredFile]) -> None:
    """Refuse to put a model of several files beside one in a single file: libraries would read that."""
    other = directory / SINGLE
    if INDEX in paths and SINGLE not in paths and other.exists():
        raise Conflict(
            f"{other} is of another model, and would be read instead of what {INDEX} names; remove it, or name another"
            " place",
            path=str(other),
        )


def _each(files: Sequence[StoredFile], repo: Repository, act: Callable[[StoredFile, Proceed], None]) -> None:
    """Do something with each of some files, several at once, the largest first, so that threads end together.

    In threads of their own: those of the store read for each of these.
    """
    ordered = sorted(files, key=lambda file: -file.size_bytes)
    with abreast(ordered, min(repo.threads.count, _MAX_FILES), act) as wait:
        wait()


def _pass_through(file: StoredFile, take: Callable[[memoryview], None]) -> None:
    """Read a file, and hand it over in the order of its bytes; the hash is compared behind the last."""
    if file.composed is None:
        for window in file.windows():
            take(window)
        return
    hashing = Hashed(file.path, file.composed)

    def read(window: Window, out: memoryview) -> None:
        file.contents.read_copies(file.parts.copies(window, out))  # in the thread that this is called in

    def hash_and_take(window: memoryview) -> None:
        hashing.update(window)
        take(window)

    windows = list(file.parts.windows(file.composed, MAX_PIECE_BYTES))
    pass_in_order(windows, file.contents.threads, read, hash_and_take)
    hashing.require_same()
