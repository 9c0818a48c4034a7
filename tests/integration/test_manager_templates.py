"""Templates of every kind of container, and what of them has to agree with what is stored."""

from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moonclip import CheckpointManager, Incompatible
from moonclip.state.containers import OPEN

Pair = namedtuple("Pair", "left right")


@pytest.fixture
def mgr(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(tmp_path / "checkpoints", allow_pickle=True) as mgr:
        yield mgr


MADE: dict[str, Callable[[Any, Any], Any]] = {
    "dict": lambda left, right: {"l": left, "r": right},
    "OrderedDict": lambda left, right: OrderedDict(l=left, r=right),
    "defaultdict": lambda left, right: defaultdict(list, l=left, r=right),
    "Counter": lambda left, right: Counter({"l": left, "r": right}),
    "list": lambda left, right: [left, right],
    "tuple": lambda left, right: (left, right),
    "deque": lambda left, right: deque([left, right], maxlen=5),
    "namedtuple": Pair,
}
SEQUENCES = ("list", "tuple", "deque", "namedtuple")


def members(obj: Any) -> list[Any]:
    return list(obj.values()) if isinstance(obj, dict) else list(obj)


def test_every_open_container_is_tried() -> None:
    assert MADE.keys() == OPEN


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("root", [False, True])
def test_tensors_in_any_container_are_written_in_place(mgr: CheckpointManager, kind: str, root: bool) -> None:
    mgr.save(x=MADE[kind](torch.ones(3), 5) if root else {"in": MADE[kind](torch.ones(3), 5)})
    tensor = torch.zeros(3)
    target = MADE[kind](tensor, 0)
    found = mgr.load(into={"x": target if root else {"in": target}})["x"]
    if not root:
        found = found["in"]
    assert type(found) is type(target)
    assert found is target or isinstance(target, tuple)
    assert members(found)[0] is tensor
    assert torch.equal(tensor, torch.ones(3))
    assert members(found)[1] == 5


@pytest.mark.parametrize("stored", SEQUENCES)
@pytest.mark.parametrize("kind", SEQUENCES)
def test_any_sequence_fills_any_other(mgr: CheckpointManager, stored: str, kind: str) -> None:
    mgr.save(x=MADE[stored](torch.ones(3), [torch.ones(1)]))
    left, right = torch.zeros(3), torch.zeros(1)
    found = mgr.load(into={"x": MADE[kind](left, deque([right]))})["x"]
    assert members(found)[0] is left
    assert members(found)[1][0] is right
    assert (left.sum(), right.sum()) == (3, 1)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("stored", [[torch.ones(1), torch.ones(1)], np.ones(2)])
def test_a_container_of_another_kind_is_refused(mgr: CheckpointManager, stored: Any, strict: bool) -> None:
    mgr.save(x={"in": stored})
    keys = ("data",) if isinstance(stored, np.ndarray) else (0, 1)
    target = {"in": {key: torch.zeros(1) for key in keys}}
    with pytest.raises(Incompatible, match="in the commit, a dict in the target"):
        mgr.load(into={"x": target}, strict=strict)
    assert all(torch.equal(tensor, torch.zeros(1)) for tensor in target["in"].values())


def test_a_deque_of_values_is_replaced_whole(mgr: CheckpointManager) -> None:
    mgr.save(x={"list": [1, 2], "deque": deque([1, 2], maxlen=9), "t": torch.ones(1)})
    target: dict[str, Any] = {"list": deque([0]), "deque": deque([0]), "t": torch.zeros(1)}
    deques = target["list"], target["deque"]
    mgr.load(into={"x": target})
    assert (target["list"], target["deque"]) == (deque([1, 2]), deque([1, 2]))
    assert (target["list"] is deques[0], target["deque"] is deques[1]) == (True, True)
    target["deque"] = deque([0], maxlen=1)
    mgr.load(into={"x": target})
    assert target["deque"] == deque([1, 2])


def test_a_longer_deque_leaves_out_what_the_target_has_no_place_for(mgr: CheckpointManager) -> None:
    mgr.save(x=deque([torch.ones(1), torch.ones(1), 3]))
    tensor = torch.zeros(1)
    found = mgr.load(into={"x": deque([tensor])}, strict=False)["x"]
    assert list(found) == [tensor]
    assert tensor == 1


def coo(size: int, dtype: torch.dtype = torch.float32, *, coalesced: bool = False) -> torch.Tensor:
    indices, values = torch.tensor([[0, 1]]), torch.ones(2, dtype=dtype)
    return torch.sparse_coo_tensor(indices, values, (size,), is_coalesced=coalesced or None, check_invariants=True)


def quantized(scale: float, dtype: torch.dtype = torch.qint8) -> torch.Tensor:
    return torch._empty_affine_quantized([3], scale=scale, zero_point=0, dtype=dtype)


FORMS: list[tuple[Callable[[], tuple[Any, Any]], bool, str | None]] = [
    (lambda: (np.ones(3), np.zeros(3, np.int8)), True, "ndarray of <f8 in the commit, of |i1 in the target"),
    (lambda: (np.ones(3), np.zeros((7, 7))), True, "shape [3] in the commit, [7, 7] in the target"),
    (lambda: (np.ones(3), np.zeros((7, 7))), False, "shape [3] in the commit, [7, 7] in the target"),
    (lambda: (np.ones(3, "<f4"), np.ones(3, ">f4")), True, "ndarray of <f4 in the commit, of >f4 in the target"),
    (lambda: (coo(3), coo(4)), True, "sparse_coo of (3,) in the commit, of (4,) in the target"),
    (lambda: (coo(3), coo(3, torch.float64)), True, "dtype float32 in the commit, float64 in the target"),
    (
        lambda: (torch.eye(2).to_sparse_csr(), torch.eye(2).to_sparse_csc()),
        False,
        "sparse_compressed of ('sparse_csr', (2, 2)) in the commit, of ('sparse_csc', (2, 2)) in the target",
    ),
    (
        lambda: (quantized(0.5), quantized(0.5, torch.quint8)),
        True,
        "quantized of ('qint8', (3,), 'per tensor') in the commit, of ('quint8', (3,), 'per tensor') in the target",
    ),
    (lambda: (np.ones(3), np.zeros(3)), True, None),
    (lambda: (np.ones(3), np.zeros(3, np.int8)), False, None),
    (lambda: (coo(3), coo(3, coalesced=True)), True, None),
    (lambda: (quantized(0.5), quantized(0.25)), True, None),
]


@pytest.mark.filterwarnings("ignore:Sparse CS:UserWarning", "ignore:.*quantize:")
@pytest.mark.parametrize(("made", "strict", "problem"), FORMS)
def test_arrays_and_composites_have_to_be_of_the_targets_form(
    mgr: CheckpointManager, made: Callable[[], tuple[Any, Any]], strict: bool, problem: str | None
) -> None:
    stored, target = made()
    mgr.save(x={"in": stored, "t": torch.ones(1)})
    into = {"in": target, "t": torch.zeros(1)}
    if problem is None:
        mgr.load(into={"x": into}, strict=strict)
        assert into["in"].dtype == stored.dtype
        return
    with pytest.raises(Incompatible) as refused:
        mgr.load(into={"x": into}, strict=strict)
    assert refused.value.details["problems"] == [f"x::in: {problem}"]
    assert torch.equal(into["t"], torch.zeros(1))


@pytest.mark.parametrize(
    ("shape", "strides", "fits"),
    [
        ((2, 2), (1, 1), False),
        ((2, 2), (2, 2), False),
        ((3, 2), (2, 4), False),
        ((3, 2), (2, 3), True),
        ((2, 3), (10, 3), True),
        ((2, 0), (0, 1), True),
        ((1, 3), (0, 1), True),
    ],
)
def test_a_target_that_overlaps_itself_is_refused(
    mgr: CheckpointManager, shape: tuple[int, ...], strides: tuple[int, ...], fits: bool
) -> None:
    stored = torch.arange(6.0)[: torch.Size(shape).numel()].view(shape)
    mgr.save(x={"a": torch.ones(4), "b": stored})
    target = {"a": torch.zeros(4), "b": torch.zeros(20).as_strided(shape, strides)}
    if fits:
        mgr.load(into={"x": target})
        assert torch.equal(target["b"], stored)
        return
    with pytest.raises(Incompatible, match="share memory"):
        mgr.load(into={"x": target})
    assert torch.equal(target["a"], torch.zeros(4))


class Counted:
    """Counts how often one is unpickled."""

    count = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return (Counted.made, ())

    @staticmethod
    def made() -> "Counted":
        Counted.count += 1
        return Counted()


def test_a_pickle_is_read_once(mgr: CheckpointManager) -> None:
    mgr.save(x={"one": Counted(), "t": torch.ones(1)})
    before = Counted.count
    assert type(mgr.load()["x"]["one"]) is Counted
    assert Counted.count == before + 1
