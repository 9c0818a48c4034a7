import re

from hypothesis import given
from hypothesis import strategies as st

from store.errors import Incompatible
from store.naming.refnames import problem_with
from store.naming.revisions import AtStep, Back, Logged, Named, Parent, Revision, parse

words = st.from_regex(re.compile(r"[a-z0-9@.+é]{1,8}"), fullmatch=True)
short_names = st.lists(words, min_size=1, max_size=3).map("/".join).filter(lambda name: problem_with(name) is None)
hexes = st.from_regex(re.compile(r"[0-9a-f]{4,64}"), fullmatch=True)
full_names = st.tuples(st.sampled_from(["branches", "tags", "remotes/origin"]), short_names).map("/".join)
base_names = st.just("HEAD") | short_names | hexes | full_names
numbers = st.integers(0, 10**18 - 1)
bases = (
    st.builds(Named, base_names)
    | st.builds(Logged, st.none() | base_names, numbers)
    | st.builds(AtStep, st.none() | base_names, numbers)
)
moves = st.builds(Back, numbers) | st.builds(Parent, numbers)
revisions = st.builds(Revision, bases, st.lists(moves, max_size=4).map(tuple))

signs = st.sampled_from(["~", "^", "@", "{", "}", ":", "step:", "main", "7", "/", "HEAD", "@{", "abcd", "-", " "])
texts = st.text(max_size=20) | st.lists(signs, max_size=8).map("".join)


@given(revisions)
def test_what_is_written_parses_to_the_same(revision: Revision) -> None:
    assert parse(str(revision)) == revision


@given(texts)
def test_any_text_is_a_revision_or_refused(text: str) -> None:
    try:
        revision = parse(text)
    except Incompatible:
        return
    assert parse(str(revision)) == revision
