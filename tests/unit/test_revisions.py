import pytest

from store.errors import Incompatible
from store.naming.revisions import AtStep, Back, Base, Logged, Move, Named, Parent, Revision, parse

READINGS: dict[str, tuple[Base, list[Move]]] = {
    "main": (Named("main"), []),
    "HEAD": (Named("HEAD"), []),
    "@": (Named("HEAD"), []),
    "@~2": (Named("HEAD"), [Back(2)]),
    "main~3": (Named("main"), [Back(3)]),
    "main~": (Named("main"), [Back(1)]),
    "main^": (Named("main"), [Parent(1)]),
    "main^^2~03": (Named("main"), [Parent(1), Parent(2), Back(3)]),
    "main^0": (Named("main"), [Parent(0)]),
    "@{2}": (Logged(None, 2), []),
    "HEAD@{2}~1": (Logged("HEAD", 2), [Back(1)]),
    "exp/lr3@{0}": (Logged("exp/lr3", 0), []),
    "step:5000": (AtStep(None, 5000), []),
    "exp/lr3@step:800": (AtStep("exp/lr3", 800), []),
    "exp/lr3@step:800~2": (AtStep("exp/lr3", 800), [Back(2)]),
    "user@host@step:1": (AtStep("user@host", 1), []),
    "tags/best^2": (Named("tags/best"), [Parent(2)]),
    "remotes/origin/main": (Named("remotes/origin/main"), []),
    "ABCD1234": (Named("ABCD1234"), []),
    "ab" * 32: (Named("ab" * 32), []),
}

REFUSED = {
    "": "it names nothing",
    "~3": "it names nothing",
    "main~x": "should be made of",
    "main~-1": "should be made of",
    "main~3@{1}": "should be made of",
    "main@{}": "belongs a number",
    "main@{yesterday}": "belongs a number",
    "@{-1}": "belongs a number",
    "step:": "after step: belongs a number",
    "step:x": "after step: belongs a number",
    "main@step:1e3": "after step: belongs a number",
    "@step:5": "must not be empty",
    "main@{1}@{2}": "not allowed",
    "footstep:5": "':' is not allowed",
    "a b": "' ' is not allowed",
    "main:weights": "':' is not allowed",
    "main..lr3": "'..' is not allowed",
    "-n": "read as an option",
    "branches/": "must not begin or end with",
    "main~" + "9" * 5000: "should be made of",
    "step:" + "9" * 5000: "belongs a number",
    "ab" * 33 + " ": "not allowed",
}


@pytest.mark.parametrize("text", READINGS)
def test_reading(text: str) -> None:
    base, moves = READINGS[text]
    assert parse(text) == Revision(base, tuple(moves))


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:16] or "empty")
def test_refused_with_the_reason(text: str) -> None:
    with pytest.raises(Incompatible) as refusal:
        parse(text)
    assert REFUSED[text] in str(refusal.value)
