from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from store.disk.files import Files
from store.errors import Ambiguous, MoonclipError, NotFound
from store.ids import CommitId, ObjectId
from store.naming.reflog import ReflogLine
from store.naming.refnames import RefName
from store.naming.refs import RefStore
from store.naming.resolve import resolve


def commit_id(number: int) -> CommitId:
    return CommitId(ObjectId(bytes.fromhex(f"c0ff{number:04d}".ljust(64, "e"))))


@dataclass(frozen=True)
class Node:
    id: CommitId
    parents: tuple[CommitId, ...]
    sequence: int
    step: int | None


class Commits:
    def __init__(self, parents: dict[int, list[int]]) -> None:
        self.nodes = {
            commit_id(number): Node(commit_id(number), tuple(map(commit_id, above)), number, number * 100)
            for number, above in parents.items()
        }

    def commit(self, commit: CommitId) -> Node | None:
        return self.nodes.get(commit)

    def commits_with_prefix(self, prefix: str) -> Iterable[CommitId]:
        return [commit for commit in self.nodes if commit.hex().startswith(prefix)]


class Refs:
    def __init__(self, refs: dict[str, int], logs: dict[str, list[int | None]]) -> None:
        self._refs = {RefName(name): commit_id(number) for name, number in refs.items()}
        self._logs = logs

    def read(self, name: RefName) -> CommitId | None:
        return self._refs.get(name)

    def names(self) -> list[RefName]:
        return list(self._refs)

    def head(self) -> str:
        return "main"

    def reflog(self, name: str) -> tuple[ReflogLine, ...]:
        values = [None if number is None else commit_id(number) for number in self._logs.get(name, [])]
        pairs = zip([None, *values], values, strict=False)
        return tuple(ReflogLine(old, new, 0, "commit", "") for old, new in pairs)[::-1]

    def roots(self) -> set[CommitId]:
        logged = {commit_id(number) for log in self._logs.values() for number in log if number is not None}
        return logged | set(self._refs.values())


#   1 ─ 2 ─ 4 ─ 6 ─ 8 main     5 merged into 6; 9 reached by nothing, 10 by a reflog only
#    └─ 3 ─ 5 ─ 7 exp/lr3
COMMITS = Commits({1: [], 2: [1], 3: [1], 4: [2], 5: [3], 6: [4, 5], 7: [5], 8: [6], 9: [], 10: [8], 12: [99]})
REFS = Refs(
    {
        "branches/main": 8,
        "branches/exp/lr3": 7,
        "branches/same": 1,
        "branches/abcdef": 2,
        "branches/shallow": 12,
        "tags/best": 4,
        "tags/same": 2,
        "remotes/origin/main": 6,
    },
    {
        "branches/main": [4, 10, 6, 8],
        "branches/gone": [3, None],
        "HEAD": [7, 8],
    },
)

FOUND = {
    "main": 8,
    "HEAD": 8,
    "@": 8,
    "@~1": 6,
    "best": 4,
    "origin/main": 6,
    "remotes/origin/main": 6,
    "same": 2,
    "tags/same": 2,
    "branches/same": 1,
    "abcdef": 2,
    "main~0": 8,
    "main~1": 6,
    "main~4": 1,
    "main^0": 8,
    "main~^2": 5,
    "main~1^2~1": 3,
    "main@{0}": 8,
    "main@{1}": 6,
    "main@{2}": 10,
    "main@{2}~1": 8,
    "HEAD@{1}": 7,
    "gone@{1}": 3,
    "branches/gone@{1}": 3,
    "step:400": 4,
    "main@step:100": 1,
    "exp/lr3@step:500": 5,
    "exp/lr3@step:500~1": 3,
    "HEAD@step:800": 8,
    "c0ff0005": 5,
    "C0FF0005": 5,
    "c0ff0010": 10,
    "c0ff0003e": 3,
    commit_id(9).hex(): 9,
}

MISSING = {
    "mian": "no branch, tag or commit 'mian'; did you mean 'main'?",
    "lr3": "no branch, tag or commit 'lr3'; did you mean 'exp/lr3'?",
    "exp/lr4": "no branch, tag or commit 'exp/lr4'; did you mean 'exp/lr3'?",
    "branches/mian": "no branch 'mian'; did you mean 'branches/main'?",
    "tags/main": "no tag 'main'",
    "zzz": "no branch, tag or commit 'zzz'",
    "c0ff0009": "no branch, tag or commit 'c0ff0009'",
    "dead": "no branch, tag or commit 'dead'",
    "ee" * 32: "no commit eeee",
    "main~5": "'main~5': history ends 4 commits before c0ff0008",
    "main^2": "commit c0ff0008 has 1 parent",
    "best~2^": "commit c0ff0001 has 0 parents",
    "shallow~2": "commit c0ff0099 is not here",
    "main@{4}": "the reflog of branch 'main' has 4 values",
    "exp/lr3@{0}": "the reflog of branch 'exp/lr3' has 0 values",
    "gone@{0}": "branch 'gone' had no commit then; @{1} is what it held before",
    "nowhere@{0}": "no branch, tag or commit 'nowhere'",
    "step:450": "no commit of step 450 on branch 'main'; the nearest are 400 and 600",
    "exp/lr3@step:800": "no commit of step 800 on 'exp/lr3'; the nearest are 500 and 700",
}


@pytest.mark.parametrize("text", FOUND)
def test_resolves(text: str) -> None:
    assert resolve(COMMITS, REFS, text) == commit_id(FOUND[text])


@pytest.mark.parametrize("text", MISSING)
def test_not_found_says_why_and_what_is_near(text: str) -> None:
    with pytest.raises(NotFound) as missing:
        resolve(COMMITS, REFS, text)
    assert MISSING[text] in str(missing.value)
    assert missing.value.details["revision"] == text


def test_the_bound_branch_is_what_revisions_without_a_name_speak_of() -> None:
    assert resolve(COMMITS, REFS, "step:500", "exp/lr3") == commit_id(5)
    assert resolve(COMMITS, REFS, "@{1}", "gone") == commit_id(3)
    assert resolve(COMMITS, REFS, "HEAD", "exp/lr3") == resolve(COMMITS, REFS, "exp/lr3") != commit_id(8)
    assert resolve(COMMITS, REFS, "HEAD@{1}", "gone") == commit_id(3)


def test_step_is_the_newest_of_that_step() -> None:
    commits = Commits({1: [], 2: [1], 3: [2]})
    commits.nodes = {key: Node(node.id, node.parents, node.sequence, 7) for key, node in commits.nodes.items()}
    assert resolve(commits, Refs({"branches/main": 3}, {}), "step:7") == commit_id(3)


@pytest.mark.parametrize(("pruned", "found"), [([], 3), ([3], 1), ([1], 3), ([3, 1], 3)])
def test_of_a_step_what_was_not_pruned_comes_first(pruned: list[int], found: int) -> None:
    commits = Commits({1: [], 2: [1], 3: [2]})
    commits.nodes = {key: replace(node, step=8 if node.sequence == 2 else 7) for key, node in commits.nodes.items()}
    gone = set(map(commit_id, pruned))
    refs = Refs({"branches/main": 3}, {})
    assert resolve(commits, refs, "step:7", is_pruned=gone.__contains__) == commit_id(found)


def test_ambiguous_lists_the_candidates_that_can_be_seen() -> None:
    with pytest.raises(Ambiguous) as ambiguous:
        resolve(COMMITS, REFS, "c0ff00")
    candidates = ambiguous.value.details["candidates"]
    assert candidates == [commit_id(number).hex() for number in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)]
    assert f"  {commit_id(7).hex()[:16]} step 700" in str(ambiguous.value)


def test_a_long_list_of_candidates_is_cut_in_the_message_only() -> None:
    commits = Commits({0: []} | {number: [number - 1] for number in range(1, 15)})
    with pytest.raises(Ambiguous, match="and 5 more") as ambiguous:
        resolve(commits, Refs({"branches/main": 14}, {}), "c0ff")
    assert len(ambiguous.value.details["candidates"]) == 15


def test_head_of_a_store_without_commits() -> None:
    with pytest.raises(NotFound, match="'HEAD': branch 'main' has no commit yet"):
        resolve(Commits({}), Refs({}, {}), "HEAD")
    with pytest.raises(NotFound, match=r"has no commit yet; there are: chat, llama$"):
        resolve(Commits({1: []}), Refs({"branches/llama": 1, "branches/chat": 1, "tags/x": 1}, {}), "HEAD")


def test_a_prefix_too_short_is_no_prefix() -> None:
    with pytest.raises(MoonclipError, match="no branch, tag or commit 'c0f'"):
        resolve(COMMITS, REFS, "c0f")


def test_head_and_branch_have_pasts_of_their_own(tmp_path: Path) -> None:
    refs = RefStore(tmp_path, Files())
    refs.set_head("main")
    refs.update("branches/main", None, commit_id(1), "commit")
    refs.update("branches/main", commit_id(1), commit_id(2), "commit")
    refs.update("branches/exp/lr3", None, commit_id(5), "branch")
    refs.set_head("exp/lr3")
    refs.update("branches/main", commit_id(2), commit_id(4), "commit")
    found = {text: resolve(COMMITS, refs, text) for text in ("HEAD", "HEAD@{1}", "HEAD@{2}", "main@{1}", "@{0}")}
    expected = {"HEAD": 5, "HEAD@{1}": 2, "HEAD@{2}": 1, "main@{1}": 2, "@{0}": 5}
    assert found == {text: commit_id(number) for text, number in expected.items()}
    assert resolve(COMMITS, refs, "c0ff0001") == commit_id(1)
