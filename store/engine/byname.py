"""Saving and reading by name, as methods of a repository. NumPy is imported when one of them is first called."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..forks import loading
from ..ids import CommitId

if TYPE_CHECKING:
    from ..beside.files import FileSource
    from ..repository import Repository
    from .commits import StoredCommit


class ByName:
    """What a runtime needs of a repository, by name."""

    def at(self, revision: str, branch: str | None = None) -> "StoredCommit":
        """The commit that a revision names, with its arrays, values and files by name; nothing of them is read yet.

        Args:
            revision: what a person typed.
            branch: see ``Repository.resolve``.

        Raises:
            NotFound: it names nothing here.
            Ambiguous: a prefix of several ids.
            Incompatible: it is no revision.
            Corrupt: the commit is damaged.
        """
        with loading:
            from .commits import StoredCommit

        repo = self._repository
        commit_id = repo.resolve(revision, branch)
        return StoredCommit(repo, commit_id, repo.commit(commit_id))

    def save_arrays(
        self,
        items: Mapping[str, Any],
        *,
        branch: str | None = None,
        step: int | None = None,
        message: str = "",
        metadata: Mapping[str, Any] | None = None,
        files: "Mapping[str, FileSource] | None" = None,
    ) -> CommitId:
        """Commit arrays by name at the end of a branch. Returns when the commit is durable.

        An item is a mapping of names to arrays and plain values, or one of these. Arrays are NumPy's, what can be made
        one (``__array__``), or :class:`~store.engine.arrays.RawArray`. A name is a path: ``"encoder/0/weight"``.

        Args:
            items: by name.
            branch: short name of the branch, made if there is none; the store's current one if ``None``.
            step: training step, if there is one.
            message: what a person says of it.
            metadata: plain values, or NumPy's numbers, by key, order kept; listings show them.
            files: what to store beside them, by path in the commit: bytes, or the path of a file.

        Raises:
            Incompatible: a name, dtype or value that cannot be stored. Nothing was written that anything refers to.
            Conflict: the branch moved meanwhile; the error names where the commit was kept.
            ReadOnly: the store cannot be written from here.
            OSError: a file cannot be read, or writing failed. Refs are as before.
        """
        with loading:
            from .saving import save_arrays

        return save_arrays(
            self._repository, items, branch=branch, step=step, message=message, metadata=metadata, files=files
        )

    def put_files(self, files: "Mapping[str, FileSource]", *, branch: str | None = None, message: str = "") -> CommitId:
        """Commit what the tip of a branch holds once more, with further files, or other content of files it has.

        Args:
            files: by path in the commit: bytes, or the path of a file.
            branch: short name of the branch; the store's current one if ``None``.
            message: what a person says of it. Step and metadata are the tip's.

        Raises:
            NotFound: the branch has no commit.
            Pruned: an item of the tip was pruned.
            Incompatible: a path that leads elsewhere.
            Conflict: the branch moved meanwhile; the error names where the commit was kept.
            ReadOnly: the store cannot be written from here.
            OSError: a file cannot be read, or writing failed. Refs are as before.

        Cost: reads the tip's trees and no array; but a lazy store has to fetch what it lacks of them.
        """
        with loading:
            from .saving import put_files

        return put_files(self._repository, files, branch=branch, message=message)

    @property
    def _repository(self) -> "Repository":
        from ..repository import Repository

        assert isinstance(self, Repository)
        return self
