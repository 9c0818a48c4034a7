"""What crash tests share."""

import threading
from collections.abc import Iterator

import pytest

from store.disk import blocks
from store.disk.calls import Disk

_SECTOR_BYTES = 512


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files of a few KiB take several blocks, which a thread of its own writes; none is left in the end."""
    monkeypatch.setattr(blocks, "WRITE_BLOCK_BYTES", _SECTOR_BYTES)
    monkeypatch.setattr(blocks, "PAGE_BYTES", _SECTOR_BYTES)
    writers: set[str] = set()
    write = Disk.write

    def watched(*arguments: object) -> int:
        writers.add(threading.current_thread().name)
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Disk, "write", watched)
    yield
    assert any(name.startswith("moonclip-write") for name in writers)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("moonclip-write")]
