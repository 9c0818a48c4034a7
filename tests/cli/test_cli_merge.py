"""``moonclip merge``."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from store.ids import short
from store.naming.refnames import branch_name
from store.repository import Repository
from tests.stores import History, commit, item, tensor

Out = Callable[..., str]
Document = Callable[..., Any]
Run = Callable[..., Result]


@pytest.fixture
def lines(past: History) -> History:
    """Three lines more, ``a``, ``b`` and ``c``, which begin at one commit."""
    with Repository.open(past.root) as repo:
        start = commit(
            repo, "a", items=[item("model", {"w": tensor(np.zeros(100, "f4").tobytes(), "float32", (100,))})]
        )
        for number, name in enumerate("abc", 1):
            if name != "a":
                repo.set_ref(branch_name(name), None, start, "branch")
            weight = tensor(np.full(100, number, "f4").tobytes(), "float32", (100,))
            steps = tensor(number.to_bytes(8, "little"), "int64", ())
            commit(repo, name, items=[item("model", {"w": weight}), item("counter", {"n": steps})])
    return past


def weight(past: History, revision: str) -> float:
    with Repository.open(past.root, read_only=True) as repo:
        data = repo.read_tensor(repo.tree(repo.commit(repo.resolve(revision)), "model")["w"])  # type: ignore[arg-type]
    (value,) = set(np.frombuffer(data, "f4").tolist())
    return float(value)


def test_on_a_new_branch(output: Out, lines: History) -> None:
    said = output("merge", "a", "b", "c", "--average", "--branch", "soup", "-m", "three")
    assert weight(lines, "soup") == 2
    with Repository.open(lines.root) as repo:
        merged = repo.resolve("soup")
        assert repo.commit(merged).message == "three"
    assert said == f"{short(merged)} on branch soup: 0.333 a + 0.333 b + 0.333 c\n"


def test_on_the_branch_of_the_first(document: Document, lines: History) -> None:
    said = document("merge", "a", "c", "--average", "--weights", "3,1", "--branch", "a")
    assert weight(lines, "a") == 1.5
    with Repository.open(lines.root) as repo:
        parents = [repo.resolve(revision).hex() for revision in ("a~1", "c")]
        merged = repo.resolve("a").hex()
        assert repo.commit(repo.resolve("a")).message == "Average of a, c"
    assert said == {"commit": merged, "branch": "a", "parents": parents, "weights": [0.75, 0.25], "items": ["model"]}


def test_the_graph_shows_both_parents(output: Out, lines: History) -> None:
    output("merge", "a", "b", "--average", "--branch", "a")
    drawn = output("log", "--graph", "--oneline", "a").splitlines()
    assert [line[:5].rstrip().split(" ")[0] for line in drawn][:2] == ["*", "|\\"]
    assert drawn[0].endswith("(a) Average of a, b  average=[0.5, 0.5]")
    assert [line.count("*") for line in drawn].count(1) == 4
    shown = output("show", "a").splitlines()
    assert shown[1].startswith("Parents: ")
    assert len(shown[1].split()) == 3


def test_the_current_branch_has_to_be_at_the_first(failure: Out, output: Out, lines: History) -> None:
    assert "branch 'main' is at " in failure("merge", "a", "b", "--average")
    output("switch", "a")
    output("merge", "HEAD", "b", "--average")
    assert weight(lines, "HEAD") == 1.5


def test_what_has_no_average(failure: Out, output: Out, lines: History) -> None:
    arguments = ("merge", "a", "b", "--average", "--item", "model", "--item", "counter", "--branch", "soup")
    said = failure(*arguments)
    assert "  counter::n (int64 []) differs, and has no average\n" in said
    output(*arguments, "--take-first")
    assert output("show", "soup", "counter::n").splitlines()[-1] == "1"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a", "b"], "Missing option '--average'"),
        (["a", "b", "--average", "--weights", "1;2"], "no list of numbers like 0.5,0.3,0.2"),
        (["--average"], "Missing argument 'A B [C]...'"),
    ],
)
def test_what_is_no_merge(run: Run, lines: History, arguments: list[str], said: str) -> None:
    result = run("merge", *arguments, "--branch", "soup")
    assert result.exit_code == 2
    assert said in result.stderr
    with Repository.open(lines.root) as repo:
        assert repo.refs.read(branch_name("soup")) is None
