"""Exporting commits, as a method of a manager."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..capture.budget import parse_bytes
from ..exchange.exporting import Exported, Format, Wanted, export, format_of
from ..exchange.hub import MAX_SHARD_BYTES
from ..specs import Layout, Schema
from .upkeep import Revision, Upkeep


class Exporting(Upkeep):
    """Writing commits as files that other tools read."""

    _schema: Schema

    def export(
        self,
        rev: Revision | None,
        path: str | Path,
        *,
        format: Format | None = None,  # noqa: A002 - what the command line calls it
        items: str | Sequence[str] | None = None,
        layouts: Mapping[str, Layout] | None = None,
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
                item. The path's suffix says if ``None``. All but the first are streamed.
            items: names or globs of items; all if ``None``. One by its name is the content of a file itself.
            layouts: for ``"dir"``: files by item. What the manager's ``items`` say, else ``torch``, for those that have
                none.
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
            [items] if isinstance(items, str) else items,
            overwrite,
            parse_bytes(max_shard_size),
            self._layouts(layouts or {}, commit.items) if format_of(Path(path), format) == "dir" else layouts or {},
        )
        return export(self._repo, commit, wanted)

    def _layouts(self, layouts: Mapping[str, Layout], items: Mapping[str, object]) -> dict[str, Layout]:
        """Those that were given, and the manager's own for the other items of a commit."""
        return {item: layout for item, layout in self._schema.layouts.items() if item in items} | dict(layouts)
