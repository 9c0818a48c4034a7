"""The power fails after any of the calls that change the disk; then the store is opened again."""

import shutil
from pathlib import Path
from random import Random

import pytest

from store.disk.files import Files
from store.reading.packs import PackWriter
from store.repository import Repository
from tools.crash.cuts import RETURNED, Recorded, digest
from tools.crash.operations import ALIKE, OPERATIONS, require_makable
from tools.crash.power import Loss, power_cut
from tools.crash.recording import RecordingDisk

RECORDED = [name for name in OPERATIONS if name not in {"reindex", *ALIKE}]  # that one changes nothing but the index


@pytest.fixture(params=RECORDED)
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Recorded:
    return Recorded(tmp_path, OPERATIONS[request.param])


def test_c3_b7_whenever_the_power_fails_nothing_is_lost(recorded: Recorded) -> None:
    cuts = 0
    for cut in recorded.cuts(loss_seeds=1):
        recorded.require_recovery(cut, cut.indexes[cuts % len(cut.indexes)])
        cuts += 1
    assert cuts > 3


@pytest.mark.usefixtures("small_blocks")
def test_c3_whenever_the_power_fails_while_a_thread_writes(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, OPERATIONS["save"])
    for cut in recorded.cuts(loss_seeds=1):
        recorded.require_recovery(cut, cut.indexes[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["save", "save on a new branch", "tag"])
def test_c3_b7_whenever_the_power_fails_with_every_kind_of_index(tmp_path: Path, name: str) -> None:
    recorded = Recorded(tmp_path, OPERATIONS[name])
    for variant in range(4):
        for cut in recorded.cuts(loss_seeds=4):
            if variant < len(cut.indexes):
                recorded.require_recovery(cut, cut.indexes[variant])


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
            recorded.require_recovery(cut, cut.indexes[0])
        except Exception:
            lost += 1
    assert lost > 0
