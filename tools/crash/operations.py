"""What people do to a store that may be cut short anywhere, and what must hold afterwards."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, get_args

from store.codec import narrowing
from store.disk.files import Files
from store.errors import StoreNotFound
from store.gc import collect
from store.ids import CommitId
from store.layout import VIEWS
from store.naming.logs import LogFiles
from store.naming.refnames import branch_name, tag_name
from store.opening.indexes import rebuild_index
from store.repack import Goal, repack
from store.repository import Repository
from store.saving.inputs import ItemInput, MadeInput
from store.saving.leases import living_leases
from store.saving.saver import SaveRequest

from .ranks import request, save_ranks
from .states import ITEM, Array, State, drifted, entries_of, noise, read, require_whole, save

OLD: State = {"w": noise("w", 900), "same": noise("same", 900), "tiny": noise("t", 3)}
NEWER: State = {**OLD, "w": drifted(OLD["w"], 1)}
NEWEST: State = {**OLD, "w": drifted(OLD["w"], 2), "more": noise("more", 200)}
TUNED: State = {"w": Array("bfloat16", (900,), bytes(narrowing("float32", "bfloat16", b"", 1).new(OLD["w"].data, 0)))}

_TIME: Final = re.compile(rb"^([0-9a-f]{64} [0-9a-f]{64}) [0-9]+ ", re.MULTILINE)

History = dict[CommitId, State]
"""Commits that were acknowledged, and what they hold."""


@dataclass(frozen=True)
class Operation:
    """Something people do.

    Attributes:
        run: does it, on an open store; again after a crash it must succeed. Returns the commits that it makes.
        moves: the ref that it moves, if it moves one.
        set_up: makes what it needs beforehand, undisturbed. Returns further commits that have to outlive it.
        outdates_index: whether an index from before tells of packs by then that are gone and that nobody reads, which
            the store's check rightly says of it until the operation is done again.
    """

    run: Callable[[Repository], History]
    moves: str | None = None
    set_up: Callable[[Repository], History] = lambda _: {}
    outdates_index: bool = False


def _save(repo: Repository) -> History:
    return {save(repo, NEWEST).commit: NEWEST}


def _save_on_new_branch(repo: Repository) -> History:
    return {save(repo, NEWEST, branch="exp/lr3").commit: NEWEST}


def _save_alike(repo: Repository) -> History:
    """A commit that is stored against a cast of what the store holds: the first that older versions cannot read."""
    like, tuned = entries_of(repo, repo.resolve("branches/old"))["w"], TUNED["w"]
    raw = memoryview(tuned.data)
    made = MadeInput(0, tuned.dtype, tuned.shape, lambda start, stop: raw[start:stop], like=like)
    parent = repo.refs.read(branch_name("tuned"))
    return {repo.save(SaveRequest([ItemInput(ITEM, {"w": made})], "tuned", parent)).commit: TUNED}


def _save_by_ranks(repo: Repository) -> History:
    with repo.create_snapshot(request(repo), 2) as snapshot:
        save_ranks(repo.layout.root, snapshot, NEWEST, files=repo.files, threads=repo.threads)
        return {snapshot.finalize(): NEWEST}


def _give_up(repo: Repository) -> History:
    with repo.create_snapshot(request(repo), 2) as snapshot:
        save_ranks(repo.layout.root, snapshot, NEWEST, files=repo.files, threads=repo.threads)
    return {}


def _tag(repo: Repository) -> History:
    name = tag_name("best")
    repo.set_ref(name, repo.refs.read(name), repo.resolve("branches/main"), "tag")
    return {}


def _reset(repo: Repository) -> History:
    name = branch_name("old")
    repo.set_ref(name, repo.refs.read(name), repo.resolve("branches/main"), "reset")
    return {}


def _delete(repo: Repository) -> History:
    if repo.refs.read(branch_name("gone/away")) is not None:
        repo.delete_ref(branch_name("gone/away"))
    return {}


def _switch(repo: Repository) -> History:
    repo.refs.set_head("old")
    return {}


def _reindex(repo: Repository) -> History:
    rebuild_index(repo.layout, repo.files, repo.packs)
    return {}


def _add_line(repo: Repository) -> History:
    """Commits, each in a pack of its own, that are deltas against each other."""
    states = [{**OLD, "w": drifted(NEWER["w"], ("line", step)), "some": drifted(OLD["w"], step)} for step in range(4)]
    return {save(repo, state).commit: state for state in states}


def _repack(goal: Goal, repo: Repository) -> History:
    assert not repack(repo, goal).damaged
    return {}


def _make_garbage(repo: Repository) -> History:
    """Commits that nothing leads to: in one pack that goes, and in one that holds a chunk which another one needs."""
    shared, needs_it = noise("shared", 100), {**OLD, "shared": noise("shared", 100)}
    save(repo, {"shared": shared, "garbage": noise("garbage", 900)}, branch="garbage")
    made = save(repo, needs_it).commit
    save(repo, {"more": noise("more garbage", 900)}, branch="garbage")
    repo.delete_ref(branch_name("garbage"))
    expire_reflogs(repo)
    return {made: needs_it}


def _gc(repo: Repository) -> History:
    assert not collect(repo).left
    return {}


OPERATIONS: Mapping[str, Operation] = {
    "save": Operation(_save, "branches/main"),
    "save on a new branch": Operation(_save_on_new_branch, "branches/exp/lr3"),
    "save what resembles": Operation(_save_alike, "branches/tuned"),
    "save by ranks": Operation(_save_by_ranks, "branches/main"),
    "give a snapshot up": Operation(_give_up),
    "tag": Operation(_tag, "tags/best"),
    "reset": Operation(_reset, "branches/old"),
    "delete": Operation(_delete, "branches/gone/away"),
    "switch": Operation(_switch),
    "reindex": Operation(_reindex),
    "gc": Operation(_gc, set_up=_make_garbage, outdates_index=True),
    **{f"repack to {goal}": Operation(partial(_repack, goal), set_up=_add_line) for goal in get_args(Goal)},
}


ALIKE: Final = frozenset({"repack to restore", "repack to consolidate", "give a snapshot up"})
"""Those that differ from another one in what they choose, not in how they do it: tests leave them to `make crash`."""


def expire_reflogs(repo: Repository) -> None:
    """Make all lines of all reflogs as old as can be."""
    for path in LogFiles(repo.layout.root, repo.files).all():
        if path.exists():
            path.write_bytes(_TIME.sub(rb"\1 1 ", path.read_bytes()))


def prepare(root: Path) -> History:
    """A small store with a past."""
    with Repository.init(root, thread_count=1) as repo:
        first = save(repo, OLD).commit
        repo.set_ref(branch_name("old"), None, first, "branch")
        repo.set_ref(branch_name("gone/away"), None, first, "branch")
        second = save(repo, NEWER).commit
    (root / "ballast").unlink()  # 4 MiB that a hundred copies of this store need not have
    return {first: OLD, second: NEWER}


def remove_index(root: Path) -> None:
    """What a person does to an index they mistrust."""
    shutil.rmtree(root / "index", ignore_errors=True)


def garble_index(root: Path) -> None:
    """What a bad disk does."""
    for path in root.glob("index/*/data.mdb"):
        path.write_bytes(b"\xa5" * path.stat().st_size)


def put_index(source: Path) -> Callable[[Path], None]:
    """Put the index of another time in place."""

    def put(root: Path) -> None:
        remove_index(root)
        shutil.copytree(source, root / "index")

    return put


def require_recovered(root: Path, operation: Operation, history: History, *, moved_from: CommitId | None) -> None:
    """The store opens, holds all that was acknowledged, checks clean, and takes what was cut short.

    Args:
        root: the store.
        operation: what was cut short.
        history: what was acknowledged, the operation's own commits among them if it had returned.
        moved_from: where its ref was before.
    """
    with Repository.open(root, thread_count=1) as repo:
        require_whole(repo, history)
        assert living_leases(root, Files()) == []
        if operation.moves is not None:
            found = repo.refs.read(operation.moves)
            if found is not None and found != moved_from:
                assert read(repo, found) in (OLD, NEWER, NEWEST, TUNED)
        _require_named(repo)
        done = operation.run(repo)
        require_whole(repo, {**history, **done})
        if operation.moves is not None and done:
            assert repo.refs.read(operation.moves) in done


def _require_named(repo: Repository) -> None:
    """Whatever packs hold that older versions cannot read, ``format`` says so."""
    tables = [repo.packs.table(pack) for pack in repo.packs.pack_ids()]
    if any(entry.viewed for table in tables for entry in table.entries):
        assert VIEWS in json.loads(repo.layout.format.read_bytes())["read"]


def require_makable(root: Path, *, has_returned: bool) -> None:
    """A store whose making was cut short is there, or can be made; and then it works."""
    try:
        repo = Repository.open(root, thread_count=1)
    except StoreNotFound:
        assert not has_returned
        repo = Repository.init(root, thread_count=1)
    with repo:
        assert repo.refs.head() == "main"
        require_whole(repo, _save(repo))
