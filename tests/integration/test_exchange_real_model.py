"""A real model and an awkward directory, through all that a store does with its content: no byte is lost."""

from pathlib import Path

import pytest
import torch

from moonclip import CheckpointManager, NotFound
from moonclip.exchange.exporting import Wanted, export
from store.fsck import fsck
from store.remotes.configured import RemoteConfig, add_remote
from store.remotes.fetching.clone import clone
from tests.modeldirs import MINILM, awkward, digests


def origin(root: Path) -> RemoteConfig:
    (root / "remote").mkdir(exist_ok=True)
    return RemoteConfig("origin", str(root / "remote"))


def exported(mgr: CheckpointManager, rev: str, directory: Path) -> dict[str, str]:
    mgr.export(rev, directory)
    return digests(directory)


@pytest.mark.slow
def test_every_file_of_two_directories_survives_gc_both_repacks_push_and_clone(tmp_path: Path) -> None:
    odd = awkward(tmp_path / "odd")
    expected = {"real": digests(MINILM), "odd": digests(odd)}

    def require_same(mgr: CheckpointManager, when: str) -> None:
        for rev, files in expected.items():
            assert exported(mgr, rev, tmp_path / when / rev) == files, (when, rev)

    with CheckpointManager(tmp_path / "store", async_save=False) as mgr:
        mgr.import_model(MINILM, branch="real")
        mgr.import_model(odd, branch="odd")
        tuned = torch.randn(100_000)
        mgr.save(step=1, model={"w": tuned})
        require_same(mgr, "imported")
        mgr.delete_branch("odd")
        mgr.import_model(odd, branch="odd", base="real")
        mgr.gc()
        require_same(mgr, "after-gc")
        mgr.repack("size")
        require_same(mgr, "small")
        mgr.repack("restore")
        require_same(mgr, "fast")
        mgr.repack()
        mgr.gc()
        require_same(mgr, "consolidated")
        assert fsck(mgr._repo, full=True).findings == []
        add_remote(mgr._repo.layout, mgr._repo.files, origin(tmp_path))
        mgr.push("origin", all=True)
    with clone(origin(tmp_path), tmp_path / "clone") as repo:
        for branch in expected.keys() - {"main"}:
            export(repo, repo.commit(repo.resolve(f"origin/{branch}")), Wanted(tmp_path / "cloned" / branch))
            assert digests(tmp_path / "cloned" / branch) == expected[branch]


def test_what_a_clone_lacks_is_named_or_comes_when_it_is_read(tmp_path: Path) -> None:
    odd = awkward(tmp_path / "odd")
    with CheckpointManager(tmp_path / "store", async_save=False) as mgr:
        mgr.import_model(odd)
        add_remote(mgr._repo.layout, mgr._repo.files, origin(tmp_path))
        mgr.push("origin", all=True)
    with clone(origin(tmp_path), tmp_path / "part", items=["files", "blobs"]) as repo:
        commit = repo.commit(repo.resolve("main"))
        with pytest.raises(NotFound, match=r"model|optimizer|adapter"):
            export(repo, commit, Wanted(tmp_path / "out", "files"))
        assert not (tmp_path / "out").exists()
        names = ["*.json", "*.gguf", "legacy.bin"]
        written = export(repo, commit, Wanted(tmp_path / "out", "files", files=names))
        assert set(digests(tmp_path / "out").items()) < set(digests(odd).items())
        assert len(written.files) == 6
    with clone(origin(tmp_path), tmp_path / "lazy", lazy=True) as repo:
        export(repo, repo.commit(repo.resolve("main")), Wanted(tmp_path / "all", "files"))
        assert digests(tmp_path / "all") == digests(odd)
