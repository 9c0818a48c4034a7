"""Recipes of files: what is stored of them, and what is refused."""

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store.beside.composed import TAG, Composed, Parts, Run, from_payload, to_plain
from store.beside.files import StoredFile, files_in
from store.errors import Corrupt
from store.format import values
from store.format.values import Tagged
from store.naming.refnames import branch_name
from store.reading.reader import ObjectReader
from store.repository import Repository
from store.saving.inputs import ContainerInput, ItemInput, TensorInput, ValueInput
from store.saving.saver import SaveRequest

DIGEST = sha256(b"").digest()


def test_a_recipe_comes_back() -> None:
    composed = Composed(14, DIGEST, (b"head", Run("model", "a/b", 0, 8), Run("model", "c", 2, 2), b"xy"))
    plain = values.decode(values.encode(to_plain(composed)))
    assert plain.tag == TAG
    assert from_payload(plain.payload) == composed
    assert "head" not in repr(composed)


@pytest.mark.parametrize(
    "payload",
    [
        None,
        5,
        (1, DIGEST),
        (1, DIGEST, (b"ab",)),
        (1, DIGEST[1:], (b"a",)),
        (1, DIGEST, 7),
        (True, DIGEST, (b"a",)),
        (1, DIGEST, ("a",)),
        (1, DIGEST, (("model", "w", 0),)),
        (1, DIGEST, (("model", 3, 0, 1),)),
        (1, DIGEST, (("model", "w", 0.0, 1),)),
        (1, DIGEST, (("model", "w", 3, 2), b"ab")),
        (1, DIGEST, (("model", "w", -1, 0),)),
    ],
)
def test_f10_what_is_no_recipe_is_corrupt(payload: Any) -> None:
    with pytest.raises(Corrupt, match="a file"):
        from_payload(payload)


def stored(repo: Repository, parts: tuple[bytes | Run, ...], content: bytes, tensor: bytes) -> StoredFile:
    """A file in a commit with a tensor ``model::w``."""
    composed = Composed(len(content), sha256(content).digest(), parts)
    items = [
        ItemInput("files", {"": ContainerInput(0, "dict"), "f": ValueInput(0, to_plain(composed))}),
        ItemInput(
            "model", {"": ContainerInput(0, "dict"), "w": TensorInput(0, "uint8", (len(tensor),), memoryview(tensor))}
        ),
    ]
    commit = repo.save(SaveRequest(items, "main", repo.refs.read(branch_name("main")))).commit
    return files_in(repo, repo.commit(commit))["f"]


@pytest.mark.parametrize("window_bytes", [1, 7, 1000, 10_000_000])
def test_windows_of_any_size(tmp_path: Path, window_bytes: int) -> None:
    size_bytes = 5_000_000 if window_bytes >= 1000 else 300
    tensor = os.urandom(size_bytes)
    parts = (
        b"",
        Run("model", "w", 3, 3),
        b"head",
        Run("model", "w", 5, size_bytes),
        b"x" * 20,
        Run("model", "w", 0, 9),
    )
    content = b"head" + tensor[5:] + b"x" * 20 + tensor[:9]
    with Repository.init(tmp_path / "store") as repo:
        file = stored(repo, parts, content, tensor)
        windows = list(file.windows(window_bytes))
        assert b"".join(windows) == content
        assert max(map(len, windows)) <= window_bytes
        assert (file.size_bytes, file.sha256) == (len(content), sha256(content).hexdigest())
        file.copy_to(tmp_path / "deep" / "f")
        assert (tmp_path / "deep" / "f").read_bytes() == content


def test_what_is_put_together_wrongly_is_never_taken_for_the_file(tmp_path: Path) -> None:
    with Repository.init(tmp_path / "store") as repo:
        wrong = stored(repo, (Run("model", "w", 0, 300),), os.urandom(300), os.urandom(300))
        with pytest.raises(Corrupt, match="f does not have the SHA-256"):
            wrong.read()
        with pytest.raises(Corrupt, match="SHA-256"):
            wrong.copy_to(tmp_path / "f")
        assert not (tmp_path / "f").exists()
        beyond = stored(repo, (Run("model", "w", 0, 301),), os.urandom(301), os.urandom(300))
        with pytest.raises(Corrupt, match="bytes 0 to 301 of model::w, which are not there"):
            beyond.read()


def test_a_recipe_that_is_cut_into_chunks_is_one_too(tmp_path: Path) -> None:
    head = os.urandom(50_000)
    with Repository.init(tmp_path / "store") as repo:
        file = stored(repo, (head, Run("model", "w", 0, 300)), head + bytes(300), bytes(300))
        assert file.composed is not None
        assert file.read() == head + bytes(300)


def test_files_in_one_value_and_beside_others(tmp_path: Path) -> None:
    tensor = os.urandom(300)
    composed = Composed(300, sha256(tensor).digest(), (Run("model", "w", 0, 300),))
    value = {"a": b"1", "deep": {"f": to_plain(composed), "other": Tagged("date", "2026-01-01")}}
    items = [
        ItemInput("files", {"": ValueInput(0, value)}),
        ItemInput("model", {"": ContainerInput(0, "dict"), "w": TensorInput(0, "uint8", (300,), memoryview(tensor))}),
    ]
    with Repository.init(tmp_path / "store") as repo:
        commit = repo.save(SaveRequest(items, "main")).commit
        found = files_in(repo, repo.commit(commit))
        assert {path: file.read() for path, file in found.items()} == {"a": b"1", "deep/f": tensor}
        repo.put_files({"b": b"2"})
        again = repo.at("main").files
        assert {path: file.read() for path, file in again.items()} == {"a": b"1", "deep/f": tensor, "b": b"2"}


def test_trees_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Repository.init(tmp_path / "store") as repo:
        repo.save_arrays({"model": {"w": np.zeros(300, np.uint8)}})
        parts = Parts(repo, repo.commit(repo.resolve("main")))
        composed = Composed(3, DIGEST, (Run("model", "w", 0, 3),))
        parts.require(composed)
        assert parts._trees.keys() == {"model"}
        monkeypatch.delattr(ObjectReader, "tree_node")
        out = memoryview(bytearray(b"old"))
        repo.read_copies(copy for window in parts.windows(composed, 10) for copy in parts.copies(window, out))
        assert out == bytes(3)
