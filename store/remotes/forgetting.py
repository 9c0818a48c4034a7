"""Forgetting a remote: where it is, what its branches were, and what was remembered of it. What it has stays there."""

from ..naming.refnames import REMOTES
from ..repository import Repository
from .cache import Cache, directory_of
from .configured import RemoteConfig, remote_config, remove_remote
from .losses import forget_all

_ACTION = "remote"


def forget_remote(repo: Repository, name: str) -> RemoteConfig:
    """Forget a remote. One that is half forgotten when this is killed is still there, and can be forgotten again.

    Args:
        repo: the store.
        name: what the remote is called.

    Returns:
        What it was.

    Raises:
        NotFound: there is none of that name.
        Incompatible: the ``config`` file cannot be understood.
        ReadOnly: the store cannot be written from here.
        OSError: the disk failed.
    """
    repo.require_writable()
    config = remote_config(repo.layout, repo.files, name)
    for ref in repo.refs.names(f"{REMOTES}/{name}/"):
        repo.delete_ref(ref, _ACTION)
    Cache(directory_of(repo.layout, name), config.url, repo.files).clear()
    forget_all(repo, name)
    return remove_remote(repo.layout, repo.files, name)
