"""What this rank has of the items of a save, and its share of that in the words of the engine."""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch

from store.boxes import Box
from store.errors import Incompatible
from store.format.entries import check_name
from store.saving.arenas import Arena
from store.saving.inputs import ContainerInput, ItemInput, Span, TensorInput, ValueInput
from store.saving.shards import BoxInput, RankInput, RankItem, ShardsInput

from ..composites import is_distributed
from ..entries import FlatState, FlatTensor, FlatValue
from ..items import state_of
from ..names import join
from ..numbering import GROUPS, parameter_names
from ..policy import Policy
from ..refusals import Refused, located
from ..sharding.layouts import Part, place_of
from ..sharding.writers import Holding, Name
from ..state import flatten
from ..tensors import TensorSource, lies_in_c_order
from ..wrappers import canonical_state
from .perrank import under_rank
from .plan import Offer, Share


class _Local(NamedTuple):
    """This rank's memory of a tensor, and which boxes lie where in it."""

    tensor: torch.Tensor
    parts: tuple[Part, ...]


class Holdings:
    """The items of one save, as this rank has them. Copies nothing, communicates with nobody.

    Args:
        items: by name.
        policy: whether unknown objects may be pickled.
        rank: which rank this is.
        per_rank: names of items of which each rank saves its own.

    Raises:
        Incompatible: something cannot be kept; the message names it.
    """

    def __init__(self, items: Mapping[str, Any], policy: Policy, rank: int, per_rank: Collection[str]) -> None:
        names = parameter_names(items)
        self._parameters: dict[str, Sequence[str]] = {}
        self._states: dict[str, FlatState] = {}
        self._locals: dict[int, _Local] = {}
        for item, obj in items.items():
            check_name(item)
            state = canonical_state(state_of(obj))
            if isinstance(obj, torch.optim.Optimizer):
                state = _with_names(obj, state, names)
                self._parameters[item] = list(chain.from_iterable(_told(group) for group in state[GROUPS]))
            flat = flatten(state, policy, item, is_target=True)
            self._states[item] = under_rank(flat, rank) if item in per_rank else flat
        for item, flat in self._states.items():
            for name, entry in flat.entries.items():
                check_name(name)
                if isinstance(entry, FlatTensor) and id(entry.source) not in self._locals:
                    with located(join(item, name)):
                        self._locals[id(entry.source)] = _local(entry.source.tensor)

    def offer(self) -> Offer:
        """What there is, for all ranks to know."""
        held: dict[Name, Holding] = {}
        others: list[Name] = []
        for item, flat in self._states.items():
            for name, entry in flat.entries.items():
                if isinstance(entry, FlatTensor):
                    boxes = tuple(part.box for part in self._locals[id(entry.source)].parts)
                    held[Name(item, name)] = Holding(entry.source.dtype, entry.source.shape, boxes)
                else:
                    others.append(Name(item, name))
        return Offer(held, others, self._parameters)

    def share(self, share: Share) -> "Shared":
        """The part of it that this rank writes."""
        return Shared(self._states, self._locals, share)


class Shared:
    """What this rank writes: to be captured, then stored.

    Args:
        states: all items.
        locals_: this rank's memory, by ``id`` of the source.
        share: what of it.

    Attributes:
        states: the boxes, one entry each, as :class:`~moonclip.capture.staging.Staging` takes them. A box of a tensor
            with several names is copied once.
    """

    def __init__(self, states: Mapping[str, FlatState], locals_: Mapping[int, _Local], share: Share) -> None:
        self._whole = states
        self._share = share
        views: dict[tuple[int, Box], TensorSource] = {}
        entries: dict[str, dict[str, FlatTensor]] = {item: {} for item in states}
        for (item, name), boxes in share.boxes.items():
            entry = states[item].entries[name]
            assert isinstance(entry, FlatTensor)
            for number, box in enumerate(boxes):
                key = (id(entry.source), box)
                if key not in views:
                    views[key] = _view(locals_[id(entry.source)], box, entry.source)
                entries[item][_key(name, number)] = FlatTensor(number, views[key])
        self.states = {item: FlatState(dict(own), ()) for item, own in entries.items()}

    def items(self, captured: Sequence[ItemInput], arena: Arena) -> list[RankItem]:
        """What the engine stores.

        Args:
            captured: the boxes, as the capture gave them.
            arena: what they lie in.
        """
        spans = {item.name: item.entries for item in captured}
        memory = arena.memory
        found: list[RankItem] = []
        for item, flat in self._whole.items():
            entries: dict[str, RankInput] = {}
            for name, entry in flat.entries.items():
                full = Name(item, name)
                if isinstance(entry, FlatTensor):
                    if full in self._share.boxes:
                        boxes = self._share.boxes[full]
                        data = [_bytes(spans[item][_key(name, number)], memory) for number in range(len(boxes))]
                        inputs = tuple(map(BoxInput, boxes, data))
                        source = entry.source
                        entries[name] = ShardsInput(entry.position, source.dtype, source.shape, inputs)
                elif full in self._share.others:
                    if isinstance(entry, FlatValue):
                        entries[name] = ValueInput(entry.position, entry.value)
                    else:
                        entries[name] = ContainerInput(entry.position, entry.container, entry.info)
            found.append(RankItem(item, entries, flat.ties))
        return found


def _local(tensor: torch.Tensor) -> _Local:
    if tensor.is_meta:
        raise Refused(Incompatible, "a tensor on the meta device has no values; materialize it first")
    if not is_distributed(tensor):
        shape = tuple(tensor.shape)
        whole = Box((0,) * len(shape), shape)
        return _Local(tensor.detach(), (Part(whole, whole.offsets),) if tensor.numel() else ())
    from ..sharding.dtensors import shards_of  # loads torch.distributed.tensor, as whoever made this one has

    shards = shards_of(tensor)
    if shards.local.is_meta or (shards.local.nbytes and not shards.local.untyped_storage().nbytes()):
        raise Refused(
            Incompatible, "the tensor's storage was freed (FSDP does so inside of a step); save between steps"
        )
    return _Local(shards.local, shards.parts)


def _view(local: _Local, box: Box, source: TensorSource) -> TensorSource:
    start = place_of(box, local.parts)
    view = local.tensor[tuple(slice(at, at + size) for at, size in zip(start, box.sizes, strict=True))]
    address = view.data_ptr() if lies_in_c_order(view) else 0
    return TensorSource(view, source.dtype, box.sizes, view.nbytes, address)


def _bytes(given: Any, memory: memoryview) -> memoryview:
    assert isinstance(given, TensorInput)
    assert isinstance(given.data, Span)
    return memory[given.data.start : given.data.stop]


def _key(name: str, number: int) -> str:
    return f"{name}\n{number}"


def _with_names(optimizer: torch.optim.Optimizer, state: Any, names: Mapping[int, str]) -> Any:
    """An optimizer's state with names of its parameters, if a module among the items has them and nobody gave any.

    Numbers mean other parameters where a model is put together differently; names let it be loaded all the same.
    """
    groups = optimizer.param_groups
    found = [[names.get(id(parameter)) for parameter in group["params"]] for group in groups]
    every = list(chain.from_iterable(found))
    if any("param_names" in group for group in groups) or None in every or len(set(every)) != len(every):
        return state
    named = [
        {
            **{key: value for key, value in group.items() if key != "params"},
            "param_names": own,
            "params": group["params"],
        }
        for group, own in zip(state[GROUPS], found, strict=True)
    ]
    return {**state, GROUPS: named}


def _told(group: Mapping[str, Any]) -> list[str]:
    return [str(each) for each in group.get("param_names", group["params"])]
