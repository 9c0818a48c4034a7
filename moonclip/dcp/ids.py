"""What a ``checkpoint_id`` says: a tag, and a step if it ends in one. Pure."""

import os
import posixpath
import re
from typing import Final

from store.errors import Incompatible
from store.naming.refnames import problem_with

CheckpointId = str | os.PathLike[str]

_STEP: Final = re.compile(r"(?:^|[^a-zA-Z])step[-_=]?([0-9]{1,18})$")
_UPWARDS: Final = re.compile(r"^(?:\.\./)+")


def tag_of(checkpoint_id: CheckpointId) -> str:
    """The tag that a checkpoint is to have: its id as a path, without what only says where that path begins.

    Args:
        checkpoint_id: text or a path.

    Raises:
        Incompatible: that is no legal name for a tag.
    """
    text = os.fspath(checkpoint_id)
    tag = _UPWARDS.sub("", posixpath.normpath(text.replace(os.sep, "/"))).lstrip("/") if text else ""
    problem = problem_with(tag)
    if problem is not None or tag in {".", ".."}:
        raise Incompatible(
            f"checkpoint_id {text!r} becomes the tag {tag!r}, which is no legal name ({problem}); use another id",
            name=tag,
        )
    return tag


def step_of(tag: str) -> int | None:
    """The step that a tag ends in, as in ``step-100``, ``run1/step_100`` or ``epoch=2-step=100``."""
    match = _STEP.search(tag.rpartition("/")[2])
    return int(match[1]) if match else None
