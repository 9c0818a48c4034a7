"""What a push has to send, and what it looks at to find out."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from random import Random
from shutil import copytree
from uuid import uuid4

import pytest

from store.errors import Corrupt
from store.format.pack import Sealed
from store.ids import CommitId, ObjectId, TreeId
from store.index.depths import resolve_depths
from store.naming.refnames import RefName, branch_name
from store.reading.packs import pack_path
from store.remotes.pushing.outgoing import Outgoing, There, again, needed_by, outgoing
from store.remotes.pushing.push import push
from store.remotes.remote import Remote, open_remote
from store.repack import repack
from store.repository import Repository
from store.saving.saver import SaveRequest
from tests.arrays import ITEM, drifted, noise, save
from tests.packing import write
from tests.remotes.memory_storage import MemoryStorage
from tests.remotes.remote_state import read_remote, require_whole
from tests.stores import commit, history, item, state, tensor


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store") as repo:
        yield repo


def to_send(repo: Repository, tip: CommitId, *there: CommitId) -> Outgoing:
    return outgoing(repo, [tip], There(tips=there))


def chunks_of(repo: Repository, commit: CommitId, item_name: str) -> set[ObjectId]:
    node = repo.reader.tree_node(repo.commit(commit).items[item_name])
    return {chunk for _, entry in node.entries for chunk in entry.chunks}


def test_without_anything_there_all_is_sent(repo: Repository) -> None:
    commits = [commit(repo, step=step) for step in (0, 100)]
    found = to_send(repo, commits[-1])
    assert found.commits == commits
    assert found.objects.keys() == set(needed_by(repo, commits, {}))


def test_only_what_is_new_is_sent(repo: Repository) -> None:
    first, second = commit(repo, step=0), commit(repo, step=100)
    found = to_send(repo, second, first)
    assert found.commits == [second]
    assert found.objects.keys() == set(needed_by(repo, [second], {})).difference(needed_by(repo, [first], {}))
    assert chunks_of(repo, first, "model") & chunks_of(repo, second, "model") <= found.relied


def test_nothing_is_sent_of_what_is_there(repo: Repository) -> None:
    first, second = commit(repo, step=0), commit(repo, step=100)
    assert to_send(repo, first, second).objects == {}


def test_tips_that_are_not_known_here_are_passed_over(repo: Repository) -> None:
    tip = commit(repo, step=0)
    assert to_send(repo, tip, CommitId(ObjectId(bytes(32)))).commits == [tip]


def test_a_merge_sends_what_neither_side_has_there(tmp_path: Path) -> None:
    made = history(tmp_path / "history")
    with Repository.open(made.root) as repo:
        parents = (made.main[-1], made.branched[-1])
        request = SaveRequest(state(900), branch="main", parent=parents[0], merged=parents[1:], step=900)
        merged = repo.save(request).commit
        assert set(to_send(repo, merged, made.main[1]).commits) == {merged, *made.main[2:], *made.branched}
        assert set(to_send(repo, merged, made.main[-1]).commits) == {merged, *made.branched}
        assert to_send(repo, made.main[-1], made.branched[-1]).commits == list(made.main[2:])
        assert to_send(repo, merged, *parents).commits == [merged]


def test_what_is_next_to_what_is_new_is_all_that_is_looked_at(repo: Repository) -> None:
    commits = [commit(repo, step=step) for step in range(40)]
    read: list[TreeId] = []
    wanted = repo.reader.encoded_trees

    def encoded_trees(trees: Sequence[TreeId]) -> Iterator[bytes]:
        read.extend(trees)
        return wanted(trees)

    repo.reader.encoded_trees = encoded_trees  # type: ignore[assignment, method-assign]
    found = to_send(repo, commits[-1], commits[-2])
    assert found.commits == commits[-1:]
    assert len(read) == len(set(read))
    assert set(read) <= {*repo.commit(commits[-1]).items.values(), *repo.commit(commits[-2]).items.values()}


def test_subtrees_that_are_there_are_not_looked_into(repo: Repository) -> None:
    tensors = {f"layer{number:04}": tensor(noise_bytes(number), position=number) for number in range(2000)}
    first = commit(repo, items=[item("model", tensors)], step=0)
    tensors["layer0000"] = tensor(noise_bytes("changed"))
    second = commit(repo, items=[item("model", tensors)], step=1)
    leaves = len(repo.reader.tree_node(repo.commit(second).items["model"]).subtrees)
    assert leaves > 2
    found = to_send(repo, second, first)
    kinds = [place.kind.name for place in found.objects.values()]
    assert sorted(kinds) == ["CHUNK", "COMMIT", "TREE", "TREE"]


def noise_bytes(seed: object) -> bytes:
    return Random(str(seed)).randbytes(280)


def test_bases_go_along_unless_they_are_there(repo: Repository) -> None:
    states = [{"w": noise("w", 50_000)}]
    for step in range(5):
        states.append({"w": drifted(states[-1]["w"], step)})
    commits = [save(repo, each, step=step).commit for step, each in enumerate(states)]
    repack(repo, "size")
    for there in ([], commits[:1], commits[:3]):
        found = to_send(repo, commits[-1], *there)
        for place in found.objects.values():
            assert place.base is None or place.base in found.objects or place.base in found.relied


def test_bases_of_what_was_lost_go_along(repo: Repository) -> None:
    base = {"w": noise("w", 50_000)}
    save(repo, base, step=0)
    other = save(repo, {"w": drifted(base["w"], 1)}, step=1).commit
    (place,) = [each for each in to_send(repo, other).objects.values() if each.base is not None]
    assert place.base in again(repo, chunks_of(repo, other, ITEM), {}).objects


def rewritten_without(repo: Repository, lacking: Collection[ObjectId]) -> Repository:
    """The same store, opened anew, with all packs put into one from which some objects are gone."""
    kept: dict[ObjectId, Sealed] = {}
    packs = repo.packs.pack_ids()
    for pack in packs:
        for entry in repo.packs.table(pack).entries:
            _, payload = repo.packs.read_entry(pack, entry)
            if entry.id not in lacking:
                kept[entry.id] = Sealed(entry.header, (bytes(payload.obj),), entry.stored_bytes, entry.checksum)
    repo.close()
    for pack in packs:
        pack_path(repo.layout.packs, pack).unlink()
    write(repo.layout.packs, list(kept.values()))
    for generation in (repo.layout.root / "index").iterdir():
        for file in generation.iterdir():
            file.unlink()
    return Repository.open(repo.layout.root)


def test_what_is_missing_here_is_an_error_that_names_the_commit(repo: Repository) -> None:
    first, second = commit(repo, step=0), commit(repo, step=100)
    trees = set(repo.commit(first).items.values()) - set(repo.commit(second).items.values())
    (shared,) = chunks_of(repo, first, "model") & chunks_of(repo, second, "model")
    (chunk,) = chunks_of(repo, second, "optimizer")
    for lacking, blamed in (({chunk}, second), ({*trees, shared}, first), ({first}, first)):
        with Repository.open(copied(repo)) as whole, rewritten_without(whole, lacking) as damaged:
            with pytest.raises(Corrupt, match=blamed.hex()):
                outgoing(damaged, [second], There())
            with pytest.raises(Corrupt, match="not here either"):
                again(damaged, lacking, {})


def test_what_is_missing_here_and_next_to_what_is_new_is_no_error(repo: Repository) -> None:
    first, second = commit(repo, step=0), commit(repo, step=100)
    trees = set(repo.commit(first).items.values()) - set(repo.commit(second).items.values())
    with rewritten_without(repo, trees) as damaged:
        found = to_send(damaged, second, first)
    assert found.commits == [second]


def copied(repo: Repository) -> Path:
    """A copy of a store."""
    target = repo.layout.root.with_name(f"copy-{uuid4().hex}")
    copytree(repo.layout.root, target)
    return target


def test_bytes_that_look_like_ids_are_no_objects(repo: Repository) -> None:
    false_id = bytes(range(200, 232))
    name = (b"fchunks\x81X " + false_id).decode("latin-1")
    inline = tensor(b"fchunks\x81X " + false_id)
    tip = commit(repo, items=[item("model", {"a": inline, name.replace("/", "_"): tensor(b"x" * 400)})], step=0)
    found = to_send(repo, tip)
    assert ObjectId(false_id) not in found.objects
    assert found.commits == [tip]


def test_a_branch_at_a_commit_that_is_there_needs_nothing(repo: Repository) -> None:
    first, second = commit(repo, step=0), commit(repo, step=100)
    repo.set_ref(RefName(branch_name("old")), None, first, "branch")
    found = to_send(repo, first, second)
    assert (found.commits, found.objects) == ([], {})


def drifting_line(repo: Repository, count: int) -> Iterator[CommitId]:
    """Commits whose chunks are stored against those before, made one by one."""
    made = {"w": noise("w", 50_000)}
    for step in range(count):
        yield save(repo, made, step=step).commit
        made = {"w": drifted(made["w"], step)}


def depth_on(remote: Remote) -> int:
    """How many objects have to be decoded before the deepest of a remote, if of each the shallowest copy is taken."""
    tables = [idx.table for idx in remote.idxs(remote.packs())[0].values()]
    entries = [entry for table in tables for entry in table.entries]
    depths: dict[ObjectId, int] = {}
    for entry, depth in resolve_depths(entries, lambda _: None).resolved:
        depths[entry.id] = min(depth, depths.get(entry.id, depth))
    assert len(depths) == len({entry.id for entry in entries})
    return max(depths.values())


def test_bases_that_are_there_are_not_sent_again(repo: Repository) -> None:
    storage = MemoryStorage()
    with open_remote(repo, "origin", storage) as remote:
        for _ in drifting_line(repo, 4):
            push(repo, remote).require_all()
        assert depth_on(remote) > 0
    assert set(read_remote(storage).copy_count.values()) == {1}


def test_bases_go_again_before_chains_there_become_too_long(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.remotes.pushing.outgoing.MAX_CHAIN_DEPTH", 3)
    storage = MemoryStorage()
    with open_remote(repo, "origin", storage) as remote:
        for step, _ in enumerate(drifting_line(repo, 10)):
            push(repo, remote).require_all()
            if step % 2:
                repack(repo, "restore")  # the tip is stored by itself now, and what follows begins anew from there
        assert depth_on(remote) <= 3
    assert set(require_whole(storage).copy_count.values()) == {1, 2}


def test_bases_of_which_nothing_is_known_go_along(repo: Repository) -> None:
    storage = MemoryStorage()
    for step, _ in enumerate(drifting_line(repo, 2)):
        with open_remote(repo, "origin", storage) as remote:
            push(repo, remote).require_all()
            if not step:
                remote.cache.drop_idx(set())
    assert 2 in require_whole(storage).copy_count.values()


def test_b7_bases_of_many_commits_ago_are_not_sent_again(repo: Repository) -> None:
    """Nothing next to what is new holds them: where little changes, chains begin anew with what was there at first."""
    storage, table = MemoryStorage(), noise("table", 50_000)
    with open_remote(repo, "origin", storage) as remote:
        last = None
        for step in range(12):
            last = save(repo, {"w": table}, step=step, last=last).last
            table = drifted(table, step, share=0.01)
            push(repo, remote).require_all()
    assert set(require_whole(storage).copy_count.values()) == {1}
