"""Commands where a server cannot compare and swap, so that each store has refs of its own there."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from store.ids import CommitId, short
from store.naming.refnames import RefName
from store.remotes.configured import store_id
from store.repository import Repository
from tests.stores import History, commit

Out = Callable[..., str]
Run = Callable[..., Result]


@dataclass(frozen=True)
class Apart:
    """Two stores that went on from one commit, and pushed.

    Attributes:
        other: the second store.
        own: id of the first one.
        others: id of the second.
        mine: what the first has on main.
        theirs: what the second has.
    """

    other: Path
    own: str
    others: str
    mine: CommitId
    theirs: CommitId


def saved(root: Path, step: int) -> tuple[str, CommitId]:
    with Repository.open(root) as repo:
        return store_id(repo.layout, repo.files), commit(repo, step=step)


@pytest.fixture
def apart(past: History, output: Out, tmp_path: Path) -> Apart:
    there, other = tmp_path / "there", tmp_path / "other"
    there.mkdir()
    (there / "format").write_text(json.dumps({"needs": ["moonclip-remote-1"], "refs": "by-store"}))
    output("remote", "add", "origin", there)
    output("push")
    output("clone", there, other)
    own, mine = saved(past.root, 400)
    others, theirs = saved(other, 500)
    output("push")
    output("-C", other, "push")
    return Apart(other, own, others, mine, theirs)


def test_each_has_its_own(output: Out, document: Callable[..., Any], apart: Apart) -> None:
    names = {apart.own: apart.mine, apart.others: apart.theirs}
    assert output("ls-remote").splitlines() == [
        f"{names[store].hex()}  by/{store}/branches/main" for store in sorted(names)
    ]
    assert {each["store"]: each["commit"] for each in document("ls-remote")} == {
        store: held.hex() for store, held in names.items()
    }
    shown = [re.split(r" {2,}", line)[-2:] for line in output("remote", "show").splitlines()[1:]]
    assert sorted(shown) == sorted([["by this store", "as here"], [f"by {apart.others[:8]}", "not fetched yet"]])


def test_fetch_tells_that_they_went_apart(run: Run, document: Callable[..., Any], apart: Apart) -> None:
    result = run("fetch")
    assert result.exit_code == 0
    assert result.stderr == (
        "warning: stores that push to origin went different ways on 'main'; `moonclip branch -r` has them\n"
    )
    names = {each["name"]: each["commit"] for each in document("branch", "-r")}
    assert names == {"origin/main": apart.mine.hex(), f"origin/{apart.others[:8]}/main": apart.theirs.hex()}


def test_pull_does_not_choose(failure: Out, output: Out, past: History, apart: Apart) -> None:
    advised = re.search(r"`moonclip (merge [^`]+)`", failure("pull"))
    assert advised is not None
    assert f"origin/{apart.others[:8]}/main" in advised[1]
    with Repository.open(past.root, read_only=True) as repo:
        assert repo.refs.read(RefName("branches/main")) == apart.mine
    output(*advised[1].split())
    output("push")
    assert "up to date" in output("pull")


def test_a_clone_of_it_says_what_to_do(failure: Out, tmp_path: Path, apart: Apart) -> None:
    assert "different ways" in failure("clone", tmp_path / "there", tmp_path / "third")


def test_one_that_contains_the_others_is_it(output: Out, past: History, apart: Apart, run: Run) -> None:
    run("-C", apart.other, "fetch")
    output("-C", apart.other, "merge", "--average", "main", f"origin/{apart.own[:8]}/main")
    output("-C", apart.other, "push")
    said = output("pull")
    assert said.splitlines()[-1].startswith("main is at ")
    assert said.endswith(f", was at {short(apart.mine)}\n")
    assert output("log", "-n", "1", "--json") == output("-C", apart.other, "log", "-n", "1", "--json")
