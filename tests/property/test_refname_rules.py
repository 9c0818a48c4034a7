"""Our rules for ref names against git's own judgement."""

import re
import shutil
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from store.limits import MAX_REF_NAME_BYTES
from store.naming.refnames import KINDS, problem_with

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="compares with git")

AWKWARD = [*"ab./@{~^:*[\\- é\x7f", "..", "//", ".lock", "@{"]
names = st.lists(st.sampled_from(AWKWARD), min_size=1, max_size=6).map("".join) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8
)


def git_allows(name: str) -> bool:
    command = ["git", "check-ref-format", f"refs/heads/{name}"]
    return subprocess.run(command, check=False).returncode == 0


def we_are_stricter(name: str) -> bool:
    """The rules that git lacks, written another way than in the code."""
    return (
        name[0] == "-"
        or name in {"HEAD", "@"}
        or name.split("/", 1)[0] in KINDS
        or re.fullmatch(r"([0-9a-f]{40}|[0-9a-f]{64})", name.lower()) is not None
        or len(name.encode()) > MAX_REF_NAME_BYTES
        or any(0x80 <= ord(character) < 0xA0 for character in name)
    )


@needs_git
@example("a" * 40)
@example("tags/x")
@example("HEAD")
@example("a.lock")
@example("a\x85b")
@example("x@{1}")
@given(names)
def test_legal_for_git_and_not_among_our_own_rules(name: str) -> None:
    assert (problem_with(name) is None) == (git_allows(name) and not we_are_stricter(name))
