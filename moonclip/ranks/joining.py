"""How the ranks of one job come to share one store."""

import os
from pathlib import Path

from store.format.canonical import Node
from store.ids import CommitId, from_hex
from store.repository import Repository

from ..saving.binding import Binding, bound
from .group import Group
from .talk import Talk
from .topology import Stated, default_group, topology


def joined(world_size: Stated, rank: Stated) -> Talk | None:
    """Lines to all ranks; ``None`` if this process saves alone. Collective if it does not.

    Args:
        world_size: see :func:`~moonclip.ranks.topology.topology`.
        rank: likewise.

    Raises:
        Incompatible: it is not clear how many ranks there are, or torch.distributed was not initialised.
        RankLost: another rank did not come.
    """
    found = topology(world_size, rank, os.environ, default_group())
    if found.world_size == 1:
        return None
    return Talk(Group(found.world_size, found.rank))


def bound_together(talk: Talk, root: Path, branch: str | None, threads: int | None) -> tuple[Repository, Binding]:
    """The store in a directory that all ranks see, made by rank 0 if there is none, and the same branch on each.

    Args:
        talk: decisions of all ranks.
        root: the directory.
        branch: short name; the store's current one if ``None``. What rank 0 was given counts.
        threads: see :func:`~moonclip.saving.binding.open_or_make`.

    Raises:
        Incompatible: the store needs a newer version, or ``branch`` is no legal name.
        RankLost: another rank ended.
        OSError: it could not be made, or this rank does not see it. Others are told as a ``MoonclipError``.
    """
    opened: list[tuple[Repository, Binding]] = []

    def begin() -> Node:
        opened.append(bound(root, branch, threads))
        binding = opened[0][1]
        return {"branch": binding.branch, "tip": None if binding.tip is None else binding.tip.hex()}

    def come_after(chosen: Node) -> Node:
        if talk.group.rank != 0:
            repo = Repository.open(root, thread_count=threads)
            opened.append((repo, Binding(repo, chosen["branch"], is_chosen=branch is not None)))
            tip = chosen["tip"]
            opened[0][1].bind(chosen["branch"], None if tip is None else CommitId(from_hex(tip)))
        return None

    try:
        chosen = talk.decide(begin)
        talk.exchange(lambda: come_after(chosen), lambda said: said)
    except BaseException:
        for repo, _ in opened:
            repo.close()
        raise
    return opened[0]
