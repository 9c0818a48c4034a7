"""What a manager makes of files of other tools, and what it says of that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from store.disk.files import Files
from store.ids import CommitId
from store.repository import Repository

from ..exchange.importing import Searching, Wanted, import_files
from ..exchange.ranges import Ranges
from ..exchange.sources import Source, given_in
from ..families.folders import require_one_model


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import made.

    Attributes:
        id: full id of the commit, hex.
        branch: where it is.
        items: names of its items.
        files: paths of the files that ``export(…, format="files")`` writes again, byte for byte.
        kept: why a file of tensors is kept as a file only, by its path.
        left_out: why something of the directory is not there, by its path.
        base: full id of the commit that it comes from, hex; ``None`` if there is none.
        base_saves_bytes: what the base was expected to save.
        stored_bytes: what the import added to the store.
    """

    id: str
    branch: str
    items: tuple[str, ...]
    files: tuple[str, ...]
    kept: Mapping[str, str]
    left_out: Mapping[str, str]
    base: str | None
    base_saves_bytes: int
    stored_bytes: int


def import_sources(repo: Repository, sources: Sequence[Source], wanted: Wanted) -> tuple[CommitId, Imported]:
    """Commit what sources hold, and tell of it.

    Raises:
        Incompatible: it is no checkpoint that is known, or cannot be stored.
        Conflict: a file or the branch changed meanwhile.
        Corrupt: a file is not what it should be.
        NotFound: there is no such base.
        Unsafe: reading it would run code. Nothing was run.
        ReadOnly: the store cannot be written from here.
        OSError: reading or writing failed.
    """
    repo.require_writable()
    require_one_model(source.path for source in sources if source.item is None)
    searching = Searching(repo, wanted)
    given = given_in(sources, Ranges(Files()), repo.threads, relate=searching)
    made = import_files(repo, given.items, wanted, given.files, base=searching.found)
    return made.commit, Imported(
        id=made.commit.hex(),
        branch=wanted.branch,
        items=tuple(each.name for each in given.items),
        files=tuple(each.name for each in given.files),
        kept={each.name: each.why for each in given.kept},
        left_out={each.name: each.why for each in given.skipped},
        base=None if made.base.commit is None else made.base.commit.hex(),
        base_saves_bytes=made.base.saved_bytes,
        stored_bytes=made.counts.stored_bytes,
    )
