"""Moves a store's history to a remote and back, and a file of the same bytes as people do without us."""

import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Final

from ..workloads import warmed_up
from .moved import measured
from .telling import tell

_MAIN: Final = "main"
_TUNED: Final = "tuned"


def history(root: str, workload: str, target_bytes: int, distance: int, file: str) -> None:
    """Save a run until its packs hold so much, then once more, one step on, on a branch of its own.

    Args:
        root: of the store.
        workload: name of the run.
        target_bytes: what packs are to hold.
        distance: steps between saves.
        file: gets what the packs of the main branch hold.
    """
    from moonclip import CheckpointManager

    run = warmed_up(workload)
    packs = Path(root) / "packs"
    with CheckpointManager(root) as manager:
        step = 0
        manager.save(step=step, **run.items).result()
        while _length(packs) < target_bytes:
            run.step(distance)
            step += distance
            manager.save(step=step, **run.items).result()
        main_bytes = _length(packs)
        _join(packs, Path(file))
        run.step()
        manager.branch(_TUNED)
        manager.switch(_TUNED)
        manager.save(step=step + 1, **run.items).result()
        manager.switch(_MAIN)
    tell("history", save_count=1 + step // distance, bytes=main_bytes, added_bytes=_length(packs) - main_bytes)


def push(root: str, remote: str, url: str, *, tuned: bool = False) -> None:
    """Push the main branch, or the other one, to a remote that is configured if it is not yet."""
    from store.remotes.configured import RemoteConfig, add_remote, remotes
    from store.remotes.pushing.push import push as push_branches
    from store.remotes.remote import open_remote
    from store.remotes.storages import s3client  # noqa: F401 - boto3 is to be loaded before anything is measured
    from store.repository import Repository

    with Repository.open(Path(root)) as repo:
        if remote not in remotes(repo.layout, repo.files):
            add_remote(repo.layout, repo.files, RemoteConfig(remote, url))
    with measured() as moved, Repository.open(Path(root)) as repo, open_remote(repo, remote) as there:
        pushed = push_branches(repo, there, [_TUNED if tuned else _MAIN])
        pushed.require_all()
        moved.append(pushed.sent_bytes)


def clone(url: str, root: str) -> None:
    """Make a store of what a remote has."""
    from store import kernels
    from store.remotes.configured import RemoteConfig
    from store.remotes.fetching.clone import clone as clone_remote
    from store.remotes.storages import s3client  # noqa: F401 - as above

    kernels.warm()  # as `make setup` leaves it
    with measured() as moved, closing(clone_remote(RemoteConfig("origin", url), root)):
        moved.append(_length(Path(root) / "packs"))


def upload(file: str, bucket: str, key: str) -> None:
    """Upload a file with boto3 as it comes."""
    import boto3

    with measured() as moved, closing(boto3.client("s3")) as s3:
        s3.upload_file(file, bucket, key)
        moved.append(Path(file).stat().st_size)


def download(bucket: str, key: str, file: str) -> None:
    """Download a file with boto3 as it comes, which does not wait for the disk."""
    import boto3

    with measured() as moved, closing(boto3.client("s3")) as s3:
        s3.download_file(bucket, key, file)
        moved.append(Path(file).stat().st_size)


def copy(source: str, target: str) -> None:
    """Copy a file, and wait for the disk."""
    with measured() as moved:
        shutil.copyfile(source, target)
        for path, flags in ((target, os.O_RDWR), (str(Path(target).parent), os.O_RDONLY)):
            descriptor = os.open(path, flags)
            os.fsync(descriptor)
            os.close(descriptor)
        moved.append(Path(target).stat().st_size)


def _length(packs: Path) -> int:
    return sum(path.stat().st_size for path in packs.iterdir())


def _join(packs: Path, file: Path) -> None:
    with file.open("wb") as out:
        for path in sorted(packs.iterdir()):
            with path.open("rb") as pack:
                shutil.copyfileobj(pack, out)
