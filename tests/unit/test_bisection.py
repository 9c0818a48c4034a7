"""Finding the first bad commit of a line."""

from math import ceil, log2

from hypothesis import given
from hypothesis import strategies as st

from store.history.bisection import Bisection


@given(st.data())
def test_the_first_bad_one_is_found_by_as_few_tries_as_can_be(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 200))
    first_bad = data.draw(st.integers(0, length - 1))
    search, tries = Bisection(range(length)), 0
    while (tried := search.next()) is not None:
        tries += 1
        (search.bad if tried >= first_bad else search.good)()
    assert list(search.suspects) == [first_bad]
    assert tries <= ceil(log2(length)) if length > 1 else tries == 0


@given(st.data())
def test_with_some_that_cannot_be_tried_the_first_bad_one_stays_suspect(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 40))
    first_bad = data.draw(st.integers(0, length - 1))
    untestable = data.draw(st.sets(st.integers(0, length - 1)))
    search = Bisection(range(length))
    while (tried := search.next()) is not None:
        if tried in untestable:
            search.skip()
        else:
            (search.bad if tried >= first_bad else search.good)()
    assert first_bad in search.suspects
    assert set(search.suspects) - {search.suspects[-1]} <= untestable  # whatever could be tried has been
