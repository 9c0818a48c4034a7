"""Files under a prefix of a remote."""

import os
from pathlib import Path

import pytest

from store import Prefix, Repository, Synced, open_remote, push, sync_prefix
from store.errors import Conflict, Incompatible, NotFound
from store.remotes.storages.directory import DirectoryStorage
from store.remotes.storages.storage import Advance, Source
from tests.remotes.remote_state import require_whole
from tests.storages import keys_of, noise, storage_at
from tests.stores import commit

CONTENT = {
    "run.json": b"{}",
    "empty": b"",
    "logs/train.txt": noise(9_000_000),
    "logs/.hidden/x": b"dotted",
    "100%2E.txt": b"percent",
    "ünï/code": b"text",
}


def made(directory: Path) -> Path:
    for path, content in CONTENT.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    return directory


def content_of(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("place", ["directory", "moto"])
def test_a23_a_directory_goes_to_a_prefix_and_comes_back_byte_for_byte(place: str, tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    here = made(tmp_path / "here")
    with storage_at(place, tmp_path / "remote") as (storage, _):
        prefix = Prefix(storage, "runs/7")
        assert sync_prefix(prefix, here) == Synced(tuple(sorted(CONTENT)), ())
        assert sync_prefix(prefix, here) == Synced((), ())
        assert prefix.list() == {path: len(content) for path, content in CONTENT.items()}
        assert sync_prefix(prefix, tmp_path / "there") == Synced((), tuple(sorted(CONTENT)))
        assert content_of(tmp_path / "there") == CONTENT
        prefix.get("logs/train.txt", tmp_path / "one" / "train.txt")
        assert (tmp_path / "one" / "train.txt").read_bytes() == CONTENT["logs/train.txt"]
        prefix.put("run.json", tmp_path / "one" / "train.txt")
        assert prefix.list()["run.json"] == 9_000_000
        with pytest.raises(NotFound, match="has no file 'nothing' under 'runs/7'"):
            prefix.get("nothing", tmp_path / "one" / "nothing")
        assert [path.name for path in (tmp_path / "one").iterdir()] == ["train.txt"]
        assert Prefix(storage, "runs/70").list() == {}
        assert Prefix(storage, "runs").list().keys() == {f"7/{path}" for path in CONTENT}


def test_both_sides_get_what_they_lack(tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    with storage_at("directory", tmp_path / "remote") as (storage, _):
        prefix = Prefix(storage, "x")
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            (tmp_path / name / f"only-{name}").write_bytes(name.encode())
            (tmp_path / name / "both").write_bytes(name.encode())
        sync_prefix(prefix, tmp_path / "a")
        with pytest.raises(Conflict, match=r"^files differ between .*: both; say which stay"):
            sync_prefix(prefix, tmp_path / "b")
        assert content_of(tmp_path / "b") == {"only-b": b"b", "both": b"b"}
        assert prefix.list().keys() == {"only-a", "both"}
        assert sync_prefix(prefix, tmp_path / "b", prefer="there") == Synced(("only-b",), ("both", "only-a"))
        assert content_of(tmp_path / "b") == {"only-a": b"a", "only-b": b"b", "both": b"a"}
        (tmp_path / "a" / "both").write_bytes(b"longer")
        assert sync_prefix(prefix, tmp_path / "a", prefer="here") == Synced(("both",), ("only-b",))
        assert sync_prefix(prefix, tmp_path / "b", prefer="there") == Synced((), ("both",))
        assert content_of(tmp_path / "a") == content_of(tmp_path / "b")


class Growing(DirectoryStorage):
    """A storage beside which somebody goes on writing to the file that is being sent."""

    def __init__(self, path: Path, log: Path) -> None:
        super().__init__(path)
        self._log = log

    def upload(self, key: str, source: Source, advance: Advance) -> None:
        with self._log.open("ab") as log:
            log.write(b" and more")
        super().upload(key, source, advance)


def test_a_log_that_is_being_written_goes_as_far_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    (tmp_path / "here").mkdir()
    log = tmp_path / "here" / "log"
    log.write_bytes(b"begun")
    prefix = Prefix(Growing(tmp_path / "remote", log), "x")
    sync_prefix(prefix, tmp_path / "here")
    assert prefix.list() == {"log": 5}
    sync_prefix(prefix, tmp_path / "here", prefer="here")
    assert prefix.list() == {"log": len(b"begun and more")}
    assert (tmp_path / "remote" / "files" / "x" / "log").read_bytes() == b"begun and more"


def test_links_and_pipes_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    here = tmp_path / "here"
    here.mkdir()
    (here / "file").write_bytes(b"1")
    (here / "link").symlink_to(here / "file")
    (here / "lost").symlink_to(here / "nothing")
    os.mkfifo(here / "pipe")
    with storage_at("directory", tmp_path / "remote") as (storage, _):
        assert sync_prefix(Prefix(storage, "x"), here) == Synced(("file",), ())


def test_names_that_would_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    with storage_at("directory", tmp_path / "remote") as (storage, _):
        for name in ("", "..", "a/../b", "/a", "a/"):
            with pytest.raises(Incompatible):
                sync_prefix(Prefix(storage, name), tmp_path)
        storage.put("files/x/%2E%2E", b"no")
        storage.put("files/x/%2E./escaped", b"no")
        with pytest.raises(Incompatible, match="no path of a file"):
            sync_prefix(Prefix(storage, "x"), tmp_path / "here")
        assert not (tmp_path / "here").exists()


def test_a_remote_is_a_remote_with_files_in_it(tmp_path: Path) -> None:
    with (
        storage_at("directory", tmp_path / "remote") as (storage, _),
        Repository.init(tmp_path / "store") as repo,
    ):
        (tmp_path / "remote").mkdir()
        sync_prefix(Prefix(storage, "packs"), made(tmp_path / "here"))
        tip = commit(repo, step=1)
        push(repo, open_remote(repo, "origin", storage), ["main"]).require_all()
        assert set(require_whole(storage).refs.values()) == {tip}
        assert len(keys_of(storage, "files/packs/")) == len(CONTENT)


def test_f10_nothing_is_written_through_a_link_or_over_something_else(tmp_path: Path) -> None:
    victim, here = tmp_path / "victim", tmp_path / "here"
    victim.mkdir()
    (tmp_path / "remote").mkdir()
    with storage_at("directory", tmp_path / "remote") as (storage, _):
        for key in ("through/a", "name", "file/below", "taken"):
            storage.put(f"files/{key.replace('/', '-')}/{key}", b"theirs")
        (here / "taken").mkdir(parents=True)
        (here / "file").write_bytes(b"mine")
        (here / "through").symlink_to(victim)
        (here / "name").symlink_to(victim / "made")
        for key in ("through/a", "name", "file/below", "taken"):
            with pytest.raises(Conflict, match=r"is in the way .* move it away"):
                sync_prefix(Prefix(storage, key.replace("/", "-")), here, prefer="there")
        assert keys_of(storage, "files/name/") == ["files/name/name"], "nothing was sent either"
    assert not list(victim.iterdir())
    assert (here / "name").is_symlink()
    assert (here / "file").read_bytes() == b"mine"


def test_a_place_that_is_no_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "remote").mkdir()
    with storage_at("directory", tmp_path / "remote") as (storage, _), pytest.raises(NotADirectoryError):
        sync_prefix(Prefix(storage, "x"), tmp_path / "file")
