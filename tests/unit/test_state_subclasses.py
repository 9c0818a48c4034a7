"""Tensor subclasses: rebuilt through their own protocol, or refused by name."""

from typing import Any, Self

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement
from torch.utils import _pytree

from moonclip.state.flattening import FlatContainer, flatten, unflatten
from store.errors import Corrupt, Incompatible, Unsafe
from store.format import values
from tests.ranks import rank_of, spread
from tests.state_trip import loaded, stored, trip


class Scaled(torch.Tensor):
    """Integers with a scale: the smallest quantized weight that there can be."""

    @staticmethod
    def __new__(cls: type[Self], words: torch.Tensor, scale: torch.Tensor, note: Any) -> Self:
        made: Self = torch.Tensor._make_wrapper_subclass(cls, words.shape, dtype=scale.dtype)
        return made

    def __init__(self, words: torch.Tensor, scale: torch.Tensor, note: Any) -> None:
        self.words, self.scale, self.note = words, scale, note

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["words", "scale"], {"note": self.note}

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, torch.Tensor], context: Any, shape: Any, stride: Any) -> "Scaled":
        return cls(inner["words"], inner["scale"], context["note"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:  # type: ignore[override]
        plain = _pytree.tree_map_only(Scaled, lambda scaled: scaled.words * scaled.scale, (args, kwargs or {}))
        return func(*plain[0], **plain[1])


class Wrapper(torch.Tensor):
    """A wrapper that does not say what is inside it."""

    @staticmethod
    def __new__(cls: type[Self]) -> Self:
        made: Self = torch.Tensor._make_wrapper_subclass(cls, (2,))
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError


class Labelled(torch.Tensor):
    """A subclass in name only."""


def scaled(note: Any = ("a", 1)) -> Scaled:
    return Scaled(torch.arange(6, dtype=torch.int8).view(2, 3), torch.tensor(0.5), note)


def test_a12_a_flattenable_subclass_is_rebuilt() -> None:
    state = {"layer.weight": scaled(), "bias": torch.ones(2)}
    flat = flatten(state)
    assert [*flat.entries] == ["", "layer.weight", "layer.weight/words", "layer.weight/scale", "bias"]
    back = trip(state)["layer.weight"]
    assert type(back) is Scaled and back.note == ("a", 1)
    assert torch.equal(back.words, scaled().words) and torch.equal(back.scale, scaled().scale)


def test_a12_subclasses_within_subclasses() -> None:
    outer = Scaled(torch.ones(2, 3, dtype=torch.int8), torch.ones(()), None)
    outer.words = scaled()
    assert type(trip(outer).words) is Scaled


def test_a12_a_context_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(Incompatible, match=r"model: 'w': .*function is no type"):
        flatten({"w": scaled(note=lambda: 0)}, item="model")


def with_class(module: str, name: str) -> dict[str, tuple[Any, ...]]:
    kept = stored(flatten({"w": scaled()}))
    _, shape, stride, context = values.decode(kept["w"][3])
    kept["w"] = (*kept["w"][:3], values.encode(((module, name), shape, stride, context)))
    return kept


def test_a12_a_class_that_is_not_imported_is_named() -> None:
    with pytest.raises(
        Unsafe, match=r"state: 'w': the class absent_module\.Scaled is not imported; import absent_module"
    ):
        loaded(with_class("absent_module", "Scaled"))


@pytest.mark.parametrize("name", [("builtins", "dict"), ("subprocess", "Popen"), ("torch", "nn")])
def test_a17_only_tensor_subclasses_are_called(name: tuple[str, str]) -> None:
    with pytest.raises(Incompatible, match="is no subclass of Tensor"):
        loaded(with_class(*name))


def test_a12_a_class_without_the_protocol_is_named() -> None:
    with pytest.raises(Incompatible, match="Labelled no longer has __tensor_flatten__"):
        loaded(with_class(Labelled.__module__, "Labelled"))


def test_a12_a_wrapper_without_the_protocol_is_refused() -> None:
    with pytest.raises(Incompatible, match=r"state: 'w': .*Wrapper is a tensor subclass without __tensor_flatten__"):
        flatten({"w": Wrapper()})


def test_a_tensor_spread_over_ranks_is_refused() -> None:
    with rank_of(0, 2) as mesh, pytest.raises(Incompatible, match=r"state: 'w': .*gather it with \.full_tensor"):
        flatten({"w": spread(torch.ones(4, 3), mesh, (Shard(0),))})


@pytest.mark.parametrize(("ranks", "placement"), [(1, Shard(0)), (2, Replicate())])
def test_a_tensor_that_a_rank_has_all_of_is_kept_as_a_plain_one(ranks: int, placement: Placement) -> None:
    full = torch.rand(4, 3)
    with rank_of(0, ranks) as mesh:
        back = trip({"x": torch.nn.Parameter(spread(full, mesh, (placement,)))})["x"]
    assert type(back) is torch.Tensor
    assert back.equal(full)


def test_a12_a_subclass_in_name_only_is_kept_as_a_tensor() -> None:
    labelled = torch.arange(3).as_subclass(Labelled)
    back = trip({"x": labelled})["x"]
    assert type(back) is torch.Tensor and back.tolist() == [0, 1, 2]
    assert flatten({"x": labelled, "y": labelled}).ties == (("x", "y"),)


def test_fields_that_make_no_tensor_are_corrupt() -> None:
    kept = stored(flatten({"s": torch.eye(2).to_sparse()}))
    kept["s"] = (*kept["s"][:3], values.encode(((1, 1), True)))
    with pytest.raises(Corrupt, match="its parts make no valid sparse_coo"):
        loaded(kept)


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions")
def test_a_quantized_shape_is_checked_before_it_is_allocated() -> None:
    kept = stored(flatten(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)))
    info = values.decode(kept[""][3])
    kept[""] = (*kept[""][:3], values.encode(info | {"shape": (2**50,)}))
    with pytest.raises(Corrupt, match="3 bytes are no"):
        loaded(kept)


def test_an_unknown_container_names_itself() -> None:
    with pytest.raises(Incompatible, match="unknown container 'hologram'"):
        unflatten({"": FlatContainer(0, "hologram")})
