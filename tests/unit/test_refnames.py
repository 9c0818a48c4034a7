import pytest

from store.errors import Incompatible
from store.limits import MAX_REF_NAME_BYTES
from store.naming.refnames import (
    branch_name,
    describe,
    full_name,
    is_full_name,
    problem_with,
    remote_name,
    short_name,
    tag_name,
)

LEGAL = ["main", "exp/lr3", "a@b", "v1.0", "ünïcode", "main+1a2b3c4d", "x.lock.y", "HEAD/x", "deadbeef", "a-", "step"]

ILLEGAL = {
    "empty": "",
    "space": "a b",
    "control": "a\nb",
    "delete": "a\x7f",
    "c1-control": "a\x9bb",
    "lone-surrogate": "a\ud800",
    "ancestor": "a~1",
    "parent": "a^",
    "colon": "a:b",
    "step": "step:5",
    "at-step": "main@step:5",
    "glob": "a*",
    "question": "a?",
    "bracket": "a[b",
    "backslash": "a\\b",
    "reflog": "a@{1}",
    "dots": "a..b",
    "double-slash": "a//b",
    "leading-slash": "/a",
    "trailing-slash": "a/",
    "trailing-dot": "a.",
    "hidden": "a/.b",
    "lock": "a.lock/b",
    "option": "-a",
    "head": "HEAD",
    "at": "@",
    "full-branch": "branches/a",
    "full-tag": "tags/a",
    "kind-alone": "remotes",
    "sha1": "0123456789abcdefABCD" * 2,
    "sha256": "ab" * 32,
    "long": "é" * (MAX_REF_NAME_BYTES // 2 + 1),
    "escape": "../../etc/passwd",
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_names_become_full_names_and_back(name: str) -> None:
    assert problem_with(name) is None
    for ref in (branch_name(name), tag_name(name), remote_name("origin", name)):
        assert full_name(ref) == ref
    assert short_name(branch_name(name)) == name
    assert short_name(remote_name("origin", name)) == f"origin/{name}"


@pytest.mark.parametrize("name", ILLEGAL.values(), ids=ILLEGAL.keys())
def test_illegal_names_are_refused_everywhere(name: str) -> None:
    for make in (branch_name, tag_name, lambda short: remote_name("origin", short)):
        with pytest.raises(Incompatible):
            make(name)
    assert not is_full_name(f"branches/{name}")


def test_longest_name_is_allowed() -> None:
    assert problem_with("x" * MAX_REF_NAME_BYTES) is None


@pytest.mark.parametrize("text", ["main", "heads/main", "branches", "branches/", "remotes/origin", "refs/branches/a"])
def test_full_name_needs_kind_and_name(text: str) -> None:
    assert not is_full_name(text)


def test_remote_without_slash() -> None:
    with pytest.raises(Incompatible, match="'/' is not allowed"):
        remote_name("a/b", "main")


def test_messages_name_the_kind() -> None:
    assert describe(branch_name("a")) == "branch 'a'"
    assert describe(tag_name("a")) == "tag 'a'"
    assert describe(remote_name("o", "a")) == "remote branch 'o/a'"
    with pytest.raises(Incompatible, match="tag name 'a b': ' ' is not allowed"):
        tag_name("a b")
