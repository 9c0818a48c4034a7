"""One flipped byte, anywhere in a store's packs, index and refs: detected or harmless, never a wrong tensor."""

import logging
import random
import re
import shutil
from pathlib import Path

import pytest

from store.errors import MoonclipError
from store.fsck import Report, fsck
from store.ids import CommitId
from store.naming.refnames import branch_name
from store.repository import Repository
from tests.arrays import drifted, noise, read, save
from tests.mending import States, fill

COPIES = {"packs": 5, "index": 3, "refs": 2}
"""How often each is hit, of ten times: packs are what is large."""


@pytest.fixture
def states(tmp_path: Path) -> States:
    """A store with deltas, branches, tags, pins and many reflog lines."""
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        states = fill(repo)
        first = next(iter(states))
        repo.set_ref(branch_name("exp/lr3"), None, first, "branch", "made at best")
        state = {**states[first], "head/w": drifted(states[first]["head/w"], "exp"), "more": noise("more", 90)}
        states[save(repo, state, branch="exp/lr3", step=7).commit] = state
        repo.pin(first, "good")
    (tmp_path / "store" / "ballast").unlink()
    return states


def files_of(root: Path, sort: str) -> list[Path]:
    found = {
        "packs": root.glob("packs/*.pack"),
        "index": root.glob("index/*/data.mdb"),
        "refs": (path for path in (*root.glob("refs/**/*"), *root.glob("logs/**/*"), root / "HEAD", root / "pins")),
    }
    return sorted(path for path in found[sort] if path.is_file())


def flip_one(root: Path, chance: random.Random) -> tuple[Path, bytes]:
    """Flip a bit; returns the file, and what it held."""
    sort = chance.choices(list(COPIES), list(COPIES.values()))[0]
    paths = files_of(root, sort)
    path = chance.choices(paths, [each.stat().st_size for each in paths])[0]
    sound = path.read_bytes()
    data = bytearray(sound)
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return path, sound


def names_what_was_hit(report: Report, hit: Path, root: Path) -> bool:
    """Whether a finding or note says pack, object, commit and tensor, or file."""
    told = [*report.findings, *report.notes]
    if hit.suffix == ".pack":
        return any(hit.stem in each.message for each in told)
    if hit.suffix == ".mdb":
        return any(each.kind == "index" for each in report.findings)
    name = hit.name.replace("~", "/")
    return any(
        name in text or str(hit) in text or str(hit.relative_to(root)) in text
        for each in told
        for text in (each.message, *each.affects)
    )


def wrongly_read(repo: Repository, states: States) -> list[CommitId]:
    """Commits that read otherwise than they were saved; those that cannot be read say so."""
    wrong = []
    for commit, state in states.items():
        try:
            if read(repo, commit) != state:
                wrong.append(commit)
        except MoonclipError as error:
            assert re.search("[0-9a-f]{64}", str(error)), error  # it names the object
    return wrong


def require_detected_or_harmless(root: Path, hit: Path, states: States) -> bool:
    """Whether it was detected."""
    with Repository.open(root, thread_count=1, read_only=True) as repo:
        report = fsck(repo, full=True)
        if report.findings or report.notes:
            assert names_what_was_hit(report, hit, root), (hit, report.findings, report.notes)
            assert wrongly_read(repo, states) == []
            return True
        assert {commit: read(repo, commit) for commit in states} == states
        return False


def test_bar6_a_flipped_byte_is_detected_or_harmless(
    tmp_path: Path, states: States, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    root, chance = tmp_path / "store", random.Random(6)
    detected_count = 0
    for _ in range(60):
        hit, sound = flip_one(root, chance)
        detected_count += require_detected_or_harmless(root, hit, states)
        hit.write_bytes(sound)
    assert detected_count > 30


@pytest.mark.slow
def test_bar6_whoever_may_write_reads_nothing_wrong_either(
    tmp_path: Path, states: States, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    root, chance = tmp_path / "hit", random.Random(66)
    detected_count = 0
    for _ in range(500):
        shutil.copytree(tmp_path / "store", root)
        hit, _ = flip_one(root, chance)
        detected_count += require_detected_or_harmless(root, hit, states)
        with Repository.open(root, thread_count=1) as repo:  # an index that is damaged is rebuilt
            assert wrongly_read(repo, states) == []
        shutil.rmtree(root)
    assert detected_count > 250
