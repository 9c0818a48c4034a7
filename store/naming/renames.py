"""What branches were called before: commits keep the name of the branch that they were made on."""

from collections.abc import Sequence
from typing import Final

from .reflog import ReflogLine
from .refnames import BRANCHES, branch_name, is_full_name
from .refs import RefStore

RENAME: Final = "rename"
"""Action of the two lines that a rename leaves: of the new name that was made, and of the old one that was deleted."""

_FROM: Final = "from "


def told(old: str) -> str:
    """The message of the new name's line.

    Args:
        old: short name that the branch had.
    """
    return f"{_FROM}{old}"


def names_of(refs: RefStore, branch: str) -> list[str]:
    """The names that a branch has had, its own first, as far back as reflogs tell.

    Args:
        refs: the store's refs.
        branch: short name.

    Raises:
        Corrupt: a line of a reflog is damaged that is not the last.
        Incompatible: ``branch`` is no legal name.
    """
    starts = {branch: 0}  # where in its reflog a name's own past begins: what is newer is another branch's
    name = branch
    while (line := _made_by_rename(refs.reflog(branch_name(name))[starts[name] :])) is not None:
        name = line.message.removeprefix(_FROM)
        if not is_full_name(f"{BRANCHES}/{name}"):
            break
        start = _left_at(refs.reflog(branch_name(name)), line)
        if start <= starts.get(name, -1):
            break
        starts[name] = start
    return list(starts)


def _made_by_rename(lines: Sequence[ReflogLine]) -> ReflogLine | None:
    for line in lines:
        if line.new is None:  # what came before its deletion was another branch
            return None
        if line.action == RENAME:
            return line
    return None


def _left_at(lines: Sequence[ReflogLine], made: ReflogLine) -> int:
    """How many lines of the old name are newer than the rename; none if a crash left it there."""
    for number, line in enumerate(lines):
        if line.new is None and line.action == RENAME and line.old == made.new:
            return number + 1
    return 0
