"""What keeps things."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.errors import Corrupt
from store.gc import collect
from store.ids import CommitId
from store.limits import REFLOG_EXPIRY_NS
from store.naming.refnames import branch_name, tag_name
from store.repository import Repository
from store.saving.leases import acquire_lease
from store.upkeep.roots import live_commits, read_roots
from tests.pruning import age_reflogs
from tests.stores import commit


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        yield repo


def live(repo: Repository) -> set[CommitId]:
    return {row.id for row in live_commits(repo.lookup, read_roots(repo).commits)}


def test_roots_by_kind(repo: Repository) -> None:
    first, second, third = (commit(repo, step=step) for step in range(3))
    repo.set_ref(tag_name("best"), None, first, "tag")
    repo.pin(second, "why")
    with acquire_lease(repo.layout.root, repo.files) as lease:
        lease.add_commit(first)
        roots = read_roots(repo)
    assert roots.leased == {first}
    assert roots.packs == frozenset()
    assert roots.refs == {"branches/main": third, "tags/best": first}
    assert roots.pins == {second}
    assert roots.logged == {
        "HEAD": {first, second, third},
        "branches/main": {first, second, third},
        "tags/best": {first},
    }
    assert roots.commits == {first, second, third}


def test_what_a_living_lease_names_is_held_with_its_packs(repo: Repository) -> None:
    held = commit(repo)
    pack = repo.index.packs()[0]
    with acquire_lease(repo.layout.root, repo.files) as lease:
        lease.add_pack(pack)
        assert read_roots(repo).packs == {pack}
    assert read_roots(repo).packs == frozenset()
    assert held in read_roots(repo).commits


def test_a_branch_that_has_lost_its_file_is_damage_not_garbage(repo: Repository) -> None:
    """By what its log says it is there, and has been for longer than lines of a log keep anything."""
    commit(repo, step=0)
    commit(repo, "exp", step=0)
    commit(repo, "exp", step=1)
    age_reflogs(repo, REFLOG_EXPIRY_NS + 1)
    (repo.layout.root / "refs" / "branches" / "exp").unlink()
    with pytest.raises(Corrupt, match="branch 'exp' has lost its file"):
        read_roots(repo)
    with pytest.raises(Corrupt, match="branch 'exp' has lost its file"):
        collect(repo)


def test_a_deleted_branch_is_held_until_its_reflog_expires(repo: Repository) -> None:
    base = commit(repo, step=0)
    repo.set_ref(branch_name("exp"), None, base, "branch")
    lost = commit(repo, "exp", step=1)
    repo.delete_ref(branch_name("exp"))
    assert lost in live(repo)
    age_reflogs(repo, REFLOG_EXPIRY_NS - 60 * 10**9)
    assert lost in live(repo)
    age_reflogs(repo, 120 * 10**9)
    assert live(repo) == {base}
    assert lost in repo.refs.roots()  # it can still be found by its reflog


def test_all_ancestors_of_roots_live(repo: Repository) -> None:
    commits = {commit(repo, step=step) for step in range(4)}
    age_reflogs(repo, 2 * REFLOG_EXPIRY_NS)
    assert live(repo) == commits
