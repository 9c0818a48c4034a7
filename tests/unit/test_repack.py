"""Repacking for each goal: what is chosen, and that it does what it is for."""

import shutil
import threading
from itertools import count
from pathlib import Path
from typing import Any, get_args

import pytest

from store.errors import Busy, Incompatible
from store.format.dtypes import Element
from store.gc import collect
from store.history.stats import collect as stats_of
from store.ids import CommitId, ObjectId, chunk_id
from store.index import Copy
from store.limits import REPACK_CHAIN_DEPTH, SAVE_CHAIN_DEPTH
from store.naming.refnames import branch_name, tag_name
from store.repack import Goal, repack
from store.repack.lines import Line
from store.repack.released import released_bytes
from store.repository import Repository
from store.upkeep.absences import Absence, Why
from store.upkeep.gclock import collecting
from store.upkeep.prune import Pruner
from store.upkeep.retention import Keep
from tests.arrays import (
    State,
    chunk_of,
    damage,
    depths,
    drifted,
    entries_of,
    noise,
    pack_file,
    read,
    require_whole,
    save,
)
from tests.collecting import forget_branch
from tests.copies import copied, index_pack
from tests.packing import chunk, delta

GOALS = get_args(Goal)


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[CommitId, State]]:
    """A family, made once."""
    root = tmp_path_factory.mktemp("past") / "store"
    with Repository.init(root, thread_count=2) as repo:
        made = family(repo)
    (root / "ballast").unlink()
    return root, made


@pytest.fixture
def made(past: tuple[Path, dict[CommitId, State]]) -> dict[CommitId, State]:
    return dict(past[1])


@pytest.fixture
def repo(tmp_path: Path, past: tuple[Path, dict[CommitId, State]]) -> Any:
    """A copy of the family."""
    shutil.copytree(past[0], tmp_path / "store")
    with Repository.open(tmp_path / "store", thread_count=2) as repo:
        yield repo


@pytest.fixture
def empty(tmp_path: Path) -> Any:
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        yield repo


def line(repo: Repository, branch: str, state: State, length: int) -> dict[CommitId, State]:
    """Commits on a branch, each a little beside the one before."""
    made: dict[CommitId, State] = {}
    for step in range(length):
        made[save(repo, state, branch=branch, step=step).commit] = state
        state = {**state, "w": drifted(state["w"], (branch, step), 0.3)}
    return made


def family(repo: Repository) -> dict[CommitId, State]:
    """A base, branches of it, and fine-tunes that do not know where they came from."""
    base: State = {"w": noise("w", 6000), "same": noise("same", 900), "ints": noise("i", 700, dtype_name="int64")}
    made = line(repo, "main", base, 12)
    for number in range(2):
        branch = f"exp/{number}"
        repo.set_ref(branch_name(branch), None, next(iter(made)), "branch")
        made |= line(repo, branch, {**base, "w": drifted(base["w"], branch, 0.1)}, 8)
    for number in range(3):
        made |= line(repo, f"tuned/{number}", {**base, "w": drifted(base["w"], ("tune", number), 0.2)}, 1)
    return made


def pack_bytes(repo: Repository) -> int:
    return sum(pack_file(repo, pack).stat().st_size for pack in repo.packs.pack_ids())


def ids(repo: Repository) -> set[ObjectId]:
    return {entry.id for pack in repo.packs.pack_ids() for entry in repo.packs.table(pack).entries}


@pytest.mark.parametrize("goal", GOALS)
def test_every_commit_stays_as_it_was(repo: Repository, made: dict[CommitId, State], goal: Goal) -> None:
    before = ids(repo)
    done = repack(repo, goal)
    assert (done.left, done.damaged) == ({}, {})
    assert done.replaced_count > 0
    assert done.after_bytes == pack_bytes(repo)
    assert ids(repo) == before
    require_whole(repo, made)


@pytest.mark.parametrize("goal", GOALS)
def test_a_second_time_there_is_nothing_to_do(repo: Repository, goal: Goal) -> None:
    repack(repo, goal)
    packs = repo.packs.pack_ids()
    done = repack(repo, goal)
    assert (done.replaced_count, done.encoded_count) == (0, 0)
    assert repo.packs.pack_ids() == packs


@pytest.mark.parametrize("goal", GOALS)
def test_a_dry_run_tells_what_would_be_done_and_does_nothing(repo: Repository, goal: Goal) -> None:
    packs = repo.packs.pack_ids()
    told = repack(repo, goal, dry_run=True)
    assert repo.packs.pack_ids() == packs
    done = repack(repo, goal)
    assert (told.replaced_count, told.encoded_count, told.before_bytes) == (
        done.replaced_count,
        done.encoded_count,
        done.before_bytes,
    )
    if goal != "restore":  # what full encodings will take is not sampled
        assert told.after_bytes == pytest.approx(done.after_bytes, rel=0.2)  # of small chunks, sampling knows little


@pytest.mark.parametrize("goal", GOALS)
def test_saves_go_on_as_deltas(repo: Repository, made: dict[CommitId, State], goal: Goal) -> None:
    repack(repo, goal)
    tip = repo.refs.read(branch_name("main"))
    assert tip is not None
    state = {**made[tip], "w": drifted(made[tip]["w"], "on", 0.3)}
    made[(saved := save(repo, state)).commit] = state
    assert saved.counts.delta_count == 1
    require_whole(repo, made)


def test_packs_become_few(repo: Repository) -> None:
    assert repack(repo).replaced_count > 20
    assert len(repo.packs.pack_ids()) == 1


def test_one_small_pack_is_left_alone(empty: Repository) -> None:
    save(empty, {"w": noise("w", 900)})
    assert repack(empty).replaced_count == 0


def test_small_packs_that_fit_no_other_are_left_alone(empty: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.repack.hollow.REWRITE_PACK_BYTES", 60_000)
    for number in range(3):
        save(empty, {"w": noise(number, 10_000)})
    done = repack(empty, "consolidate")
    assert (done.replaced_count, done.made_count) == (0, 0)


def test_a_hollow_pack_is_written_anew_without_what_is_gone(repo: Repository, made: dict[CommitId, State]) -> None:
    repack(repo)
    (pack,) = repo.packs.pack_ids()
    before = pack_bytes(repo)
    kept = [chunk_of(repo, next(iter(made)), "w")]
    bulky = [entry.id for entry in repo.packs.table(pack).entries if entry.raw_bytes == len(made_of(made)["w"].data)]
    gone = [Copy(each, pack) for each in bulky if each not in kept]
    assert repo.index.write(lambda writer: writer.remove_places(gone, spare_last=False)) == []
    forget_all_but_first(repo, made)
    done = repack(repo)
    assert done.replaced_count == 1
    assert done.after_bytes == pack_bytes(repo) < before
    assert not ids(repo) & {copy.id for copy in gone}


def made_of(made: dict[CommitId, State]) -> State:
    return next(iter(made.values()))


def forget_all_but_first(repo: Repository, made: dict[CommitId, State]) -> None:
    """As gc leaves a store: what is gone is in no commit that is live, or permitted to be missing."""
    times = {commit: Absence.of(commit, None, Why.PRUNED, 1) for commit in list(made)[1:]}
    repo.absences.add(times.values())


def test_tips_and_tags_are_stored_in_full_in_the_order_of_a_load(repo: Repository, made: dict[CommitId, State]) -> None:
    tagged = list(made)[5]
    repo.set_ref(tag_name("best"), None, tagged, "tag")
    assert max(depths(repo, tagged)) > 0
    repack(repo, "restore")
    for tip in set(repo.refs.list().values()):
        assert depths(repo, tip) == [0, 0, 0]
        assert read(repo, tip) == made[tip]
    places = [repo.index.places(chunk)[0] for entry in entries_of(repo, tagged).values() for chunk in entry.chunks]
    own = [place.offset for place in places if place.pack == repo.index.places(chunk_of(repo, tagged, "w"))[0].pack]
    assert own == sorted(own)


def test_what_a_tip_has_in_full_stays_so_beside_a_delta_in_a_pack_that_stays(empty: Repository) -> None:
    """A run that ended before the old places were removed leaves objects twice."""
    state = {"v": noise("v", 3000), "w": noise("w", 3000)}
    save(empty, state)
    state = {name: drifted(array, name) for name, array in state.items()}
    tip = save(empty, state).commit
    v, w = (chunk_of(empty, tip, name) for name in state)
    index_pack(empty, [copied(empty, w)])  # holds nothing that is to be encoded anew
    index_pack(empty, [copied(empty, v), chunk(state["w"].data)])
    assert depths(empty, tip) == [1, 0]
    repack(empty, "restore")
    assert depths(empty, tip) == [0, 0]
    require_whole(empty, {tip: state})


def test_sizes_shrink_across_branches_and_fine_tunes(repo: Repository, made: dict[CommitId, State]) -> None:
    before = pack_bytes(repo)
    done = repack(repo, "size")
    assert done.after_bytes < 0.75 * before
    every = [depth for commit in made for depth in depths(repo, commit)]
    assert max(every) <= REPACK_CHAIN_DEPTH
    for tip in set(repo.refs.list().values()):
        assert max(depths(repo, tip)) < SAVE_CHAIN_DEPTH


def test_what_cannot_get_smaller_is_left_alone(empty: Repository) -> None:
    for number in range(3):
        save(empty, {"w": noise(number, 3000)})
    assert repack(empty, "size", dry_run=True).encoded_count == 0


def test_long_lines_are_planned_in_parts(
    repo: Repository, made: dict[CommitId, State], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.repack.planning.REPACK_LINE_CHUNKS", 5)
    repack(repo, "size")
    require_whole(repo, made)


def test_packs_are_replaced_a_few_at_a_time(
    repo: Repository, made: dict[CommitId, State], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Space is bounded: what is there at any time is what was, and one group."""
    monkeypatch.setattr("store.repack.hollow.REWRITE_PACK_BYTES", 60_000)
    before, most = pack_bytes(repo), 0

    def look(_what: str, _done: int, _total: int) -> None:
        nonlocal most
        most = max(most, pack_bytes(repo))

    done = repack(repo, "size", progress=look)
    assert done.left == {}
    assert most < before + 2 * 60_000
    assert len(repo.packs.pack_ids()) > 3
    require_whole(repo, made)


def test_progress_goes_to_the_end(repo: Repository) -> None:
    told: list[tuple[str, int, int]] = []
    repack(repo, "size", progress=lambda *each: told.append(each))
    for what in ("comparing", "rewriting"):
        shown = [(done, total) for name, done, total in told if name == what]
        assert shown == sorted(shown)
        assert shown[-1][0] == shown[-1][1] > 0


@pytest.mark.parametrize("goal", GOALS)
def test_it_may_be_interrupted_anywhere(
    repo: Repository, made: dict[CommitId, State], goal: Goal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.repack.hollow.REWRITE_PACK_BYTES", 60_000)
    write, calls = repo.index.write, count()
    for last in range(0, 40, 7):
        seen = count()

        def interrupted(body: Any, seen: Any = seen, last: int = last) -> Any:
            if next(seen) == last:
                raise KeyboardInterrupt
            next(calls)
            return write(body)

        monkeypatch.setattr(repo.index, "write", interrupted)
        try:
            repack(repo, goal)
        except KeyboardInterrupt:
            assert not [name for name in repo.files.list_directory(repo.layout.packs) if name.startswith("tmp-")]
    monkeypatch.setattr(repo.index, "write", write)
    assert next(calls) > 5
    repack(repo, goal)
    require_whole(repo, made)


def test_readers_and_writers_go_on(
    repo: Repository, made: dict[CommitId, State], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.repack.hollow.REWRITE_PACK_BYTES", 60_000)
    known = dict(made)
    errors: list[BaseException] = []
    over = threading.Event()

    def read_all() -> None:
        try:
            with Repository.open(repo.layout.root, thread_count=1) as other:
                while not over.is_set():
                    for commit, state in known.items():
                        assert read(other, commit) == state
        except BaseException as error:
            errors.append(error)

    def save_some() -> None:
        try:
            with Repository.open(repo.layout.root, thread_count=1) as other:
                made.update(line(other, "beside", {"w": noise("beside", 6000)}, 12))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=each) for each in (read_all, save_some)]
    for thread in threads:
        thread.start()
    for goal in (*GOALS, *GOALS):
        repack(repo, goal)
    threads[1].join()
    over.set()
    threads[0].join()
    assert errors == []
    require_whole(repo, made)


@pytest.mark.parametrize("goal", GOALS)
def test_d10_damage_in_one_pack_keeps_nothing_else_from_being_repacked(
    repo: Repository, made: dict[CommitId, State], goal: Goal
) -> None:
    tip = repo.refs.read(branch_name("main"))
    assert tip is not None
    broken = chunk_of(repo, tip, "w")
    damage(repo, broken)
    done = repack(repo, goal)
    assert set(done.damaged) <= {broken.hex()}
    for commit, state in made.items():
        if commit != tip:
            assert read(repo, commit) == state


def test_one_at_a_time(empty: Repository) -> None:
    save(empty, {"w": noise("w", 900)})
    with collecting(empty), pytest.raises(Busy, match="at work"):
        repack(empty)
    repack(empty)


def test_goals_are_named(empty: Repository) -> None:
    with pytest.raises(Incompatible, match="restore"):
        repack(empty, "speed")  # type: ignore[arg-type]


def test_a_store_that_needs_more_to_be_collected_is_left_alone(empty: Repository) -> None:
    path = empty.layout.format
    path.write_text(path.read_text().replace('"gc": [', '"gc": ["moonclip-9",'))
    with pytest.raises(Incompatible, match="moonclip-9"):
        repack(empty)


# --- what only commits that are gone had ----------------------------------------------------------------------------


def pruned_to_one(repo: Repository, share: float) -> tuple[CommitId, State]:
    """A branch of which one commit is left, the last of a chain of deltas whose bases the others had."""
    made: dict[CommitId, State] = {}
    state: State = {"w": noise("chain", 20_000)}
    for step in range(4):
        saved = save(repo, state, step=step)
        made[saved.commit] = state
        state = {"w": drifted(state["w"], step, share)}
    pruner = Pruner(repo)
    pruner.apply(pruner.by_policy(Keep(last=1)))
    collect(repo)
    tip = list(made)[-1]
    assert depths(repo, tip) > [0]
    return tip, made[tip]


def test_size_does_without_bases_that_only_pruned_commits_had(empty: Repository) -> None:
    tip, state = pruned_to_one(empty, 0.6)
    before = stats_of(empty)
    assert before.base_bytes > before.chunk_stored_bytes
    assert repack(empty, "size", dry_run=True).released_bytes == before.base_bytes
    done = repack(empty, "size")
    assert (done.encoded_count, done.released_bytes) == (1, before.base_bytes)
    collect(empty)
    repack(empty)
    after = stats_of(empty)
    assert (after.base_bytes, after.gc_bytes, after.repack_bytes, after.rest_bytes) == (0, 0, 0, 0)
    assert after.pack_bytes < 0.85 * before.pack_bytes
    assert depths(empty, tip) == [0]
    require_whole(empty, {tip: state})


def test_size_keeps_bases_of_pruned_commits_that_take_no_more(empty: Repository) -> None:
    """A few elements changed: in full it would take as much as it does with all its bases."""
    tip, state = pruned_to_one(empty, 0.001)
    before = stats_of(empty)
    done = repack(empty, "size")
    assert (done.encoded_count, done.released_bytes) == (0, 0)
    assert depths(empty, tip) > [0]
    assert stats_of(empty).base_bytes == before.base_bytes > 0
    require_whole(empty, {tip: state})


def test_bases_that_two_lines_need_count_for_neither(empty: Repository) -> None:
    first = Line(Element.INT8, 4, chunks=[chunk_id(b"a")])
    second = Line(Element.INT8, 4, chunks=[chunk_id(b"b"), chunk_id(b"c")])
    held = [chunk(b"x"), chunk(b"y"), delta(b"a", b"x", b"1"), delta(b"b", b"x", b"1"), delta(b"c", b"y", b"1")]
    index_pack(empty, held)
    assert released_bytes(empty, [first, second]) == [0, held[1].stored_bytes]


@pytest.mark.parametrize(("doomed_count", "replaced_count"), [(150, 1), (50, 0)])
def test_less_than_a_tenth_of_a_pack_is_held_in_vain(empty: Repository, doomed_count: int, replaced_count: int) -> None:
    """It would be written anew for little."""
    save(empty, {"stays": noise("stays", 1000 - doomed_count), "goes": noise("goes", doomed_count)}, branch="exp")
    save(empty, {"stays": noise("stays", 1000 - doomed_count)})
    repack(empty)
    forget_branch(empty, "exp")
    told = collect(empty)
    assert told.freed_bytes == 0 < told.object_bytes
    before = pack_bytes(empty)
    summed = stats_of(empty)
    done = repack(empty)
    assert done.replaced_count == replaced_count
    assert before - pack_bytes(empty) == told.repack_bytes == summed.repack_bytes
    assert (told.repack_bytes > 0) == (replaced_count > 0)
    assert summed.rest_bytes < 0.1 * summed.pack_bytes
    assert (summed.rest_bytes > 0) == (replaced_count == 0)


def test_copies_beside_the_one_that_is_read_are_taken_out(empty: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.repack.hollow.SMALL_PACK_BYTES", 0)  # they alone are the reason
    state = {"w": noise("w", 3000)}
    tip = save(empty, state).commit
    place = empty.index.places(chunk_of(empty, tip, "w"))[0]
    index_pack(empty, [copied(empty, chunk_of(empty, tip, "w")), chunk(b"beside")])
    collect(empty)  # takes what nothing needs
    summed = stats_of(empty)
    assert summed.repack_bytes >= place.stored_bytes
    repack(empty)
    assert len(empty.index.places(chunk_of(empty, tip, "w"))) == 1
    assert stats_of(empty).pack_bytes <= summed.pack_bytes - place.stored_bytes
    require_whole(empty, {tip: state})
