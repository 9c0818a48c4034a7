"""Commits of arrays, values and files by name."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..beside.files import ITEM, FileSource, files_in, files_item
from ..errors import Incompatible, NotFound
from ..format.entries import ValueEntry
from ..format.objects import Commit
from ..format.values import Plain
from ..ids import CommitId
from ..naming.refnames import branch_name
from ..saving.inputs import ItemInput, StoredInput
from ..saving.saver import SaveRequest
from ..saving.underway import saving
from .placing import item_inputs

if TYPE_CHECKING:
    from ..repository import Repository


def save_arrays(
    repo: "Repository",
    items: Mapping[str, Any],
    *,
    branch: str | None,
    step: int | None,
    message: str,
    metadata: Mapping[str, Any] | None,
    files: Mapping[str, FileSource] | None,
) -> CommitId:
    """See ``Repository.save_arrays``."""
    repo.require_writable()
    if files and ITEM in items:
        raise Incompatible(f"the item {ITEM!r} is what files are stored as; give your own another name", item=ITEM)
    inputs = item_inputs(items) + ([files_item(files)] if files else [])
    branch = repo.refs.head() if branch is None else branch
    with saving(repo.layout.root, repo.files, branch):
        tip = repo.refs.read(branch_name(branch))
        return repo.save(SaveRequest(inputs, branch, tip, step, message, _plain(metadata or {}))).commit


def put_files(repo: "Repository", files: Mapping[str, FileSource], *, branch: str | None, message: str) -> CommitId:
    """See ``Repository.put_files``."""
    repo.require_writable()
    branch = repo.refs.head() if branch is None else branch
    with saving(repo.layout.root, repo.files, branch):
        tip = repo.refs.read(branch_name(branch))
        if tip is None:
            raise NotFound(
                f"branch {branch!r} has no commit that files could lie beside; save one first", branch=branch
            )
        commit = repo.commit(tip)
        kept = [_as_it_is(repo, commit, item) for item in commit.items if item != ITEM]
        had = files_in(repo, commit)
        repo.bring(file.held for file in had.values() if isinstance(file.held, ValueEntry))
        inputs = [*kept, files_item({**had, **files})]
        return repo.save(SaveRequest(inputs, branch, tip, commit.step, message, commit.metadata)).commit


def _plain(metadata: Mapping[str, Any]) -> dict[str, Plain]:
    """With numbers in place of NumPy's: ``{"loss": error.mean()}`` means how large the loss is."""
    return {
        key: value.item() if isinstance(value, np.generic | np.ndarray) and value.ndim == 0 else value
        for key, value in metadata.items()
    }


def _as_it_is(repo: "Repository", commit: Commit, item: str) -> ItemInput:
    """An item of a commit, once more. What comes when it is read has to come now: the new commit needs it here."""
    tree = repo.tree(commit, item)
    entries = dict(tree)
    repo.bring(entries.values())
    return ItemInput(item, {name: StoredInput(entry) for name, entry in entries.items()}, tree.ties)
