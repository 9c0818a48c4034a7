"""The storage in docs/remotes.md is one: a store is pushed to it, and fetched from it."""

import re
from pathlib import Path
from typing import Any

from store.fsck import fsck
from store.naming.refnames import branch_name
from store.remotes.configured import RemoteConfig, add_remote
from store.remotes.fetching.fetch import fetch
from store.remotes.pushing.push import push
from store.remotes.remote import open_remote
from store.repository import Repository
from tests.stores import commit
from tools.s3 import SERVERS

TEXT = (Path(__file__).parents[2] / "docs" / "remotes.md").read_text()


def the_storage() -> Any:
    blocks = re.findall(r"^```python\n(import.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    names: dict[str, Any] = {}
    exec(compile(blocks[0], "docs/remotes.md", "exec"), names)
    return names["MemoryStorage"]()


def test_a_storage_of_ones_own(tmp_path: Path) -> None:
    storage = the_storage()
    with Repository.init(tmp_path / "one") as one, Repository.init(tmp_path / "two") as two:
        made = commit(one)
        for repository, act in ((one, push), (two, fetch)):
            add_remote(repository.layout, repository.files, RemoteConfig("origin", "file:///nowhere"))
            with open_remote(repository, "origin", storage=storage) as remote:
                act(repository, remote)
        refs = two.refs.list("remotes/")
        assert list(refs.values()) == [made] == [one.refs.read(branch_name("main"))]
        assert fsck(two, full=True).clean


def test_it_is_as_short_as_it_is_said_to_be() -> None:
    block = re.findall(r"^```python\n(import.*?)^```", TEXT, re.MULTILINE | re.DOTALL)[0]
    assert sum(bool(line.strip()) for line in block.splitlines()) <= 60


def test_what_is_said_of_servers_is_what_is_tested_of_them() -> None:
    rows = {
        "`If-None-Match: *`: one of eight wins": "atomic_create",
        "`If-Match`: one of eight wins": "atomic_replace",
        "takes checksum trailers": "decodes_chunked",
        "answers ranges with 206": "answers_ranges",
    }
    for words, trait in rows.items():
        line = next(line for line in TEXT.splitlines() if words in line)
        said = [cell.strip() == "yes" for cell in line.split("|")[3:-1]]
        assert said == [getattr(kind.traits, trait) for kind in SERVERS.values()], words
