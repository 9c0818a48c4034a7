"""The power fails after any of the calls that change the disk; then the store is opened again."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest

from store.files import Files
from store.packs import PackWriter
from store.repository import Repository
from tests.crashing import (
    OPERATIONS,
    History,
    Operation,
    garble_index,
    prepare,
    put_index,
    remove_index,
    require_makable,
    require_recovered,
)
from tools.crash.power import Loss, power_cut
from tools.crash.recording import Event, Mark, RecordingDisk

INDEXED, RETURNED = Mark("indexed"), Mark("returned")
RECORDED = [name for name in OPERATIONS if name != "reindex"]  # that one changes nothing but the index


class MarkedIndex:
    """An index whose writes leave a mark in the recording: LMDB's own writes are not recorded."""

    def __init__(self, index: Any, disk: RecordingDisk) -> None:
        self._index = index
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def write(self, body: Callable[[Any], Any]) -> Any:
        result = self._index.write(body)
        self._disk.mark(INDEXED.label)
        return result


@dataclass(frozen=True)
class Cut:
    """What a power cut left, without an index, and the indexes that there may be beside it."""

    root: Path
    indexes: Sequence[Callable[[Path], None]]
    has_returned: bool


class Recorded:
    """An operation, recorded on a store with a past."""

    def __init__(self, directory: Path, operation: Operation) -> None:
        self.operation = operation
        self.before = prepare(directory / "store")
        self._directory = directory
        root = directory / "store"
        self.recording = RecordingDisk(root)
        with Repository.open(root, files=Files(self.recording), thread_count=1) as repo:
            self.moved_from = repo.refs.read(operation.moves) if operation.moves else None
            shutil.copytree(root / "index", directory / "old")
            del self.recording.log[:]
            repo.index = MarkedIndex(repo.index, self.recording)
            self.after: History = {**self.before, **operation.run(repo)}
            self.recording.mark(RETURNED.label)
        shutil.copytree(root / "index", directory / "new")
        self.log: list[Event] = self.recording.log

    def cuts(self, loss_seeds: int) -> Iterator[Cut]:
        """Each state that a power cut may leave, once."""
        seen: set[bytes] = set()
        for length in range(len(self.log) + 1):
            log = self.log[:length]
            for number, loss in enumerate([*Loss, *[Loss.SOME] * loss_seeds]):
                target = self._directory / "cut"
                power_cut(self.recording.start, log, target, loss, Random(1000 * length + number))
                key = digest(target) + bytes([INDEXED in log, RETURNED in log])
                if key not in seen:
                    seen.add(key)
                    yield Cut(target, self.indexes(log), RETURNED in log)
                shutil.rmtree(target)

    def indexes(self, log: Sequence[Event]) -> Sequence[Callable[[Path], None]]:
        """LMDB makes its transactions durable by itself: it is what it was, or what it became."""
        old, new = put_index(self._directory / "old"), put_index(self._directory / "new")
        return (new, old, remove_index, garbled(new)) if INDEXED in log else (old, remove_index, garbled(old))


def garbled(put: Callable[[Path], None]) -> Callable[[Path], None]:
    def put_garbled(root: Path) -> None:
        put(root)
        garble_index(root)

    return put_garbled


def digest(root: Path) -> bytes:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    directories = sorted(str(path) for path in root.rglob("*") if path.is_dir())
    parts = [f"{path}".encode() + sha256(path.read_bytes()).digest() for path in files]
    return sha256(b"\n".join(parts) + repr(directories).encode()).digest()


def require_recovery(recorded: Recorded, cut: Cut, put: Callable[[Path], None]) -> None:
    put(cut.root)
    history = recorded.after if cut.has_returned else recorded.before
    require_recovered(cut.root, recorded.operation, history, moved_from=recorded.moved_from)


@pytest.fixture(params=RECORDED)
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Recorded:
    return Recorded(tmp_path, OPERATIONS[request.param])


def test_c3_b7_whenever_the_power_fails_nothing_is_lost(recorded: Recorded) -> None:
    cuts = 0
    for cut in recorded.cuts(loss_seeds=1):
        require_recovery(recorded, cut, cut.indexes[cuts % len(cut.indexes)])
        cuts += 1
    assert cuts > 3


@pytest.mark.usefixtures("small_blocks")
def test_c3_whenever_the_power_fails_while_a_thread_writes(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, OPERATIONS["save"])
    for cut in recorded.cuts(loss_seeds=1):
        require_recovery(recorded, cut, cut.indexes[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["save", "save on a new branch", "tag"])
def test_c3_b7_whenever_the_power_fails_with_every_kind_of_index(tmp_path: Path, name: str) -> None:
    recorded = Recorded(tmp_path, OPERATIONS[name])
    for variant in range(4):
        for cut in recorded.cuts(loss_seeds=4):
            if variant < len(cut.indexes):
                require_recovery(recorded, cut, cut.indexes[variant])


def test_c3_making_a_store(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    recording = RecordingDisk(root, ignore=("store/index",))
    Repository.init(root / "store", files=Files(recording), thread_count=1).close()
    recording.mark(RETURNED.label)
    seen: set[bytes] = set()
    for length in range(len(recording.log) + 1):
        for number, loss in enumerate(Loss):
            target = tmp_path / "cut"
            power_cut(recording.start, recording.log[:length], target, loss, Random(1000 * length + number))
            if (key := digest(target)) not in seen:
                seen.add(key)
                require_makable(target / "store", has_returned=RETURNED in recording.log[:length])
            shutil.rmtree(target)
    assert len(seen) > 10


def test_the_model_notices_a_ref_that_moves_before_its_packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests would fail if packs were named without being made durable first."""

    def hasty(writer: PackWriter) -> None:
        target = writer._directory / f"{writer._table.id.hex()}.pack"  # type: ignore[union-attr]
        writer._temporary.rename(target)
        writer._is_published = True

    with monkeypatch.context() as patch:
        patch.setattr(PackWriter, "publish", hasty)
        recorded = Recorded(tmp_path, OPERATIONS["save"])
    lost = 0
    for cut in recorded.cuts(loss_seeds=0):
        try:
            require_recovery(recorded, cut, cut.indexes[0])
        except Exception:
            lost += 1
    assert lost > 0
