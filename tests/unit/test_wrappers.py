"""Names without what wrappers put in front of them."""

from collections import OrderedDict
from typing import Any

import pytest
import torch

from moonclip.state.wrappers import bare, canonical_names, canonical_state, respelled_paths, respelling


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["_orig_mod.a.w", "_orig_mod.b"], ["a.w", "b"]),
        (["module.a", "module.b.w"], ["a", "b.w"]),
        (["module._orig_mod.a", "module._orig_mod.b"], ["a", "b"]),
        (["_orig_mod.module.a", "_orig_mod.module.b"], ["a", "b"]),
        (["module.module.a"], ["a"]),
        (["a._checkpoint_wrapped_module.w", "b"], ["a.w", "b"]),
        (["_fsdp_wrapped_module.a._fsdp_wrapped_module._orig_mod.w"], ["a.w"]),
        (["a.module.w", "b"], ["a.module.w", "b"]),  # one's own, for all that anybody can tell
        (["module.w", "b"], ["module.w", "b"]),
        (["my_orig_mod.w"], ["my_orig_mod.w"]),
        ([], []),
    ],
)
def test_g9_what_wrappers_put_in_front_is_taken_off(given: list[str], expected: list[str]) -> None:
    assert canonical_names(given) == dict(zip(given, expected, strict=True))


@pytest.mark.parametrize("names", [["module.x", "x"], ["_orig_mod.x", "x", "_orig_mod.y"]])
def test_g9_names_that_would_become_one_all_stay(names: list[str]) -> None:
    assert canonical_names(names) == {name: name for name in names}


def test_g9_a_state_dict_and_what_it_says_of_its_modules() -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    state: Any = torch.nn.DataParallel(inner).state_dict()
    found = canonical_state(state)
    expected: Any = inner.state_dict()
    assert list(found) == list(expected)
    assert all(tensor is state[f"module.{name}"] for name, tensor in found.items())
    assert found._metadata == expected._metadata


def test_g9_only_a_modules_state_dict_is_touched() -> None:
    for state in ({"module.x": 1}, OrderedDict({"module.x": 1}), [1], torch.nn.Linear(1, 1).state_dict()):
        assert canonical_state(state) is state


def test_bare_names_for_comparing() -> None:
    assert bare("model/module.a/gen.module.w") == "model/a/gen.w"
    assert bare("module.0") == "~s0"  # the text, as names have it
    assert bare("amodule.w") == "amodule.w"


def test_a_target_spells_names_its_own_way_if_there_is_but_one() -> None:
    assert respelling(["a.w", "b"], ["_orig_mod.a.w", "b"]) == {"a.w": "_orig_mod.a.w"}
    assert respelling(["module.a", "b"], ["a", "b"]) == {"module.a": "a"}
    assert respelling(["module.a", "_orig_mod.a"], ["a"]) == {}
    assert respelling(["a"], ["module.a", "_orig_mod.a"]) == {}
    assert respelling(["a", "module.a"], ["a"]) == {}


def test_versions_of_wrapped_modules_are_found() -> None:
    found = respelled_paths({"": {"version": 1}, "bn": {"version": 2}}, ["", "module", "module.bn"])
    assert found["module.bn"] == {"version": 2}
    assert found["module"] == {"version": 1}
