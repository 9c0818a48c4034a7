"""``moonclip diff``."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from moonclip.cli.text import size
from store.ids import short
from store.naming.refnames import branch_name
from store.repository import Repository
from store.saving.inputs import ItemInput
from store.upkeep.absences import Absence, Why
from tests.stores import History, commit, damage, item, noise, tensor

Out = Callable[..., str]
Document = Callable[..., Any]
Run = Callable[..., Result]

_DIFF_THAT_LISTS_MODULES = """
import sys
from moonclip.cli import main
sys.argv[0] = "moonclip"
try:
    main()
finally:
    print(sorted({"torch", "numpy", "numba"} & sys.modules.keys()), file=sys.stderr)
"""


def ramp(scale: float) -> bytes:
    return (np.linspace(-1, 1, 512) * scale).astype(np.float32).tobytes()


def state(number: int) -> list[ItemInput]:
    weights = {
        "w": tensor(ramp(1 + number / 2), "float32", (64, 8)),
        "b": tensor(np.array([1, 2, 3 + number / 32], np.float16).tobytes(), "float16", (3,)),
        "frozen": tensor(noise("frozen", 2048), "float32", (512,)),
    }
    if number:
        weights |= {"head": tensor(b"123"), "gate": tensor(bytes(8), "float32", (1, 2))}
    else:
        weights |= {"old": tensor(b"1"), "gate": tensor(bytes(8), "float32", (2,))}
    groups = [{"lr": 0.1 / (number + 1), "betas": (0.9, 0.99)}]
    return [
        item("model", weights),
        item("optimizer", {}, {"param_groups": groups, "order": [(7 * n + number) % 20 for n in range(20)]}),
        item("same", {}, {"seed": 1}),
    ]


@pytest.fixture
def ends(past: History) -> tuple[str, str]:
    """Short ids of two commits, on the branches ``a`` and ``b``."""
    with Repository.open(past.root) as repo:
        before = commit(repo, "a", items=state(0), step=1, metadata={"loss": 2.0})
        repo.set_ref(branch_name("b"), None, before, "branch")
        after = commit(repo, "b", items=state(1), step=2, metadata={"loss": 1.5, "note": "x\x1b" * 80})
    return short(before), short(after)


def test_what_people_see(output: Out, ends: tuple[str, str], past: History) -> None:
    shown = output("diff", "a", "b")
    place = stored_bytes(past, "b", "w")
    assert shown.splitlines() == [
        f"diff {ends[0]} (a) -> {ends[1]} (b)",
        "  ~  step: 1 -> 2",
        "  ~  branch: 'a' -> 'b'",
        "  ~  metadata/loss: 2.0 -> 1.5",
        "  +  metadata/note: '" + r"x\x1b" * 11 + "x...",
        "",
        f"model: 3 tensors changed, 1 tensor added, 1 tensor removed, 1 tensor identical; {size(place + 17)} stored",
        "     tensor       dtype    shape          rel. L2  max abs    cosine  changed    stored",
        "  ~  model::gate  float32  [2] -> [1, 2]                                            8 B",
        f"  ~  model::w     float32  [64, 8]            0.5      0.5  1.000000    100 %  {size(place)}",
        "  ~  model::b     float16  [3]            0.00835   0.0312  0.999988   33.3 %       6 B",
        "  +  model::head  uint8    [3]                                                      3 B",
        "  -  model::old   uint8    [1]",
        "",
        "optimizer: 2 values changed; 108 B stored",
        "  ~  optimizer::order: list of 20 -> list of 20",
        "  ~  optimizer::param_groups/0/lr: 0.1 -> 0.05",
        "",
        "same: 1 value identical; 0 B stored",
    ]


def stored_bytes(past: History, revision: str, name: str) -> int:
    with Repository.open(past.root, read_only=True) as repo:
        entry = repo.tree(repo.commit(repo.resolve(revision)), "model")[name]
        return sum(repo.index.places(chunk)[0].stored_bytes for chunk in entry.chunks)


def test_stat(output: Out, ends: tuple[str, str], past: History) -> None:
    place = stored_bytes(past, "b", "w")
    words = (
        "3 tensors changed, 1 tensor added, 1 tensor removed, 1 tensor identical, 2 values changed, 1 value identical"
    )
    assert output("diff", "--stat", "a", "b").splitlines() == [
        f"diff {ends[0]} (a) -> {ends[1]} (b)",
        f" model      3 tensors changed, 1 tensor added, 1 tensor removed, 1 tensor identical  {size(place + 17)}",
        " optimizer  2 values changed                                                         108 B",
        " same       1 value identical                                                        0 B",
        f" 3 items: {words}; {size(place + 17 + 108)} stored",
    ]


def test_orders(document: Document, ends: tuple[str, str]) -> None:
    def names(*arguments: str) -> list[str]:
        (model,) = document("diff", *ends, "model", *arguments)["items"]
        return [each["name"].removeprefix("model::") for each in model["tensors"]]

    assert names() == names("--sort", "change") == ["gate", "w", "b", "head", "old"]
    assert names("--sort", "name") == ["b", "gate", "head", "old", "w"]
    assert names("--sort", "bytes") == ["w", "gate", "b", "head", "old"]


def test_what_programs_read(document: Document, ends: tuple[str, str], past: History) -> None:
    found = document("diff", "a", "b")
    assert list(found) == ["before", "after", "header", "items", "stored_bytes"]
    assert [found[end][:8] for end in ("before", "after")] == list(ends)
    assert found["header"][0] == {"path": "step", "status": "changed", "before": 1, "after": 2}
    model, optimizer, same = found["items"]
    assert {key: value for key, value in model.items() if key != "tensors"} == {
        "name": "model",
        "status": "changed",
        "absent": None,
        "counts": {
            "tensors": {"changed": 3, "added": 1, "removed": 1, "identical": 1},
            "values": {"changed": 0, "added": 0, "removed": 0, "identical": 0},
        },
        "ties_differ": False,
        "same_tree": False,
        "stored_bytes": stored_bytes(past, "b", "w") + 17,
        "values": [],
    }
    by_name = {each["name"]: each for each in model["tensors"]}
    assert by_name["model::w"] == {
        "name": "model::w",
        "status": "changed",
        "before": {"dtype": "float32", "shape": [64, 8], "raw_bytes": 2048},
        "after": {"dtype": "float32", "shape": [64, 8], "raw_bytes": 2048},
        "stored_bytes": stored_bytes(past, "b", "w"),
        "measures": {
            "element_count": 512,
            "changed_count": 512,
            "relative_l2": pytest.approx(0.5),
            "max_abs": 0.5,
            "cosine": pytest.approx(1),
            "nonfinite_before": 0,
            "nonfinite_after": 0,
        },
    }
    assert (by_name["model::gate"]["measures"], by_name["model::head"]["before"]) == (None, None)
    assert optimizer["values"][1] == {
        "path": "optimizer::param_groups/0/lr",
        "status": "changed",
        "before": 0.1,
        "after": 0.05,
    }
    assert (same["status"], same["same_tree"]) == ("identical", True)


def test_numbers_that_json_lacks(document: Document, output: Out, past: History) -> None:
    with Repository.open(past.root) as repo:
        for numbers in ([0, 0, 0], [np.nan, 1, 2]):
            data = np.array(numbers, np.float32).tobytes()
            commit(repo, "odd", items=[item("model", {"w": tensor(data, "float32", (3,))})])
    (model,) = document("diff", "odd~1", "odd")["items"]
    measures = model["tensors"][0]["measures"]
    assert (measures["relative_l2"], measures["cosine"]) == ({"float": "inf"}, None)
    assert output("diff", "odd~1", "odd").splitlines()[-1].split("  ")[-1] == "NaN or infinite, left out: 0 -> 1"


def test_names(document: Document, failure: Out, ends: tuple[str, str]) -> None:
    def items(*arguments: str) -> dict[str, list[str]]:
        found = document("diff", "a", "b", *arguments)["items"]
        return {
            each["name"]: [one["name"] for one in each["tensors"]] + [one["path"] for one in each["values"]]
            for each in found
        }

    assert items("model::w", "opt*::*") == {
        "model": ["model::w"],
        "optimizer": ["optimizer::order", "optimizer::param_groups/0/lr"],
    }
    assert items("frozen") == {"model": []}
    assert items("model::old") == {"model": ["model::old"]}
    assert "no tensor or value is named 'model::nothing'" in failure("diff", "a", "b", "model::w", "model::nothing")


def test_head_if_only_one_is_named(document: Document, past: History) -> None:
    assert document("diff", "main~1") == document("diff", "main~1", "HEAD")
    assert document("diff", "main~1", "model::*") == document("diff", "main~1", "HEAD", "model::*")
    assert document("diff", "best")["after"] == past.main[-1].hex()


def test_nothing_differs(output: Out, past: History) -> None:
    assert past.main
    assert output("diff", "main", "main", "--stat").splitlines()[-1] == (
        " 3 items: 4 tensors identical, 3 values identical; 0 B stored"
    )


def test_another_order_is_no_difference_but_said(output: Out, past: History) -> None:
    one, other = tensor(b"1"), tensor(b"2", position=1)
    with Repository.open(past.root) as repo:
        commit(repo, "o", items=[item("model", {"a": one, "b": other})])
        commit(repo, "o", items=[item("model", {"b": tensor(b"2"), "a": tensor(b"1", position=1)})])
    assert output("diff", "o~1", "o").splitlines()[-1] == (
        "model: 2 tensors identical, in another order or cut in other places; 0 B stored"
    )


def test_items_that_are_gone_and_pruned(output: Out, document: Document, past: History) -> None:
    with Repository.open(past.root) as repo:
        commit(repo, items=[item("model", {"w": tensor(b"1")})])
        with repo.absences.adding() as add:
            add([Absence.of(past.main[-1], "model", Why.PRUNED, 1)])
    shown = output("diff", "main~1", "main", "--stat").splitlines()
    assert shown[1].startswith(f" model      the item 'model' of commit {short(past.main[-1])} was pruned: ")
    assert shown[2].startswith(" optimizer  removed, 1 tensor removed, 2 values removed")
    found = document("diff", "main~1", "main")["items"]
    assert [each["status"] for each in found] == ["absent", "removed", "removed"]
    with Repository.open(past.root) as repo:
        repo.absences.add([Absence.of(past.main[-1], None, Why.PRUNED, 1)])
    assert output("diff", "main~1", "main", "--stat").splitlines()[-1] == (
        " 3 items: nothing can be compared; 0 B stored"
    )


def test_damage_is_named(failure: Out, output: Out, past: History) -> None:
    damage(past.root, "fc.weight", "main")
    assert failure("diff", "main~1", "main").startswith("error: model::fc.weight: chunk ")
    assert "1 tensor identical" in output("diff", "main~1", "main", "--stat")
    assert "embed.weight" not in output("diff", "main~1", "main", "fc.bias")


@pytest.mark.parametrize(("arguments", "loaded"), [(["--stat"], []), ([], ["numpy"])])
def test_numpy_is_loaded_only_to_measure(past: History, arguments: list[str], loaded: list[str]) -> None:
    command = [sys.executable, "-c", _DIFF_THAT_LISTS_MODULES, "-C", str(past.root), "diff", "main~1", "main"]
    root = Path(__file__).parents[2]
    finished = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True, cwd=root)
    assert set(json.loads(finished.stderr.replace("'", '"'))) - {"numba"} == set(loaded)


def test_names_that_begin_alike_are_told_apart(output: Out, past: History) -> None:
    with Repository.open(past.root) as repo:
        for seed in "ab":
            names = {f"w\n{end}": tensor(noise(f"{seed}{end}", 40)) for end in "xy"}
            commit(repo, "odd", items=[item("model", names, {"v\nz": seed})])
    told = output("diff", "odd~1", "odd")
    assert all(f"model::{name}" in told for name in (r"w\nx", r"w\ny", r"v\nz"))
