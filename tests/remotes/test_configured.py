"""Remotes in a store's config file."""

import json
import threading
from pathlib import Path

import pytest

from store.disk.files import Files
from store.errors import Conflict, Incompatible, NotFound
from store.layout import Layout
from store.remotes.configured import (
    RemoteConfig,
    add_remote,
    remote_config,
    remotes,
    remove_remote,
    set_lazy,
    store_id,
)
from store.repository import Repository

FILES = Files()
S3 = RemoteConfig("origin", "s3://bucket/run", endpoint_url="http://127.0.0.1:9000", region="eu", path_style=True)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    with Repository.init(tmp_path / "store") as repo:
        return repo.layout


def test_what_was_added_is_read_back_until_it_is_removed(layout: Layout) -> None:
    other = RemoteConfig("backup", "/mnt/backup")
    add_remote(layout, FILES, S3)
    add_remote(layout, FILES, other)
    assert remotes(layout, FILES) == {"origin": S3, "backup": other}
    assert remove_remote(layout, FILES, "origin") == S3
    assert remotes(layout, FILES) == {"backup": other}


def test_a_name_that_is_taken_is_refused(layout: Layout) -> None:
    add_remote(layout, FILES, S3)
    with pytest.raises(Conflict, match="s3://bucket/run"):
        add_remote(layout, FILES, RemoteConfig("origin", "/elsewhere"))
    assert remotes(layout, FILES)["origin"] == S3


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "with space", "HEAD~1", "x.lock", "-o"])
def test_a_name_that_is_no_part_of_a_ref_is_refused(layout: Layout, name: str) -> None:
    with pytest.raises(Incompatible):
        add_remote(layout, FILES, RemoteConfig(name, "/mnt/backup"))
    assert remotes(layout, FILES) == {}


@pytest.mark.parametrize(
    ("url", "endpoint_url"),
    [
        ("s3://AKIAEXAMPLE:topsecret@bucket/run", None),
        ("s3://topsecret@bucket", None),
        ("s3://bucket", "https://user:topsecret@host:9000"),
        ("s3://user:topsecret@[bucket", None),
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(layout: Layout, url: str, endpoint_url: str | None) -> None:
    with pytest.raises(Incompatible) as refused:
        add_remote(layout, FILES, RemoteConfig("origin", url, endpoint_url=endpoint_url))
    assert "topsecret" not in f"{refused.value} {refused.value.details}"
    assert b"topsecret" not in layout.config.read_bytes()


@pytest.mark.parametrize("config", [RemoteConfig("a", "gs://bucket"), RemoteConfig("a", "s3://bucket", "host:9000")])
def test_a_url_that_is_none_is_refused(layout: Layout, config: RemoteConfig) -> None:
    with pytest.raises(Incompatible):
        add_remote(layout, FILES, config)
    assert remotes(layout, FILES) == {}


def test_a_remote_that_only_a_newer_version_reaches_is_in_nobodys_way(layout: Layout) -> None:
    add_remote(layout, FILES, S3)
    config = json.loads(layout.config.read_bytes())
    config["remotes"]["new"] = {"url": "gs://bucket"}
    layout.config.write_text(json.dumps(config))
    assert remotes(layout, FILES)["origin"] == S3
    set_lazy(layout, FILES, "origin", lazy=True)
    assert remotes(layout, FILES)["new"].url == "gs://bucket"


def test_a_directory_may_have_an_at_sign(layout: Layout) -> None:
    add_remote(layout, FILES, RemoteConfig("origin", "/data/me@lab"))
    assert remotes(layout, FILES)["origin"].url == "/data/me@lab"


def test_what_else_is_in_the_config_stays(layout: Layout) -> None:
    config = json.loads(layout.config.read_bytes()) | {"index": "/fast", "later": [1]}
    config["remotes"] = {"new": {"url": "/x", "colour": "red"}}
    layout.config.write_text(json.dumps(config))
    add_remote(layout, FILES, S3)
    set_lazy(layout, FILES, "new", lazy=True)
    after = json.loads(layout.config.read_bytes())
    assert (after["id"], after["index"], after["later"]) == (config["id"], "/fast", [1])
    assert after["remotes"]["new"]["colour"] == "red"
    assert remotes(layout, FILES)["new"].lazy


def test_unknown_remotes_are_named(layout: Layout) -> None:
    add_remote(layout, FILES, S3)
    for call in (
        lambda: remove_remote(layout, FILES, "orign"),
        lambda: set_lazy(layout, FILES, "orign", lazy=True),
        lambda: remote_config(layout, FILES, "orign"),
    ):
        with pytest.raises(NotFound, match="there are: origin"):
            call()


@pytest.mark.parametrize("content", ["[]", "{", '{"remotes": []}', '{"remotes": {"a": {}}}', '{"remotes": {"a": 1}}'])
def test_a_config_that_cannot_be_understood_is_not_replaced(layout: Layout, content: str) -> None:
    layout.config.write_text(content)
    with pytest.raises(Incompatible):
        add_remote(layout, FILES, S3)
    assert layout.config.read_text() == content


def test_the_id_is_the_stores_own(layout: Layout) -> None:
    assert store_id(layout, FILES) == json.loads(layout.config.read_bytes())["id"]


def test_a_store_without_an_id_gets_one_that_stays(layout: Layout) -> None:
    layout.config.write_text('{"index": "/fast"}')
    given = store_id(layout, FILES)
    assert len(bytes.fromhex(given)) == 16
    assert store_id(layout, FILES) == given
    layout.config.unlink()
    assert store_id(layout, FILES) != given


def test_remotes_that_are_added_at_once_are_all_there(layout: Layout) -> None:
    threads = [
        threading.Thread(target=add_remote, args=(layout, FILES, RemoteConfig(f"r{number}", "/x")))
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(remotes(layout, FILES)) == 8
