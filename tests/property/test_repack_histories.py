"""Whatever the history, repacking for whatever goal in whatever order changes nothing that anybody can read."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from store.ids import CommitId, ObjectId
from store.index import MemoryIndex
from store.naming.refnames import branch_name, tag_name
from store.opening.reindex import digest_packs
from store.repack import Goal, repack
from store.repository import Repository
from tests.arrays import Array, State, drifted, noise, require_whole, save

START: State = {
    "w": noise("w", 1500),
    "half": noise("h", 1200, dtype_name="bfloat16"),
    "ints": noise("i", 300, dtype_name="int64"),
    "bytes": noise("b", 1100, dtype_name="uint8"),
    "tiny": noise("t", 3),
}
BRANCHES = ("main", "exp/a", "exp/b")

saves = st.tuples(
    st.sampled_from(BRANCHES),
    st.sets(st.sampled_from(sorted(START)), max_size=3),
    st.sampled_from([0.02, 0.3, 1.0]),
    st.booleans(),
)
steps = st.lists(saves | st.sampled_from(get_args(Goal)), min_size=2, max_size=10)


def change(state: State, names: set[str], seed: object, share: float) -> dict[str, Array]:
    """A later state; one that changes nothing is a commit as well."""
    return {name: drifted(array, (seed, name), share) if name in names else array for name, array in state.items()}


def ids(repo: Repository) -> set[ObjectId]:
    return {entry.id for pack in repo.packs.pack_ids() for entry in repo.packs.table(pack).entries}


def require_true_depths(repo: Repository) -> None:
    """What the index says of depths is what an index made anew would say."""
    anew = MemoryIndex(digest_packs(repo.packs).tables.items(), [])
    for object_id in ids(repo):
        assert repo.index.places(object_id) == anew.places(object_id)


@settings(max_examples=12, deadline=None)
@given(steps, st.booleans())
def test_repacks_between_saves_change_nothing(done: list[tuple[str, set[str], float, bool] | Goal], fork: bool) -> None:
    with TemporaryDirectory() as root, Repository.init(Path(root), thread_count=1) as repo:
        tips: dict[str, State] = {}
        commits: dict[CommitId, State] = {}
        for number, step in enumerate([*done, *get_args(Goal)]):
            if isinstance(step, str):
                before = ids(repo)
                told = repack(repo, step)
                assert (told.left, told.damaged) == ({}, {})
                assert ids(repo) == before
                assert told.after_bytes <= told.before_bytes * 1.1 or step == "restore"
                require_true_depths(repo)
                continue
            branch, names, share, is_tagged = step
            if fork and branch not in tips and "main" in tips:
                repo.set_ref(branch_name(branch), None, repo.resolve("branches/main"), "branch")
                tips[branch] = tips["main"]
            tips[branch] = change(tips.get(branch, START), names, number, share)
            saved = save(repo, tips[branch], branch=branch, step=number).commit
            commits[saved] = tips[branch]
            if is_tagged:
                repo.set_ref(tag_name(f"t{number}"), None, saved, "tag")
        require_whole(repo, commits)
