"""The power fails while a store is mended."""

import shutil
from pathlib import Path
from random import Random

import pytest

from store.disk.files import Files
from store.fsck import StoreSource, repair
from store.repository import Repository
from tests.mending import copied, fill, harm, require_no_less, require_sound
from tools.crash.cuts import digest
from tools.crash.power import Loss, power_cut
from tools.crash.recording import RecordingDisk


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_whenever_the_power_fails_no_less_is_there_and_another_repair_completes(tmp_path: Path, stride: int) -> None:
    root = tmp_path / "disk" / "store"
    root.parent.mkdir()
    with Repository.init(root, thread_count=1) as repo:
        states = fill(repo)
        with copied(root, tmp_path / "copy") as copy:
            harm(repo, states)
            repo.close()
            (root / "ballast").unlink()
            shutil.copytree(root / "index", tmp_path / "index")
            source = StoreSource(copy)
            recording = RecordingDisk(root.parent, ignore=("store/index",))
            assert repair(root, source=source, files=Files(recording)).after.clean  # type: ignore[union-attr]
            packs = {path.name for path in (tmp_path / "copy" / "packs").glob("*.pack")}
            seen: set[bytes] = set()
            target = tmp_path / "cut"
            for length in range(0, len(recording.log) + 1, stride):
                for number, loss in enumerate(Loss):
                    power_cut(recording.start, recording.log[:length], target, loss, Random(100 * length + number))
                    key = digest(target)
                    if key not in seen:
                        seen.add(key)
                        if packs <= {path.name for path in (target / "store" / "packs").iterdir()}:
                            # The index of before; another one is durable before the first pack goes.
                            shutil.copytree(tmp_path / "index", target / "store" / "index", dirs_exist_ok=True)
                        require_no_less(target / "store", states)
                        assert repair(target / "store", source=source).after.clean  # type: ignore[union-attr]
                        require_sound(target / "store", states)
                    shutil.rmtree(target)
            assert len(seen) > 5
