"""Exporting commits, and importing models, as methods of a manager."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from store.errors import Incompatible
from store.ids import CommitId
from store.naming.listed import listed

from ..capture.budget import parse_bytes
from ..exchange.exporting import Exported, Format, Wanted, export
from ..exchange.hub import MAX_SHARD_BYTES
from ..exchange.importing import Wanted as Import
from ..exchange.sources import Source
from ..families import SEARCH
from ..loading.nearby import telling_where_else
from ..specs import Layout, Schema
from .importing import Imported, import_sources
from .upkeep import Revision, Upkeep

if TYPE_CHECKING:
    from ..ranks.talk import Talk


class Exporting(Upkeep):
    """Writing commits as files that other tools read, and reading such files."""

    _schema: Schema
    _talk: "Talk | None"

    def import_model(
        self,
        path: str | Path,
        *,
        branch: str | None = None,
        base: Revision | None = SEARCH,
        item: str | None = None,
        step: int | None = None,
        message: str = "",
    ) -> Imported:
        """Commit what a model directory or a file of another tool holds. With several ranks, call it on rank 0.

            base = mgr.import_model("llama-3", branch="base", base=None)
            tuned = mgr.import_model("llama-3-chat", branch="chat", base="base")
            mgr.export(tuned.id, "again", format="files")

        Args:
            path: a model directory, all files of which are kept; a directory of torch.distributed.checkpoint; or a file
                of safetensors, GGUF or torch.save.
            branch: where to commit it; made if it does not exist. The bound one if ``None``: then the next save comes
                after it.
            base: the commit that it comes from, against which its tensors are stored; ``"search"`` for the nearest that
                the store has, ``None`` for none.
            item: what to call it as one item; of a model directory its safetensors files alone are taken then.
            step: training step, if there is one.
            message: what to say of it.

        Returns:
            What was made, and of what.

        Raises:
            Incompatible: it is no checkpoint that is known, or cannot be stored; or this is not rank 0 of several.
            Conflict: a file or the branch changed meanwhile.
            Corrupt: a file is not what it should be.
            NotFound: there is no such base.
            Unsafe: reading it would run code. Nothing was run.
            ReadOnly: the store cannot be written from here.
            OSError: reading or writing failed.
        """
        if self._talk is not None and self._talk.group.rank != 0:
            raise Incompatible(f"rank {self._talk.group.rank} imports nothing: do so on rank 0")
        with self._recorder.exclusively():
            self._recorder.wait()
            name, sources = self._binding.branch if branch is None else branch, [Source(Path(path), item)]
            wanted = Import(sources, name, message, step, self._asked(base))
            commit, imported = import_sources(self._repo, sources, wanted)
            if name == self._binding.branch:
                self._binding.bind(name, commit)
        return imported

    def export(
        self,
        rev: Revision | None,
        path: str | Path,
        *,
        format: Format | None = None,  # noqa: A002 - what the command line calls it
        items: str | Sequence[str] | None = None,
        layouts: Mapping[str, Layout] | None = None,
        files: str | Sequence[str] | None = None,
        max_shard_size: int | str = MAX_SHARD_BYTES,
        overwrite: bool = False,
    ) -> Exported:
        """Write a commit as files of other tools. With several ranks, call it on one.

            mgr.export("main", "model.safetensors", items="model")
            mgr.export("best", "exports/hf", format="hf", max_shard_size="2GB")

        Args:
            rev: the commit; the bound branch's tip if ``None``.
            path: a file, or a directory; other files in that stay.
            format: ``"pt"`` or ``"safetensors"`` for one file; ``"hf"`` for a directory as model hubs have it, of one
                item; ``"dcp"`` for one that torch.distributed.checkpoint loads; ``"dir"`` for a plain file for each
                item; ``"files"`` for the files that were imported, byte for byte. If ``None``, the path's suffix says,
                or else it is ``"files"`` where the commit has any. All but the first are streamed.
            items: names or globs of items; all if ``None``. One by its name is the content of a file itself.
            layouts: for ``"dir"``: files by item. What the manager's ``items`` say, else ``torch``, for those that have
                none.
            files: for ``"files"``: paths or globs of those that are wanted; all if ``None``.
            max_shard_size: for ``"hf"``: of tensors in one file, as a number or text (``"500MB"``).
            overwrite: whether what is there may be replaced.

        Returns:
            What was written, and what the format could not hold.

        Raises:
            Incompatible: something that the format cannot hold, or no such format or size. Nothing was written.
            Conflict: there is something already that would be replaced.
            NotFound: there is no such commit or item.
            Unsafe: there is a pickle, which is not read.
            Corrupt: stored bytes are damaged. What was there before is there still.
            OSError: a file could not be written.
        """
        self._recorder.wait()
        commit = self._commit_at(rev)
        wanted = Wanted(
            Path(path),
            format,
            listed(items),
            overwrite,
            parse_bytes(max_shard_size),
            self._layouts(layouts or {}, commit.items) if format == "dir" else layouts or {},
            listed(files),
        )
        with telling_where_else(self._repo, commit):
            return export(self._repo, commit, wanted)

    def _asked(self, base: Revision | None) -> CommitId | Literal["search"] | None:
        if base is None or base == SEARCH:
            return None if base is None else "search"
        return self._resolved(base)

    def _layouts(self, layouts: Mapping[str, Layout], items: Mapping[str, object]) -> dict[str, Layout]:
        """Those that were given, and the manager's own for the other items of a commit."""
        return {item: layout for item, layout in self._schema.layouts.items() if item in items} | dict(layouts)
