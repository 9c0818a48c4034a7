"""What this rank has of the items of a save, and its share of that in the words of the engine."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from store.boxes import Box, whole
from store.errors import Incompatible
from store.format.canonical import Node
from store.format.casts import SCALED
from store.format.entries import check_name
from store.saving.arenas import Arena
from store.saving.inputs import ContainerInput, ItemInput, Span, TensorInput, UnchangedInput, ValueInput
from store.saving.shards import BoxInput, RankInput, RankItem, ShardsInput

from ..loading.numbering import parameter_names
from ..saving.precision import Precision
from ..sharding.layouts import Part, place_of
from ..sharding.placed import place
from ..sharding.writers import Holding, Name
from ..specs import Resharder
from ..state.composites import is_distributed
from ..state.entries import FlatState, FlatTensor, FlatValue
from ..state.flattening import flatten
from ..state.items import state_of
from ..state.names import join
from ..state.policy import Policy
from ..state.refusals import Refused, located
from ..state.tensors import TensorSource, lies_in_c_order
from ..state.wrappers import canonical_state
from .perrank import under_rank
from .plan import Offer, Share
from .replicas import Copies, digest_of_box, digest_of_value
from .stages import Groups, Joined, groups_of, with_names

_NOBODYS: Final = torch.empty(0, device="cpu")
"""No owner has this: what is said to be a part of it is copied at once, always."""


class _Local(NamedTuple):
    """This rank's memory of a tensor, and which boxes lie where in it."""

    tensor: torch.Tensor
    parts: tuple[Part, ...]


class Terms(NamedTuple):
    """How this rank takes items apart.

    Attributes:
        policy: whether unknown objects may be pickled.
        rank: which rank this is.
        per_rank: names of items of which each rank saves its own.
        precision: which tensors are stored in a narrower dtype.
        resharders: say of items by name what of global tensors this rank's hold.
        together: parameters of optimizers that differ from rank to rank, see ``stages``.
    """

    policy: Policy
    rank: int
    per_rank: Collection[str]
    precision: Precision
    resharders: Mapping[str, Resharder]
    together: Joined


class Holdings:
    """The items of one save, as this rank has them. Copies nothing, communicates with nobody.

    Args:
        items: by name.
        terms: how to take them apart.

    Raises:
        Incompatible: something cannot be kept; the message names it.
    """

    def __init__(self, items: Mapping[str, Any], terms: Terms) -> None:
        names = parameter_names(items)
        self._together = terms.together
        self._groups: dict[str, Groups] = {}
        self._states: dict[str, FlatState] = {}
        self._locals: dict[int, _Local] = {}
        for item, obj in items.items():
            check_name(item)
            state = canonical_state(state_of(obj))
            if isinstance(obj, torch.optim.Optimizer):
                self._groups[item] = groups_of(obj, names)
                state = with_names(obj, state, self._groups[item], terms.together.get(item))
            flat = flatten(state, terms.policy, item, is_target=True)
            if item in terms.resharders:
                place(flat, terms.resharders[item], item)
            self._states[item] = under_rank(flat, terms.rank) if item in terms.per_rank else flat
        for item, flat in self._states.items():
            for name, entry in flat.entries.items():
                check_name(name)
                if isinstance(entry, FlatTensor) and id(entry.source) not in self._locals:
                    with located(join(item, name)):
                        self._locals[id(entry.source)] = _local(entry.source.tensor)
        terms.precision.mark(self._states)

    def offer(self) -> Offer:
        """What there is, for all ranks to know."""
        held: dict[Name, Holding] = {}
        others: list[Name] = []
        for item, flat in self._states.items():
            for name, entry in flat.entries.items():
                if isinstance(entry, FlatTensor):
                    boxes = tuple(part.box for part in self._locals[id(entry.source)].parts)
                    source = entry.source
                    held[Name(item, name)] = Holding(source.dtype, source.shape, boxes, source.stored, source.by_row)
                else:
                    others.append(Name(item, name))
        return Offer(held, others, self._groups, self._together)

    def digests(self, copies: Copies) -> Node:
        """What is compared of what others have, too. Cost: a pass over it."""
        told: list[Node] = []
        for (item, name), boxes in copies.items():
            entry = self._states[item].entries[name]
            if isinstance(entry, FlatTensor):
                local = self._locals[id(entry.source)]
                for box in boxes:
                    place_told = "" if box == whole(entry.source.shape) else str(box)
                    view = _view(local, box, entry.source, _NOBODYS)
                    told.append([item, name, place_told, digest_of_box(view)])
            else:
                value = entry.value if isinstance(entry, FlatValue) else (entry.container, entry.info)
                told.append([item, name, "", digest_of_value(value)])
        return told

    def share(self, share: Share, *, skips: bool = False) -> "Shared":
        """The part of it that this rank writes; ``skips`` as for :class:`Shared`."""
        return Shared(self._states, self._locals, share, skips=skips)


class Shared:
    """What this rank writes: to be captured, then stored.

    Args:
        states: all items.
        locals_: this rank's memory, by ``id`` of the source.
        share: what of it.
        skips: whether what is as it was is skipped. Then nothing that needs a scale has an owner: it has to be copied,
            and looked at.

    Attributes:
        states: the boxes, one entry each, as :class:`~moonclip.capture.staging.Staging` takes them. A box of a tensor
            with several names is copied once.
    """

    def __init__(
        self, states: Mapping[str, FlatState], locals_: Mapping[int, _Local], share: Share, *, skips: bool
    ) -> None:
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
                    local = locals_[id(entry.source)]
                    has_owner = not (skips and entry.source.stored in SCALED)
                    views[key] = _view(local, box, entry.source, local.tensor if has_owner else _NOBODYS)
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
                        described = (entry.position, source.dtype, source.shape)
                        entries[name] = ShardsInput(*described, inputs, source.stored, source.by_row)
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
        part = Part(whole(shape), (0,) * len(shape))
        return _Local(tensor.detach(), (part,) if tensor.numel() else ())
    from ..sharding.dtensors import shards_of  # loads torch.distributed.tensor, as whoever made this one has

    shards = shards_of(tensor)
    if shards.local.is_meta or (shards.local.nbytes and not shards.local.untyped_storage().nbytes()):
        raise Refused(
            Incompatible, "the tensor's storage was freed (FSDP does so inside of a step); save between steps"
        )
    return _Local(shards.local, shards.parts)


def _view(local: _Local, box: Box, source: TensorSource, part_of: torch.Tensor) -> TensorSource:
    start = place_of(box, local.parts)
    view = local.tensor[tuple(slice(at, at + size) for at, size in zip(start, box.sizes, strict=True))]
    address = view.data_ptr() if lies_in_c_order(view) else 0
    return TensorSource(view, source.dtype, box.sizes, view.nbytes, address, part_of=part_of)


def _bytes(given: Any, memory: memoryview) -> memoryview | None:
    if isinstance(given, UnchangedInput):
        return None
    assert isinstance(given, TensorInput)
    assert isinstance(given.data, Span)
    return memory[given.data.start : given.data.stop]


def _key(name: str, number: int) -> str:
    return f"{name} (part {number})"
