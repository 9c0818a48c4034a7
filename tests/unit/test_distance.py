"""How far two lines of history have gone apart."""

from hypothesis import given
from hypothesis import strategies as st

from store.history.distance import Distance, distance
from store.history.walks import newest_first
from store.ids import CommitId, ObjectId
from store.index import CommitRow


def commit_id(number: int) -> CommitId:
    return CommitId(ObjectId(number.to_bytes(32, "big")))


class Graph:
    """Commits by number, with how many were asked for."""

    def __init__(self, parents: dict[int, list[int]]) -> None:
        self.rows = {
            commit_id(n): CommitRow(commit_id(n), tuple(map(commit_id, above)), n, 0, "main", n)
            for n, above in parents.items()
        }
        self.asked_count = 0

    def commit(self, commit: CommitId) -> CommitRow | None:
        self.asked_count += 1
        return self.rows.get(commit)


def between(graph: Graph, ours: int, theirs: int) -> Distance:
    return distance(graph, commit_id(ours), commit_id(theirs))


#   1 ─ 2 ─ 4 ─ 6 ─ 8      with a merge of 5 into 6, and 7 on 5
#    └─ 3 ─ 5 ─ 7
FORKED = {1: [], 2: [1], 3: [1], 4: [2], 5: [3], 6: [4, 5], 7: [5], 8: [6]}

histories = st.lists(st.lists(st.integers(0, 20), max_size=3), min_size=1, max_size=20).map(
    lambda links: {n: sorted({link % n for link in row} if n else set()) for n, row in enumerate(links)}
)


def test_lines_of_history() -> None:
    graph = Graph(FORKED)
    assert between(graph, 8, 8) == (0, 0)
    assert between(graph, 8, 6) == (1, 0)
    assert between(graph, 2, 8) == (0, 5)
    assert between(graph, 7, 8) == (1, 4)
    assert between(graph, 4, 7) == (2, 3)


def test_what_was_not_fetched_ends_a_line() -> None:
    graph = Graph({number: parents for number, parents in FORKED.items() if number not in (2, 3)})
    assert between(graph, 8, 7) == (3, 1)
    assert between(graph, 8, 99) == (4, 0)


def test_a_long_shared_past_is_not_walked() -> None:
    graph = Graph({0: []} | {number: [number - 1] for number in range(1, 1000)} | {1000: [998]})
    assert between(graph, 999, 1000) == (1, 1)
    assert graph.asked_count < 10


@given(histories, st.data())
def test_it_is_what_each_reaches_alone(parents: dict[int, list[int]], data: st.DataObject) -> None:
    ours, theirs = (data.draw(st.sampled_from(sorted(parents))) for _ in range(2))
    graph = Graph(parents)
    mine, yours = ({row.id for row in newest_first(graph, [commit_id(tip)])} for tip in (ours, theirs))
    assert between(graph, ours, theirs) == (len(mine - yours), len(yours - mine))
