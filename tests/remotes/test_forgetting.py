"""Forgetting a remote."""

from pathlib import Path

import pytest

from store.errors import NotFound
from store.ids import ObjectId
from store.remotes.configured import RemoteConfig, add_remote, remotes
from store.remotes.fetching.fetch import fetch
from store.remotes.forgetting import forget_remote
from store.remotes.losses import Losses, note
from store.remotes.pushing.push import push
from store.remotes.remote import open_remote
from store.repository import Repository
from tests.stores import commit


def test_what_was_known_of_a_remote_goes_and_what_it_has_stays(tmp_path: Path) -> None:
    for name in ("there", "elsewhere"):
        (tmp_path / name).mkdir()
    with Repository.init(tmp_path / "store") as repo:
        tip = commit(repo, step=0)
        for name, place in (("origin", "there"), ("origin2", "elsewhere")):
            add_remote(repo.layout, repo.files, RemoteConfig(name, str(tmp_path / place)))
            with open_remote(repo, name) as remote:
                push(repo, remote)
                fetch(repo, remote)
                note(repo, remote, Losses(frozenset({ObjectId(bytes(32))})))
        there = {path: path.read_bytes() for path in (tmp_path / "there").rglob("*") if path.is_file()}
        assert forget_remote(repo, "origin").url == str(tmp_path / "there")
        assert list(remotes(repo.layout, repo.files)) == ["origin2"]
        assert set(repo.refs.list()) == {"branches/main", "remotes/origin2/main"}
        assert repo.refs.read(repo.refs.names("branches/")[0]) == tip
        left = [path for path in (repo.layout.root / "remotes" / "origin").rglob("*") if path.is_file()]
        assert {path.name for path in left} <= {"lock", "writing.lock"}
        assert {path: path.read_bytes() for path in there} == there
        with pytest.raises(NotFound, match="there are: origin2"):
            forget_remote(repo, "origin")
