"""Probing whether exactly one of several writers wins. Real servers are probed in tests/conformance."""

from collections.abc import Callable
from pathlib import Path

import pytest

from store.errors import Conflict, RemoteUnavailable, RemoteUnsupported
from store.remotes.storages.conditional import is_atomic
from store.remotes.storages.directory import DirectoryStorage

PutIf = Callable[[DirectoryStorage, str, bytes, str | None], str]


class Odd(DirectoryStorage):
    """A directory whose conditional write does something else."""

    def __init__(self, path: Path, put_if: PutIf) -> None:
        super().__init__(path)
        self._put_if = put_if

    def put_if(self, key: str, data: bytes, expected: str | None) -> str:
        return self._put_if(self, key, data, expected)


def right(storage: DirectoryStorage, key: str, data: bytes, expected: str | None) -> str:
    return DirectoryStorage.put_if(storage, key, data, expected)


def ignores_conditions(storage: DirectoryStorage, key: str, data: bytes, expected: str | None) -> str:
    return storage.put(key, data)


def ignores_versions(storage: DirectoryStorage, key: str, data: bytes, expected: str | None) -> str:
    return right(storage, key, data, None) if expected is None else storage.put(key, data)


def lets_none_win(storage: DirectoryStorage, key: str, data: bytes, expected: str | None) -> str:
    raise Conflict("no")


def alters(storage: DirectoryStorage, key: str, data: bytes, expected: str | None) -> str:
    return right(storage, key, b"5;chunk-signature=0" + data, expected)


def cannot_replace(storage: DirectoryStorage, key: str, data: bytes, expected: str | None) -> str:
    if expected is not None:
        raise RemoteUnsupported("501")
    return right(storage, key, data, None)


@pytest.mark.parametrize("put_if", [ignores_conditions, ignores_versions, lets_none_win, alters, cannot_replace])
def test_what_is_not_atomic_is_found_out(tmp_path: Path, put_if: PutIf) -> None:
    storage = Odd(tmp_path, put_if)
    assert not is_atomic(storage)
    assert not list(storage.list(""))


def test_what_is_atomic_is_found_out(tmp_path: Path) -> None:
    storage = Odd(tmp_path, right)
    assert is_atomic(storage)
    assert not list(storage.list(""))


def test_a_failure_is_no_answer(tmp_path: Path) -> None:
    def fails(storage: DirectoryStorage, key: str, data: bytes, expected: str | None) -> str:
        raise RemoteUnavailable("down")

    with pytest.raises(RemoteUnavailable, match="down"):
        is_atomic(Odd(tmp_path, fails))
