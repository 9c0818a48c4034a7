"""Ctrl-C while a large file is imported or exported: it ends then, not once that file is through."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from moonclip.exchange import filesout
from moonclip.exchange.importing import Wanted, import_files
from moonclip.exchange.ranges import Ranges
from moonclip.exchange.sources import Source, given_in
from store.disk.calls import Disk
from store.disk.files import Files
from store.ids import Buffer
from store.limits import MIB
from store.repository import Repository

_LARGE_BYTES = 512 * MIB
"""Of a file with a hole, which takes no room, and still a second to hash or to write."""


class Interrupt:
    """Interrupts the main thread once, and waits until it knows."""

    def __init__(self) -> None:
        self._handled = threading.Event()

    def send(self) -> None:
        while not self._handled.wait(timeout=0.1):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    @contextmanager
    def expected(self) -> Iterator[None]:
        def interrupted(_number: int, _frame: object) -> None:
            if not self._handled.is_set():
                self._handled.set()
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, interrupted)
        try:
            with pytest.raises(KeyboardInterrupt):
                yield
        finally:
            signal.signal(signal.SIGINT, before)


class Interrupting(Disk):
    """Sends an interrupt with the first large write, and counts what is written."""

    def __init__(self, interrupt: Interrupt) -> None:
        self._interrupt = interrupt
        self.written_bytes = 0

    def write(self, fd: int, data: Buffer) -> int:
        count = super().write(fd, data)
        self.written_bytes += count
        if count >= MIB:
            self._interrupt.send()
        return count


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    save_file({"w": torch.ones(3000)}, directory / "model.safetensors")
    (directory / "large.dat").touch()
    os.truncate(directory / "large.dat", _LARGE_BYTES)
    return directory


def test_an_import_ends_in_the_midst_of_a_file(model: Path, tmp_path: Path) -> None:
    interrupt, read_bytes = Interrupt(), 0

    def told(size_bytes: int) -> None:
        nonlocal read_bytes
        read_bytes += size_bytes
        interrupt.send()

    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        with interrupt.expected():
            given_in([Source(model)], Ranges(Files()), repo.threads, told)
        assert read_bytes < _LARGE_BYTES // 2


def test_an_export_ends_in_the_midst_of_a_file(model: Path, tmp_path: Path) -> None:
    interrupt, out = Interrupt(), tmp_path / "out"
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        given = given_in([Source(model)], Ranges(Files()), repo.threads)
        commit = import_files(repo, given.items, Wanted([Source(model)], "main"), given.files).commit
    disk = Interrupting(interrupt)
    with Repository.open(tmp_path / "store", files=Files(disk), thread_count=2) as repo:
        with interrupt.expected():
            filesout.write(out, repo, repo.commit(commit))
        assert disk.written_bytes < _LARGE_BYTES // 2
        assert not out.exists()
        filesout.write(out, repo, repo.commit(commit), names=["model.safetensors"])
    assert (out / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
