"""Several processes and threads, forks, and handles on one index."""

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from store.index import IndexWriter, LmdbIndex
from store.index.environment import Environment
from store.index.transaction import Transaction
from tests.indexing import commit_id, data_of, entry, generations, make, nothing, object_id, pack_id, row, run, start

# Forks among threads are what is tested here; newer Pythons warn of them.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

SMALL_MAP_BYTES = 96 * 1024

PREAMBLE = """
import os, sys
from pathlib import Path
from tests.indexing import *
root = Path(sys.argv[1])
"""


def child_of(body: Callable[[], bool]) -> int:
    """Fork; the child runs ``body`` and exits with 0 if it says so. Gives its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os._exit(0 if body() else 1)
    finally:
        os._exit(2)


def assert_went_well(pid: int) -> None:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def add(index: LmdbIndex, name: str) -> bool:
    return index.write(lambda writer: writer.add_commit(row(name))).id == commit_id(name)


def names_in(index: LmdbIndex) -> set[str]:
    return {found.id.rstrip(b".").decode() for found in index.commits_since(0)}


FILLER = f"""{PREAMBLE}
index = generations(root, map_bytes={SMALL_MAP_BYTES}).open(writable=True)
print(flush=True)
sys.stdin.readline()
for number in range(12):
    names = [f"{{sys.argv[2]}}-{{number}}-{{each}}" for each in range(60)]
    index.write(lambda writer: writer.add_pack(pack_id(names[0]), map(entry, names)))
    assert all(index.places(object_id(name)) for name in names)
index.close()
"""


def test_e1_four_processes_fill_a_small_map(tmp_path: Path) -> None:
    index = make(tmp_path, map_bytes=SMALL_MAP_BYTES)
    processes = [start(FILLER, tmp_path, str(number)) for number in range(4)]
    for process in processes:
        assert process.stdout
        process.stdout.readline()
    for process in processes:
        process.communicate("\n")
    assert [process.returncode for process in processes] == [0] * 4
    assert data_of(tmp_path).stat().st_size > 2 * SMALL_MAP_BYTES
    for number in range(4):  # and this process, whose map is still the small one, sees it all
        assert all(index.places(object_id(f"{number}-{pack}-59")) for pack in range(12))
    index.close()


GROWER = f"""{PREAMBLE}
index = generations(root, map_bytes=1 << 30).open(writable=True)
names = [f"n{{each}}" for each in range(3000)]
index.write(lambda writer: writer.add_pack(pack_id("big"), map(entry, names)))
"""


def test_e1_another_process_makes_the_map_larger_than_ours(tmp_path: Path) -> None:
    reader = make(tmp_path, map_bytes=SMALL_MAP_BYTES)
    run(GROWER, tmp_path)
    assert reader.places(object_id("n2999"))
    add(reader, "after")
    reader.close()


def test_e1_and_a_writer_is_the_first_to_notice(tmp_path: Path) -> None:
    writer = make(tmp_path, map_bytes=SMALL_MAP_BYTES)
    run(GROWER, tmp_path)
    add(writer, "after")
    assert writer.commit(commit_id("after"))
    writer.close()


def test_e1_a_map_grows_while_other_threads_read(tmp_path: Path) -> None:
    index = make(tmp_path, map_bytes=SMALL_MAP_BYTES)
    add(index, "there")
    done, wrong = threading.Event(), []

    def read() -> None:
        while not done.is_set():
            if index.commit(commit_id("there")) is None:
                wrong.append("lost")

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    names = [f"n{each}" for each in range(3000)]
    attempts: list[int] = []

    def fill(writer: IndexWriter) -> None:
        attempts.append(1)
        writer.add_pack(pack_id("big"), map(entry, names))

    index.write(fill)
    done.set()
    for thread in threads:
        thread.join()
    assert len(attempts) > 1
    assert wrong == []
    assert index.places(object_id("n2999"))
    index.close()


def test_a_map_that_cannot_grow_leaves_the_index_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = make(tmp_path, map_bytes=SMALL_MAP_BYTES)
    add(index, "there")
    monkeypatch.setattr("store.index.environment.INDEX_MAP_GROWTH", 2**40)
    with pytest.raises(OSError):
        index.write(lambda writer: writer.add_pack(pack_id("big"), [entry(f"n{each}") for each in range(3000)]))
    assert index.commit(commit_id("there"))
    add(index, "after")
    assert index.packs() == []
    index.close()


# --- forks ----------------------------------------------------------------------------------------------------------


def test_e2_parent_and_child_both_go_on(tmp_path: Path) -> None:
    index = make(tmp_path)
    add(index, "before")

    def child() -> bool:
        for number in range(20):
            add(index, f"child{number}")
        return names_in(index) >= {"before", *(f"child{number}" for number in range(20))}

    pid = child_of(child)
    for number in range(20):
        add(index, f"parent{number}")
        assert index.commit(commit_id("before"))
    assert_went_well(pid)
    assert len(names_in(index)) == 41
    index.close()


def test_e2_a_child_frees_no_place_among_the_readers_of_its_parent(tmp_path: Path) -> None:
    """A place that was given away twice would let a writer take pages that are still being read."""
    index = make(tmp_path)
    add(index, "before")
    with pytest.raises(RuntimeError) as caught:
        index._attached().read(fail)
    assert "no active readers" in environment_of(index).readers()
    assert_went_well(child_of(lambda: names_in(index) == {"before"}))
    table = run(f"{PREAMBLE}import lmdb\nprint(lmdb.open(sys.argv[2]).readers())", tmp_path, data_of(tmp_path).parent)
    assert "no active readers" in table
    assert caught.value.__traceback__
    index.close()


def fail(_: Transaction) -> None:
    raise RuntimeError


def test_e2_a_fork_waits_for_transactions_of_other_threads(tmp_path: Path) -> None:
    index = make(tmp_path)
    add(index, "before")
    inside, go_on = threading.Event(), threading.Event()

    def write_slowly(writer: IndexWriter) -> None:
        writer.add_commit(row("slow"))
        inside.set()
        go_on.wait()

    writing = threading.Thread(target=index.write, args=(write_slowly,))
    writing.start()
    inside.wait()
    threading.Timer(0.05, go_on.set).start()  # the fork, below, is waiting by then, or comes later
    pid = child_of(lambda: names_in(index) == {"before", "slow"} and add(index, "child"))
    writing.join()
    assert_went_well(pid)
    assert names_in(index) == {"before", "slow", "child"}
    index.close()


def test_e2_forks_among_busy_threads(tmp_path: Path) -> None:
    index = make(tmp_path)
    add(index, "before")
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            assert index.commit(commit_id("before"))

    def write() -> None:
        number = 0
        while not done.is_set():
            add(index, f"thread{number}")
            number += 1

    threads = [threading.Thread(target=body) for body in (read, read, write)]
    for thread in threads:
        thread.start()
    for number in range(10):
        assert_went_well(child_of(lambda number=number: add(index, f"child{number}")))  # type: ignore[misc]
    done.set()
    for thread in threads:
        thread.join()
    assert names_in(index) >= {f"child{number}" for number in range(10)}
    index.close()


def test_e2_a_child_of_a_child(tmp_path: Path) -> None:
    index = make(tmp_path)

    def child() -> bool:
        add(index, "child")
        assert_went_well(child_of(lambda: names_in(index) == {"child"} and add(index, "grandchild")))
        return names_in(index) == {"child", "grandchild"}

    assert_went_well(child_of(child))
    assert names_in(index) == {"child", "grandchild"}
    index.close()


# --- handles --------------------------------------------------------------------------------------------------------


def test_e2_two_handles_share_one_environment_until_both_are_closed(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "store")
    first = make(tmp_path / "store")
    second = generations(tmp_path / "link").open(writable=True)
    assert first._attached() is second._attached()
    first.close()
    add(second, "a")
    third = generations(tmp_path / "store").open(writable=True)
    second.close()
    assert names_in(third) == {"a"}
    third.close()
    with generations(tmp_path / "store").open(writable=True)._attached().gate.closed():
        pass  # opened anew, not the one that was closed


def test_e2_a_reader_opened_first_does_not_keep_a_writer_from_writing(tmp_path: Path) -> None:
    make(tmp_path).close()
    reader = generations(tmp_path).open(writable=False)
    writer = generations(tmp_path).open(writable=True)
    add(writer, "a")
    assert names_in(reader) == {"a"}
    writer.close()
    reader.close()


def test_many_threads_that_open_and_close(tmp_path: Path) -> None:
    index = make(tmp_path)
    add(index, "a")
    index.close()
    wrong: list[Any] = []

    def use() -> None:
        for _ in range(30):
            handle = generations(tmp_path).open(writable=True)
            wrong.extend({"a"} ^ names_in(handle))
            handle.close()

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# --- the readers' table ---------------------------------------------------------------------------------------------

HOARDER = """
import sys, lmdb
environment = lmdb.open(sys.argv[1], max_readers=512)
held = [environment.begin() for _ in range(int(sys.argv[2]))]
print(flush=True)
sys.stdin.readline()
"""


def hoard(root: Path, count: int) -> "subprocess.Popen[str]":
    process = start(HOARDER, data_of(root).parent, str(count))
    assert process.stdout
    process.stdout.readline()
    return process


def test_places_of_killed_readers_are_taken_again(tmp_path: Path) -> None:
    index = make(tmp_path)
    add(index, "a")
    with hoard(tmp_path, 512) as process:
        process.kill()
        process.wait()
        assert names_in(index) == {"a"}
        assert process.stdin
        process.stdin.close()
    index.close()


def test_opening_forgets_killed_readers(tmp_path: Path) -> None:
    """What they were reading would never be used again, and the file grow with every write."""
    index = make(tmp_path)
    with hoard(tmp_path, 0) as other:  # keeps the table from being made anew
        with hoard(tmp_path, 3) as process:
            process.kill()
            process.wait()
            assert process.stdin
            process.stdin.close()
        index.close()
        index = generations(tmp_path).open(writable=True)
        assert "no active readers" in environment_of(index).readers()
        other.communicate("\n")
    index.close()


def environment_of(index: LmdbIndex) -> lmdb.Environment:
    handle = index._attached()._handle
    assert handle is not None
    return handle


def test_a_full_table_of_living_readers_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = make(tmp_path)
    add(index, "a")
    free = Environment._free_readers
    with hoard(tmp_path, 512) as process:

        def let_go(environment: Environment) -> None:
            process.communicate("\n")
            free(environment)

        monkeypatch.setattr(Environment, "_free_readers", let_go)
        assert names_in(index) == {"a"}
    index.close()


def test_more_threads_than_a_table_of_readers_has_places(tmp_path: Path) -> None:
    index = make(tmp_path)
    add(index, "a")
    barrier = threading.Barrier(40)
    with hoard(tmp_path, 500) as process:
        wrong: list[Any] = []

        def read() -> None:
            barrier.wait()
            for _ in range(20):
                wrong.extend({"a"} ^ names_in(index))

        threads = [threading.Thread(target=read) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        process.communicate("\n")
    index.close()


# --- other processes ------------------------------------------------------------------------------------------------

WRITER = f"""{PREAMBLE}
index = generations(root).open(writable=True)
for name in sys.stdin:
    index.write(lambda writer: writer.add_commit(row(name.strip())))
    print(flush=True)
"""


def test_d16_what_another_process_writes_is_seen_at_once(tmp_path: Path) -> None:
    index = make(tmp_path)
    with start(WRITER, tmp_path) as process:
        assert process.stdin
        assert process.stdout
        for name in ("a", "b", "c"):
            print(name, file=process.stdin, flush=True)
            process.stdout.readline()
            assert index.commit(commit_id(name))
            add(index, f"{name}-too")
        process.stdin.close()
    assert [found.sequence for found in index.commits_since(0)] == [1, 2, 3, 4, 5, 6]
    index.close()


def test_a_process_killed_while_writing_holds_nobody_up(tmp_path: Path) -> None:
    index = make(tmp_path)
    killed = f"""{PREAMBLE}
generations(root).open(writable=True).write(lambda writer: (writer.add_commit(row("a")), os.kill(os.getpid(), 9)))
"""
    with start(killed, tmp_path) as process:
        process.communicate()
    add(index, "b")
    assert names_in(index) == {"b"}
    index.close()


REINDEX = f"{PREAMBLE}generations(root, lambda writer: writer.add_commit(row('rebuilt'))).rebuild()"


def test_d16_after_a_rebuild_by_another_process_all_go_on_with_the_new_index(tmp_path: Path) -> None:
    index = make(tmp_path)
    second = generations(tmp_path).open(writable=True)
    add(index, "old")
    run(REINDEX, tmp_path)
    add(index, "new")
    assert names_in(index) == names_in(second) == {"rebuilt", "new"}
    assert index.path == second.path == data_of(tmp_path).parent
    index.close()
    second.close()


def test_d16_a_rebuild_that_died_before_it_removed_the_old_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = make(tmp_path)
    monkeypatch.setattr("store.opening.generations.shutil.rmtree", lambda *_, **__: None)
    generations(tmp_path, lambda writer: writer.add_commit(row("rebuilt")) and None).rebuild()
    add(index, "new")
    assert names_in(index) == {"rebuilt", "new"}
    index.close()


def test_d16_a_listing_goes_on_through_a_rebuild(tmp_path: Path) -> None:
    index = make(tmp_path, nothing)
    index.write(lambda writer: [writer.add_commit(row(f"c{number}")) for number in range(1001)])
    listing = index.commits_since(0)
    next(listing)
    run(REINDEX, tmp_path)
    assert len(list(listing)) == 999  # the page that was read; the new index has nothing beyond
    index.close()


def test_d16_a_write_waits_for_a_rebuild_and_goes_into_the_new_index(tmp_path: Path) -> None:
    index = make(tmp_path)
    writing = threading.Thread(target=add, args=(index, "waited"))
    rebuilding = f"""{PREAMBLE}
def fill(writer):
    print(flush=True)
    sys.stdin.readline()
    writer.add_commit(row("rebuilt"))
generations(root, fill).rebuild()
"""
    with start(rebuilding, tmp_path) as process:
        assert process.stdout
        process.stdout.readline()
        writing.start()
        process.communicate("\n")
    writing.join()
    assert names_in(index) == {"rebuilt", "waited"}
    index.close()


def test_d16_rebuilds_under_a_writing_process_lose_nothing_it_wrote_to_packs(tmp_path: Path) -> None:
    """Of each write the index keeps what the packs hold, and here they hold all."""
    log = tmp_path / "packs"
    log.touch()

    def fill(writer: IndexWriter) -> None:
        for name in log.read_text(encoding="utf-8").split():
            writer.add_commit(row(name))

    index = make(tmp_path, fill)
    done = threading.Event()

    def rebuild() -> None:
        while not done.is_set():
            generations(tmp_path, fill).rebuild()

    rebuilding = threading.Thread(target=rebuild)
    rebuilding.start()
    for number in range(30):
        with log.open("a", encoding="utf-8") as packs:
            packs.write(f"c{number}\n")
        add(index, f"c{number}")
        assert index.commit(commit_id(f"c{number}"))
    done.set()
    rebuilding.join()
    assert names_in(index) == {f"c{number}" for number in range(30)}
    index.close()
