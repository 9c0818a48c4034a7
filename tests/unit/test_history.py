import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from store.history.walks import GraphRow, first_parents, graph, newest_first, reached_among
from store.ids import CommitId, ObjectId
from tests.descriptors import left_open


def commit_id(number: int) -> CommitId:
    return CommitId(ObjectId(number.to_bytes(32, "big")))


@dataclass(frozen=True)
class Node:
    id: CommitId
    parents: tuple[CommitId, ...]
    sequence: int
    step: int | None = None


class Graph:
    """Commits by number, with how often each was asked for."""

    def __init__(self, parents: dict[int, list[int]]) -> None:
        self.nodes = {
            commit_id(number): Node(commit_id(number), tuple(map(commit_id, above)), number)
            for number, above in parents.items()
        }
        self.asked: list[CommitId] = []

    def commit(self, commit: CommitId) -> Node | None:
        self.asked.append(commit)
        return self.nodes.get(commit)


def numbers(rows: Iterable[Node]) -> list[int]:
    return [row.sequence for row in rows]


#   1 ─ 2 ─ 4 ─ 6 ─ 8      with a merge of 5 into 6, and 7 on 5
#    └─ 3 ─ 5 ─ 7
FORKED = {1: [], 2: [1], 3: [1], 4: [2], 5: [3], 6: [4, 5], 7: [5], 8: [6]}

histories = st.lists(st.lists(st.integers(0, 20), max_size=3), min_size=1, max_size=20).map(
    lambda links: {n: sorted({link % n for link in row} if n else set(), reverse=True) for n, row in enumerate(links)}
)


def test_first_parents_follow_one_line() -> None:
    assert numbers(first_parents(Graph(FORKED), commit_id(8))) == [8, 6, 4, 2, 1]


def test_newest_first_gives_each_commit_once() -> None:
    source = Graph(FORKED)
    assert numbers(newest_first(source, [commit_id(7), commit_id(8), commit_id(6)])) == [8, 7, 6, 5, 4, 3, 2, 1]
    assert sorted(source.asked) == sorted(source.nodes)


def test_walks_end_where_history_was_not_fetched() -> None:
    shallow = {number: parents for number, parents in FORKED.items() if number not in (2, 3)}
    assert numbers(first_parents(Graph(shallow), commit_id(8))) == [8, 6, 4]
    assert numbers(newest_first(Graph(shallow), [commit_id(8)])) == [8, 6, 5, 4]


def test_a_walk_asks_for_no_more_than_it_gives() -> None:
    source = Graph({0: []} | {number: [number - 1] for number in range(1, 1000)})
    rows = newest_first(source, [commit_id(999)])
    assert [next(rows).sequence for _ in range(3)] == [999, 998, 997]
    assert len(source.asked) == 3


def test_d13_a_paused_walk_holds_nothing_open() -> None:
    writing = threading.Lock()

    class Transactions(Graph):
        """Reads under a lock and with a file open, as an index does under a transaction."""

        def commit(self, commit: CommitId) -> Node | None:
            with writing, Path(os.devnull).open("rb"):
                return super().commit(commit)

    source = Transactions(FORKED)
    walks = [newest_first(source, [commit_id(8)]), first_parents(source, commit_id(8))]
    rows = [*walks, *(graph(newest_first(source, [commit_id(8)])) for _ in range(2))]
    with left_open():
        for walk in rows:
            next(walk)
    assert writing.acquire(blocking=False)
    writing.release()
    assert [len(list(walk)) for walk in rows] == [6, 4, 6, 6]


def test_reached_among_stops_at_the_oldest_wanted() -> None:
    source = Graph(FORKED | {9: []})
    wanted = [commit_id(number) for number in (6, 7, 9, 77)]
    assert reached_among(source, [commit_id(8)], wanted) == {commit_id(6)}
    assert commit_id(2) not in source.asked


def test_reached_among_nothing() -> None:
    assert reached_among(Graph(FORKED), [commit_id(8)], []) == set()


@given(histories, st.data())
def test_walks_agree_with_a_plain_closure(parents: dict[int, list[int]], data: st.DataObject) -> None:
    tips = data.draw(st.lists(st.sampled_from(sorted(parents)), max_size=3))
    wanted = data.draw(st.lists(st.sampled_from(sorted(parents)), max_size=3))
    closure, pending = set(), list(tips)
    while pending:
        number = pending.pop()
        closure.add(number)
        pending.extend(parents[number])
    source, tip_ids = Graph(parents), list(map(commit_id, tips))
    assert numbers(newest_first(source, tip_ids)) == sorted(closure, reverse=True)
    found = reached_among(source, tip_ids, map(commit_id, wanted))
    assert found == {commit_id(number) for number in closure & set(wanted)}


def drawn(row: GraphRow[Node]) -> tuple[int, int, list[int | None]]:
    lanes = [None if lane is None else int.from_bytes(lane, "big") for lane in row.after]
    return row.row.sequence, row.column, lanes


def test_graph_of_a_fork_and_a_merge() -> None:
    rows = newest_first(Graph(FORKED), [commit_id(7), commit_id(8)])
    assert list(map(drawn, graph(rows))) == [
        (8, 0, [6]),
        (7, 1, [6, 5]),
        (6, 0, [4, 5]),
        (5, 1, [4, 3]),
        (4, 0, [2, 3]),
        (3, 1, [2, 1]),
        (2, 0, [1]),
        (1, 0, []),
    ]


@given(histories)
def test_graph_lanes_lead_from_every_commit_to_its_parents(parents: dict[int, list[int]]) -> None:
    source = Graph(parents)
    rows = list(graph(newest_first(source, source.nodes)))
    open_lanes: tuple[CommitId | None, ...] = ()
    for row in rows:
        assert row.before == open_lanes
        assert row.row.id not in row.after
        assert set(row.row.parents) <= set(row.after)
        assert len([lane for lane in row.after if lane]) == len({lane for lane in row.after if lane})
        open_lanes = row.after
    assert not any(open_lanes)
