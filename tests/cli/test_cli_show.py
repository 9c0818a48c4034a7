"""``moonclip show`` and ``moonclip ls``."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from moonclip.cli.text import size
from store.format.values import Tagged
from store.ids import short
from store.limits import MAX_CHUNK_BYTES
from store.repository import Repository
from store.saving.inputs import ContainerInput, ItemInput
from tests.stores import History, commit, item, noise, tensor

Out = Callable[..., str]
Document = Callable[..., Any]


# --- show: commits --------------------------------------------------------------------------------------------------


def test_commit_with_its_items(output: Out, past: History) -> None:
    lines = output("show", "best").splitlines()
    assert lines[0] == f"commit {past.branched[0].hex()} (tag: best)"
    assert lines[1] == f"Parent:  {short(past.main[1])}"
    assert "    lr 3, step 200" in lines
    assert [line.split()[0] for line in lines[-3:]] == ["model", "optimizer", "settings"]
    assert "3 tensors, 0 values" in lines[-3]


def test_commit_for_programs(document: Document, past: History) -> None:
    shown = document("show", "step:100")
    logged = document("log", "-n", "1", "step:100")[0]
    assert {key: value for key, value in shown.items() if key != "items"} == {
        key: value for key, value in logged.items() if key != "items"
    }
    model = shown["items"][0]
    assert (model["name"], model["tensors"], model["values"]) == ("model", 3, 0)
    assert model["raw_bytes"] == 2 * 2048 + 16
    assert model["raw_bytes"] < model["stored_bytes"] < model["raw_bytes"] + 3 * 128


# --- show: tensors --------------------------------------------------------------------------------------------------


def test_small_tensor_in_full(output: Out, past: History) -> None:
    with Repository.open(past.root) as repo:
        ones = tensor(b"\x00\x00\x80\x3f" * 6, "float32", (2, 3))
        commit(repo, items=[item("model", {"w": ones, "empty": tensor(b"", "int8", (0, 3)), "one": tensor(b"\x07")})])
    assert output("show", "HEAD", "model::w").splitlines() == [
        "model::w  float32 [2, 3]  24 B, stored in 24 B (inline)",
        "",
        "[",
        " [1, 1, 1]",
        " [1, 1, 1]",
        "]",
    ]
    assert output("show", "HEAD", "empty").splitlines() == [
        "model::empty  int8 [0, 3]  0 B, stored in 0 B (inline)",
        "",
    ]
    assert output("show", "HEAD", "one").splitlines()[2] == "[7]"


def test_corners_of_a_tensor_of_many_chunks(output: Out, past: History) -> None:
    rows, columns = 8, MAX_CHUNK_BYTES // 2
    data = bytearray(noise("big", rows * columns))
    for row in range(rows):
        data[row * columns : row * columns + 3] = bytes((row, 1, 2))
        data[(row + 1) * columns - 3 : (row + 1) * columns] = bytes((row, 3, 4))
    with Repository.open(past.root) as repo:
        commit(repo, items=[item("model", {"w": tensor(bytes(data), "uint8", (rows, columns))})])
    assert output("show", "HEAD", "model::w").splitlines()[2:] == [
        "[",
        *(f" [{row}, 1, 2, ..., {row}, 3, 4]" for row in (0, 1, 2)),
        " ...",
        *(f" [{row}, 1, 2, ..., {row}, 3, 4]" for row in (5, 6, 7)),
        "]",
    ]


def test_tensor_without_dims_and_with_many(output: Out, past: History) -> None:
    tensors = {"scalar": tensor(b"\x2a", "uint8", ()), "deep": tensor(bytes(range(16)), "uint8", (2, 2, 1, 2, 2))}
    with Repository.open(past.root) as repo:
        commit(repo, items=[item("model", tensors)])
    assert output("show", "HEAD", "scalar").splitlines()[2] == "42"
    deep = output("show", "HEAD", "deep")
    assert [word for word in deep.split("\n\n")[1].replace(",", " ").split() if word.isdigit()] == []
    assert "[12, 13]" in deep


def test_tensor_for_programs(document: Document, past: History) -> None:
    shown = document("show", "main", "model::fc.weight")
    stored_bytes = shown.pop("stored_bytes")
    assert 2048 < stored_bytes < 2048 + 128
    assert shown == {
        "name": "model::fc.weight",
        "item": "model",
        "kind": "tensor",
        "dtype": "float32",
        "stored_dtype": None,
        "shape": [64, 8],
        "raw_bytes": 2048,
        "encodings": {"raw": 1},
        "depth": 0,
    }


def test_a_delta_says_so(document: Document, output: Out, past: History) -> None:
    weight = bytearray(noise("delta", 1 << 16))
    with Repository.open(past.root) as repo:
        commit(repo, items=[item("model", {"w": tensor(bytes(weight), "float32", (1 << 14,))})])
        weight[::64] = bytes(len(weight[::64]))
        commit(repo, items=[item("model", {"w": tensor(bytes(weight), "float32", (1 << 14,))})])
    shown = document("show", "HEAD", "w")
    assert (shown["encodings"], shown["depth"]) == ({"delta": 1}, 1)
    assert shown["stored_bytes"] < 1 << 14
    assert "(delta)" in output("show", "HEAD", "w")


# --- show: values ---------------------------------------------------------------------------------------------------


def test_values_without_what_made_them(output: Out, document: Document, past: History) -> None:
    assert (
        output("show", "main", "settings").splitlines()[2]
        == "{'dtype': torch.dtype('bfloat16'), 'seed': b'\\x00\\x01'}"
    )
    assert document("show", "main", "settings")["value"] == {
        "dtype": {"type": "torch.dtype", "value": "bfloat16"},
        "seed": {"bytes": "0001"},
    }
    assert document("show", "main", "optimizer::param_groups")["value"] == [{"lr": 0.5, "betas": [0.9, 0.999]}]


def test_every_kind_of_value_has_a_form(output: Out, document: Document, past: History) -> None:
    value = {
        "none": None,
        "flags": {True},
        "wide": {1: "one", (2,): frozenset({3})},
        "numbers": [1.5, math.inf, -math.inf, 2j, 10**30],
        "empty": [set(), frozenset(), (), {}, ""],
        "blob": bytes(1000),
        "tagged": Tagged("a 'tag'\x1b", (1,)),
    }
    with Repository.open(past.root) as repo:
        commit(repo, items=[item("x", {}, {"v": value})])
    shown = document("show", "HEAD", "x::v")["value"]
    assert shown["none"] is None
    assert shown["wide"] == {"dict": [[1, "one"], [[2], [3]]]}
    assert shown["numbers"] == [1.5, {"float": "inf"}, {"float": "-inf"}, {"complex": [0.0, 2.0]}, 10**30]
    assert shown["blob"] == {"bytes": "00" * 1000}
    assert shown["tagged"] == {"type": "a 'tag'\x1b", "value": [1]}
    assert output("show", "HEAD", "x::v").splitlines()[2:] == [
        "{",
        "  'none': None",
        "  'flags': {True}",
        "  'wide': {1: 'one', (2,): frozenset({3})}",
        "  'numbers': [1.5, inf, -inf, 2j, 1000000000000000000000000000000]",
        "  'empty': [set(), frozenset({}), (), {}, '']",
        "  'blob': <1,000 bytes>",
        "  'tagged': a 'tag'\\x1b((1,))",
        "}",
    ]


# --- show: names ----------------------------------------------------------------------------------------------------


def test_names_that_are_not_there(failure: Out, past: History) -> None:
    assert "did you mean 'model::fc.weight'" in failure("show", "main", "model::fc.wieght")
    assert "'model::fc.bias'" in failure("show", "main", "optimizer::fc.bias")
    assert "no branch, tag or commit 'nowhere'" in failure("show", "nowhere")


def test_a_name_in_several_items(failure: Out, document: Document, past: History) -> None:
    with Repository.open(past.root) as repo:
        commit(repo, items=[item(name, {"w": tensor(b"12")}) for name in ("a", "b")])
    assert "'w' is in several items: a::w, b::w" in failure("show", "HEAD", "w")
    assert document("show", "HEAD", "b::w")["item"] == "b"


def test_a_container(output: Out, document: Document, past: History) -> None:
    nested = {"": ContainerInput(0, "dict"), "sub": ContainerInput(0, "OrderedDict"), "sub/w": tensor(b"12")}
    with Repository.open(past.root) as repo:
        commit(repo, items=[ItemInput("a", nested)])
    assert output("show", "HEAD", "a::sub").startswith("a::sub  OrderedDict; see what is in it")
    assert document("show", "HEAD", "a::sub")["value"] == {"container": "OrderedDict", "info": None}
    assert [each["name"] for each in document("ls", "HEAD", "a::sub")] == ["a::sub/w"]


# --- ls -------------------------------------------------------------------------------------------------------------


def test_ls_for_people(output: Out, past: History) -> None:
    lines = output("ls").splitlines()
    assert lines[0].split() == ["float32", "[32,", "16]", "2.00", "KiB", "2.06", "KiB", "raw", "model::embed.weight"]
    assert lines[-1].split() == ["value", "-", "52", "B", "52", "B", "inline", "settings"]
    assert len(lines) == 7


def test_ls_for_programs(document: Document, past: History) -> None:
    listed = document("ls", "best")
    assert [each["name"] for each in listed][:3] == ["model::embed.weight", "model::fc.bias", "model::fc.weight"]
    assert {each["kind"] for each in listed} == {"tensor", "value"}
    assert all(set(each) == set(listed[0]) for each in listed)
    assert sum(each["raw_bytes"] for each in listed if each["item"] == "model") == 2 * 2048 + 16


def test_ls_by_names_and_globs(document: Document, failure: Out, past: History) -> None:
    def names(*patterns: str) -> list[str]:
        return [each["name"] for each in document("ls", "main", *patterns)]

    assert names("*.weight") == ["model::embed.weight", "model::fc.weight"]
    assert names("opt*::*") == ["optimizer::exp_avg", "optimizer::param_groups", "optimizer::step"]
    assert names("settings", "fc.bias") == ["model::fc.bias", "settings"]
    assert names("optimizer") == names("optimizer::*")
    assert "'model::nothing*'" in failure("ls", "main", "model::nothing*")


def test_ls_takes_names_without_a_revision(document: Document, past: History) -> None:
    assert past.main
    assert document("ls", "model::*") == document("ls", "HEAD", "model::*")
    assert document("ls", "*.weight", "settings") == document("ls", "HEAD", "*.weight", "settings")


def test_metadata_by_its_key(document: Document, output: Out, past: History) -> None:
    with Repository.open(past.root) as repo:
        commit(repo, items=[item("x", {}, {"v": 1})], metadata={"loss": 0.25, "v": 2})
    assert output("show", "HEAD", "loss") == "0.25\n"
    assert document("show", "HEAD", "loss") == {"metadata": "loss", "value": 0.25}
    assert output("show", "HEAD", "v").endswith("\n1\n")  # what is stored under that name comes first


def test_sizes_are_short() -> None:
    assert [size(n) for n in (0, 1023, 1024, 10 * 1024, 1023 * 1024, 1536 * 1024**2)] == [
        "0 B",
        "1023 B",
        "1.00 KiB",
        "10.0 KiB",
        "1.00 MiB",
        "1.50 GiB",
    ]


@pytest.mark.parametrize("revision", ["step:0", "main@step:300", "main"])
def test_a_revision_alone_is_no_file(run: Callable[..., Result], past: History, revision: str) -> None:
    result = run("cat", revision)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"'{revision}' names no file of a commit; it takes REVISION:PATH" in result.stderr
