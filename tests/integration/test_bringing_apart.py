"""What an empty store takes up of a remote to which stores pushed that went different ways."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from moonclip.managing.bringing import bring
from store.errors import Conflict, NotFound
from store.remotes.configured import RemoteConfig, add_remote
from store.remotes.pushing.push import push
from store.remotes.remote import Remote, open_remote
from store.remotes.remoteformat import encode_format
from store.repository import Repository
from tests.stores import commit


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A remote where each store has refs of its own; two of them have a ``main``."""
    place = tmp_path / "there"
    place.mkdir()
    (place / "format").write_bytes(encode_format("by-store"))
    for number in (1, 2):
        with Repository.init(tmp_path / f"store{number}") as repo:
            commit(repo, step=number)
            add_remote(repo.layout, repo.files, RemoteConfig("origin", str(place)))
            with open_remote(repo, "origin") as remote:
                push(repo, remote)
    return place


@pytest.fixture
def empty(tmp_path: Path, place: Path) -> Iterator[tuple[Repository, Remote]]:
    with Repository.init(tmp_path / "empty") as repo:
        add_remote(repo.layout, repo.files, RemoteConfig("origin", str(place)))
        with open_remote(repo, "origin") as remote:
            yield repo, remote


@pytest.mark.parametrize("is_asked", [True, False])
def test_none_is_taken_up_by_itself(empty: tuple[Repository, Remote], *, is_asked: bool) -> None:
    repo, remote = empty
    with pytest.raises(Conflict, match=r"different ways on 'main'.*branch -r"):
        bring(repo, remote, "main", (), is_asked=is_asked)
    assert repo.refs.names("branches/") == []


def test_a_branch_on_which_they_agree_is(tmp_path: Path, empty: tuple[Repository, Remote]) -> None:
    with Repository.open(tmp_path / "store1") as other, open_remote(other, "origin") as there:
        tip = commit(other, "exp/main", step=5)
        push(other, there, ["exp/main"])
    repo, remote = empty
    with pytest.raises(NotFound, match="it has: exp/main"):
        bring(repo, remote, "nope", (), is_asked=True)
    assert bring(repo, remote, "run", (), is_asked=False) == "exp/main"
    assert repo.resolve("exp/main") == tip
