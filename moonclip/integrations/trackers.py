"""Experiment trackers: which commit a run has made or loaded, as plain fields that any tracker logs.

    mlflow.set_tags(tracker_fields(mgr))
    wandb.config.update(tracker_fields(mgr))

Knows no tracker, and loads neither torch nor any of them.
"""

from typing import TYPE_CHECKING, Final

from store.ids import SHORT_HEX

if TYPE_CHECKING:
    from ..manager import CheckpointManager
    from ..managing.upkeep import Revision

PREFIX: Final = "moonclip."
"""What the names of all fields begin with."""


def tracker_fields(manager: "CheckpointManager", rev: "Revision | None" = None) -> dict[str, str | int]:
    """What to log of a commit. Waits for saves under way.

    Args:
        manager: has the commit.
        rev: which, or what ``save`` returned; the tip of the manager's branch if ``None``.

    Returns:
        ``moonclip.commit`` and ``moonclip.short`` (ids), ``branch`` (the one that it was made on), ``parents`` (ids,
        with commas between), ``step`` (absent if the commit has none), ``tags`` (with commas) and ``store`` (its path).
        Values are text, but for the step.

    Raises:
        NotFound: ``rev`` names nothing, or the branch has no commit yet.
        SaveFailed: ``rev`` is a save that failed.
    """
    snapshot = manager.snapshot(rev)
    fields: dict[str, str | int | None] = {
        "commit": snapshot.id,
        "short": snapshot.id[:SHORT_HEX],
        "branch": snapshot.branch,
        "parents": ",".join(snapshot.parents),
        "step": snapshot.step,
        "tags": ",".join(snapshot.tags),
        "store": str(manager.root),
    }
    return {PREFIX + name: value for name, value in fields.items() if value is not None}
