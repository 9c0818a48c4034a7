"""Every durable operation, cut off after each of its system calls, in each way a disk may lose what was not synced."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from store.disk.files import Files
from store.reading.packs import PackStore, PackWriter
from tests.packing import chunk, verified
from tools.crash.power import Loss, power_cut
from tools.crash.recording import Mark, RecordingDisk

OLD, NEW = b"old content\n", b"new content " * 200
RETURNED = "returned"

Change = Callable[[Files, Path], None]


def cuts(change: Change, tmp_path: Path) -> Iterator[tuple[Path, bool]]:
    """What a power cut may leave of ``change``, and whether the change had returned by then."""
    root = tmp_path / "store"
    root.mkdir()
    (root / "file").write_bytes(OLD)
    recording = RecordingDisk(root)
    change(Files(recording), root)
    recording.mark(RETURNED)
    assert recording.log
    for length in range(len(recording.log) + 1):
        log = recording.log[:length]
        for number, loss in enumerate([*Loss, Loss.SOME, Loss.SOME, Loss.SOME]):
            target = tmp_path / f"{length}-{number}"
            power_cut(recording.start, log, target, loss, Random(1000 * length + number))
            yield target, Mark(RETURNED) in log


def test_a_replaced_file_is_old_or_new(tmp_path: Path) -> None:
    seen = set()
    for left, has_returned in cuts(lambda files, root: files.write_atomic(root / "file", NEW), tmp_path):
        content = (left / "file").read_bytes()
        assert content in ((NEW,) if has_returned else (OLD, NEW))
        seen.add(content)
    assert seen == {OLD, NEW}


def test_a_new_file_is_whole_or_not_there(tmp_path: Path) -> None:
    def change(files: Files, root: Path) -> None:
        files.make_directory(root / "refs" / "tags")
        files.write_atomic(root / "refs" / "tags" / "best", NEW)

    for left, has_returned in cuts(change, tmp_path):
        path = left / "refs" / "tags" / "best"
        if has_returned or path.exists():
            assert path.read_bytes() == NEW


def test_an_appended_file_keeps_what_it_had(tmp_path: Path) -> None:
    def change(files: Files, root: Path) -> None:
        files.append_durable(root / "file", NEW)
        files.append_durable(root / "log", NEW)

    for left, has_returned in cuts(change, tmp_path):
        assert (left / "file").read_bytes().startswith(OLD)
        if has_returned:
            assert (left / "file").read_bytes() == OLD + NEW
            assert (left / "log").read_bytes() == NEW


def test_a_removed_file_stays_removed(tmp_path: Path) -> None:
    for left, has_returned in cuts(lambda files, root: files.remove(root / "file"), tmp_path):
        assert not (has_returned and (left / "file").exists())


def test_c3_whatever_has_a_packs_name_is_a_whole_pack(tmp_path: Path) -> None:
    sealed = [chunk(bytes([number]) * 5000) for number in range(3)]

    def change(files: Files, root: Path) -> None:
        files.make_directory(root / "packs")
        writer = PackWriter(files, root / "packs", "tmp-1")
        for each in sealed:
            writer.append(each)
        writer.finish()
        writer.publish()

    for left, has_returned in cuts(change, tmp_path):
        packs = PackStore(Files(), left / "packs")
        ids = packs.pack_ids() if (left / "packs").exists() else []
        assert len(ids) == 1 or not has_returned
        for pack_id in ids:
            assert len(verified(packs, pack_id).entries) == 3


@pytest.mark.parametrize("forgotten", ["fsync", "sync_directory"])
def test_the_model_notices_a_forgotten_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: str) -> None:
    monkeypatch.setattr(RecordingDisk, forgotten, lambda *_: None)
    lost = [
        left
        for left, has_returned in cuts(lambda files, root: files.write_atomic(root / "file", NEW), tmp_path)
        if (left / "file").read_bytes() not in ((NEW,) if has_returned else (OLD, NEW))
    ]
    assert lost
