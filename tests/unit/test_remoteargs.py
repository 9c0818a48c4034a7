"""What a manager is told of its remote, and what becomes of it in the store's configuration."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moonclip import CheckpointManager
from moonclip.managing.remoteargs import RemoteArguments, default_remote, linked, remote_arguments
from store.errors import Incompatible, NotFound
from store.remotes.configured import RemoteConfig, add_remote, remotes
from store.repository import Repository

SECRET = "not-to-be-seen"


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        yield repo


def known(repo: Repository) -> dict[str, RemoteConfig]:
    return remotes(repo.layout, repo.files)


def link(repo: Repository, remote: str | Path | None = None, push_every: int | None = None, **s3: Any) -> Any:
    return linked(repo, remote_arguments(remote, push_every, s3))


def test_the_words_of_the_rust_engine_are_a_url_and_settings() -> None:
    asked = remote_arguments(
        None,
        None,
        {
            "s3_bucket": "my-bucket",
            "s3_access_key": "id",
            "s3_secret_key": SECRET,
            "s3_endpoint": "http://localhost:9000",
            "s3_region": "eu-west-1",
            "s3_prefix": "runs/a",
            "s3_path_style": True,
            "sync_every_n_saves": 5,
        },
    )
    assert asked is not None
    assert asked.place == "s3://my-bucket/runs/a"
    assert asked.settings == {"endpoint_url": "http://localhost:9000", "region": "eu-west-1", "path_style": True}
    assert asked.push_every == 5
    assert asked.keys is not None
    assert (asked.keys.access_key, asked.keys.secret_key) == ("id", SECRET)
    assert SECRET not in repr(asked)


def test_nothing_said_is_no_remote(repo: Repository) -> None:
    assert remote_arguments(None, None, {}) is None
    assert remote_arguments(None, None, {"s3_bucket": None, "s3_prefix": "x", "sync_every_n_saves": 10}) is None
    assert link(repo) is None


@pytest.mark.parametrize(
    ("remote", "push_every", "s3", "what"),
    [
        (None, 5, {}, "push_every needs to know where"),
        (None, None, {"s3_region": "x"}, "s3_region needs to know where"),
        (None, None, {"s3_prefix": "x"}, "s3_prefix needs to know where"),
        ("s3://a", None, {"s3_bucket": "b"}, "remote and s3_bucket say the same"),
        ("s3://a", None, {"s3_prefix": "b"}, "s3_prefix goes with s3_bucket"),
        ("s3://a", 5, {"sync_every_n_saves": 5}, "push_every and sync_every_n_saves say the same"),
        ("s3://a", 0, {}, "push_every counts saves, from 1"),
        ("s3://a", None, {"sync_every_n_saves": 0}, "sync_every_n_saves counts saves, from 1"),
        (None, 5, {"s3_bucket": None}, "push_every needs to know where"),
        ("s3://a", None, {"s3_access_key": SECRET}, "go together"),
        ("s3://a", None, {"s3_secret_key": SECRET}, "go together"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    remote: str | None, push_every: int | None, s3: dict[str, Any], what: str
) -> None:
    with pytest.raises(Incompatible, match=what) as caught:
        remote_arguments(remote, push_every, s3)
    assert SECRET not in str(caught.value)


def test_an_unknown_keyword_is_one_and_makes_no_store(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="s3_buckt"):
        CheckpointManager(tmp_path / "store", s3_buckt="b")  # type: ignore[call-arg]
    assert not (tmp_path / "store").exists()


def test_a_url_becomes_origin_and_stays_it(repo: Repository) -> None:
    assert link(repo, "s3://bucket/runs", s3_endpoint="http://localhost:9000", s3_path_style=True).remote == "origin"
    expected = RemoteConfig("origin", "s3://bucket/runs", "http://localhost:9000", path_style=True)
    assert known(repo) == {"origin": expected}
    assert link(repo, "s3://bucket/runs").remote == "origin"  # what is not said again holds
    assert link(repo, "origin", 3).push_every == 3
    assert known(repo) == {"origin": expected}


def test_a_directory_is_the_same_however_it_is_written(repo: Repository, tmp_path: Path) -> None:
    link(repo, tmp_path / "remote")
    link(repo, str(tmp_path / "remote"))
    link(repo, (tmp_path / "remote").as_uri())
    assert known(repo)["origin"].url == (tmp_path / "remote").as_uri()


def test_another_place_is_refused_with_what_to_do(tmp_path: Path) -> None:
    root = tmp_path / "store"
    Repository.init(root).close()
    link(Repository.open(root), "s3://bucket/runs").remote  # noqa: B018 - that it is accepted is all
    with pytest.raises(Incompatible, match=r"not s3://other.*moonclip remote remove origin"):
        link(Repository.open(root), "s3://other")
    with pytest.raises(Incompatible, match="endpoint http://a"):
        link(Repository.open(root), "origin", s3_endpoint="http://a")


def test_keys_are_in_no_file_of_the_store(repo: Repository) -> None:
    found = link(repo, "s3://bucket", s3_access_key="id-of-someone", s3_secret_key=SECRET)
    assert found.keys.secret_key == SECRET
    assert SECRET not in repr(found)
    for path in repo.layout.root.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes()
            assert b"id-of-someone" not in path.read_bytes()


def test_a_name_that_is_not_known_is_no_directory(repo: Repository) -> None:
    with pytest.raises(NotFound, match=r"no remote 'backup'.*\./backup"):
        link(repo, "backup")


def test_settings_of_s3_do_not_go_with_a_directory(repo: Repository, tmp_path: Path) -> None:
    with pytest.raises(Incompatible, match="is a directory"):
        link(repo, tmp_path / "remote", s3_region="x")


def test_the_place_of_another_remote_is_that_remote(repo: Repository) -> None:
    add_remote(repo.layout, repo.files, RemoteConfig("backup", "s3://bucket"))
    assert link(repo, "s3://bucket").remote == "backup"


def test_the_remote_that_is_meant_if_none_is_named(repo: Repository) -> None:
    with pytest.raises(NotFound, match="has no remote"):
        default_remote(repo)
    add_remote(repo.layout, repo.files, RemoteConfig("a", "s3://bucket/a"))
    assert default_remote(repo) == "a"
    add_remote(repo.layout, repo.files, RemoteConfig("b", "s3://bucket/b"))
    with pytest.raises(NotFound, match="which remote"):
        default_remote(repo)
    add_remote(repo.layout, repo.files, RemoteConfig("origin", "s3://bucket/c"))
    assert default_remote(repo) == "origin"


def test_arguments_are_data() -> None:
    assert remote_arguments("s3://a/b", None, {}) == RemoteArguments("s3://a/b", {})
