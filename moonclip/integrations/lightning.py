"""Lightning: a plugin that keeps a trainer's checkpoints as commits, and callbacks that go with it.

    from moonclip.integrations.lightning import Generators, StoreIO

    io = StoreIO("./checkpoints")
    trainer = Trainer(plugins=[io], callbacks=[Generators(), ModelCheckpoint(dirpath="run1", save_last=True)])
    trainer.fit(model, ckpt_path="last")

Works with ``lightning.pytorch`` and with ``pytorch_lightning``, which hold the same classes twice.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from store.errors import Incompatible, NotFound

from ..manager import CheckpointManager
from ..state.items import GENERATORS
from .lightningcallbacks import NO_SPAWNING, Generators, StoreCheckpoint
from .lightningpaths import Pointers, read_pointer, tag_at
from .lightningstates import checkpoint_of, items_of
from .lightningtwins import base, twins

__all__ = ["Generators", "StoreCheckpoint", "StoreIO"]

_OPTIONS: Final = frozenset({"metadata", "message", "tag", "overwrite"})

_HANDED_ON: Final = ".temp.ckpt"
"""What Lightning calls the file by which a process that it has started gives back weights."""

Checkpoint = dict[str, Any]


class StoreIO(base("plugins.io", "CheckpointIO")):  # type: ignore[misc] # of the packages that are installed
    """Saves a trainer's checkpoints as commits of a store, each under a tag, and loads them from any revision.

        trainer = Trainer(plugins=[StoreIO("./checkpoints")], callbacks=[ModelCheckpoint(dirpath="run1")])
        trainer.fit(model, ckpt_path="main~2")

    A path that Lightning makes up becomes a tag. Where the checkpoint is durable, a file of one line lies at the path
    as well: by such files Lightning finds what is ``"last"``, and which names are taken.

    Saves are written in the background. What failed is raised by the next save, and when the trainer ends. A checkpoint
    that Lightning removes loses its tag with the next save; its commit goes if ``keep`` says so.

    Only rank 0 of a trainer saves, as with Lightning's own plugin. Strategies that save shards pass by plugins.

    Args:
        root: directory of the store; made if there is none.
        **options: as for :class:`CheckpointManager`, but ``world_size`` and ``rank``.
    """

    def __init__(self, root: str | Path, **options: Any) -> None:
        super().__init__()
        self._root = Path(root)
        self._options = options
        self._manager: CheckpointManager | None = None
        self._pointers: Pointers | None = None
        self._doomed: list[str] = []
        self._found: tuple[str, Checkpoint] | None = None

    @property
    def manager(self) -> CheckpointManager:
        """The manager that saves and loads; opened when it is first asked for, and then the same one."""
        if self._manager is None:
            self._manager = CheckpointManager(self._root, world_size=1, rank=0, **self._options)
        return self._manager

    # --- what Lightning calls ---------------------------------------------------------------------------------------

    def save_checkpoint(
        self, checkpoint: Checkpoint, path: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
    ) -> None:
        """Commit a checkpoint; returns once it is copied.

        Args:
            checkpoint: what ``trainer.save_checkpoint`` gathers.
            path: where Lightning would write it; the tag's name, see :func:`~.lightningpaths.tag_at`. A tag that
                exists is moved. Empty text for a commit without a tag.
            storage_options: ``metadata`` and ``message`` of the commit; ``tag`` in place of the one that the path
                stands for, and ``overwrite``, as for :meth:`CheckpointManager.save`.

        Raises:
            Incompatible: something cannot be kept, and is named; the path is no name for a tag; or the trainer's
                strategy spawns processes.
            SaveFailed: an earlier save failed; this one is under way.
        """
        if Path(path).name == _HANDED_ON:
            raise Incompatible(NO_SPAWNING)
        given = dict(storage_options or {})
        if unknown := sorted(given.keys() - _OPTIONS):
            raise Incompatible(f"storage_options: {', '.join(unknown)}; there are {', '.join(sorted(_OPTIONS))}")
        tag = given.pop("tag", None) or (tag_at(path, self._root) if os.fspath(path) else None)
        metadata = {"epoch": checkpoint.get("epoch"), **(given.pop("metadata", None) or {})}
        self._remove_doomed()
        future = self.manager.save(
            tag,
            items_of(checkpoint),
            step=checkpoint.get("global_step"),
            metadata=metadata,
            **{"overwrite": True, **given},
        )
        if tag is not None and os.fspath(path):
            self._files.write_after(future, Path(path), tag)

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: Any = None,
        weights_only: bool | None = None,  # noqa: FBT001 - as Lightning calls it
    ) -> Checkpoint:
        """Read a checkpoint. Whatever was saved under the path is found, then any revision.

        A file that Lightning's own plugin wrote is read as that does.

        Args:
            path: a path that was saved under, or a revision: ``main~2``, ``step:800``, a commit's id.
            map_location: a device to move tensors to; anything else leaves them on the CPU.
            weights_only: for files of Lightning's own. Of a store nothing is unpickled in any case.

        Raises:
            NotFound: there is nothing of that name.
            Unsafe: it holds a class or pickle that was not allowed.
            Corrupt: stored bytes are damaged.
        """
        self._remove_doomed()
        commit = self._commit_under(path)
        if commit is None and Path(path).is_file():
            (plugin, *_) = twins("plugins.io", "TorchCheckpointIO")
            return dict(plugin().load_checkpoint(path, map_location, weights_only))
        revision = commit or os.fspath(path)
        found, self._found = self._found, None
        items = found[1] if found is not None and found[0] == revision else self.manager.load(revision)
        return _moved(checkpoint_of(items), map_location)

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Take a checkpoint's name away: the file at once, the tag with the next save, for which nothing waits twice.

        Raises:
            OSError: the file cannot be removed.
        """
        tag = read_pointer(path) if not Path(path).is_symlink() else None
        self._doomed.append(tag or tag_at(path, self._root))
        self._files.remove(Path(path))

    def teardown(self) -> None:
        """Wait until all is durable.

        Raises:
            SaveFailed: a save failed and nobody was told yet.
        """
        if self._manager is not None:
            self._remove_doomed()
            self._manager.flush()

    # --- what people call -------------------------------------------------------------------------------------------

    def resume(self, rev: str | None = None, *, branch: str | None = None) -> str | None:
        """Choose where to go on, as :meth:`CheckpointManager.resume` does, and tell a trainer.

            trainer.fit(model, ckpt_path=io.resume())
            trainer.fit(model, ckpt_path=io.resume("step:800", branch="lr3"))

        Without ``rev``, a damaged tip is passed over for the newest commit that is not, and what was read is kept for
        the trainer that asks next. An empty store asks the manager's remote.

        Args:
            rev: the commit; the branch's tip if ``None``.
            branch: branch to save on from now on; with ``rev`` it is made there if it does not exist.

        Returns:
            The commit's id for ``ckpt_path``; ``None``, with which a trainer begins anew, if there is none yet.

        Raises:
            Conflict: ``rev`` is not the tip of the branch to continue on.
            NotFound: ``rev`` names nothing, or neither does ``branch``.
            Corrupt: all commits are damaged.
        """
        self.manager.resume(rev=rev, branch=branch)
        if self._resumed is None or rev is not None:
            return self._resumed
        (tip,) = self.manager.log(self._resumed, limit=1)
        items: Checkpoint = {item: {} for item in tip.items if item != GENERATORS}
        self.manager.resume(**items)  # passes over what is damaged
        if GENERATORS in tip.items:  # a rank's own, which a template of all ranks does not take in
            items |= self.manager.load(self._resumed, items=[GENERATORS])
        self._found = (str(self._resumed), items)
        return self._resumed

    def close(self) -> None:
        """Wait until all is durable, and close the store; the next use opens it again.

        Raises:
            SaveFailed: a save failed and nobody was told yet.
        """
        if self._manager is not None:
            self._remove_doomed()
            manager, self._manager = self._manager, None
            manager.close()

    # --- how --------------------------------------------------------------------------------------------------------

    @property
    def _resumed(self) -> str | None:
        resumed = self.manager.resumed
        return None if resumed is None else resumed.commit

    @property
    def _files(self) -> Pointers:
        """Made late, as the manager is: Lightning pickles plugins for processes that it starts."""
        if self._pointers is None:
            self._pointers = Pointers()
        return self._pointers

    def _commit_under(self, path: str | os.PathLike[str]) -> str | None:
        """Commit that was saved under a path; ``None`` if that is no such path."""
        tags = self.manager.tags()
        named = read_pointer(path)
        if named is not None and named not in tags:
            raise NotFound(f"{path} stands for the tag {named!r}, which {self._root} does not have", revision=named)
        try:
            return tags.get(named or tag_at(path, self._root))
        except Incompatible:  # no name for a tag, so none was saved under it: a revision
            return None

    def _remove_doomed(self) -> None:
        for tag in self._doomed:
            if tag in self.manager.tags():
                self.manager.delete_tag(tag)
        self._doomed.clear()


def _moved(checkpoint: Checkpoint, map_location: Any) -> Checkpoint:
    if not isinstance(map_location, str | torch.device):
        return checkpoint
    (move, *_) = twins("utilities", "move_data_to_device")
    return dict(move(checkpoint, torch.device(map_location)))
