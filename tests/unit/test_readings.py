"""Files that are read once, ahead or when somebody asks: what fails ahead is told to whoever asks."""

import threading
from pathlib import Path

import pytest

from moonclip.exchange.listing import Found
from moonclip.exchange.readings import KeptFile, Reader, reading_ahead
from moonclip.exchange.recipes import Read, Told
from store.beside.composed import Composed

READ = Read(Composed(0, bytes(32), ()), ())


def kept(reader: Reader, name: str = "f") -> KeptFile:
    return KeptFile(Found(name, Path(name), 0, (0, 0, 0, 0)), reader)


def test_a_file_is_read_once_whoever_asks() -> None:
    told: list[threading.Thread] = []
    begun = threading.Event()

    def reader(_: Told) -> Read:
        told.append(threading.current_thread())
        begun.set()
        return READ

    files = [kept(reader, str(number)) for number in range(6)]
    with reading_ahead(files, 2):
        assert begun.wait(60)
        for file in files:
            assert file.read() is READ
    assert len(told) == len(files)
    assert threading.main_thread() not in told[:1]


@pytest.mark.parametrize("kind", [OSError, MemoryError, ValueError])
def test_what_fails_ahead_fails_for_whoever_asks(kind: type[Exception]) -> None:
    """Nobody sees what a thread raises: it would only be printed."""
    failed = threading.Event()

    def reader(_: Told) -> Read:
        failed.set()
        raise kind("no")

    file = kept(reader)
    with reading_ahead([file], 2):
        assert failed.wait(60)
        with pytest.raises(kind, match="no"):
            file.read()


def test_where_no_thread_can_be_started_who_asks_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    file = kept(lambda _: READ)
    with reading_ahead([file], 2):
        assert not file.is_read
        assert file.read() is READ
