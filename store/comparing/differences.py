"""What differs between two commits, as data."""

from dataclasses import dataclass
from typing import Literal

from ..format.values import Plain
from ..ids import CommitId

Status = Literal["added", "removed", "changed"]


@dataclass(frozen=True, slots=True)
class Form:
    """What a tensor is, apart from its content.

    Attributes:
        dtype: dtype name.
        shape: its shape.
        raw_bytes: its size.
    """

    dtype: str
    shape: tuple[int, ...]
    raw_bytes: int


@dataclass(frozen=True, slots=True)
class Measures:
    """How far a tensor has changed, over all its elements that are finite numbers in both commits.

    Of quantized tensors the stored integers are measured. Complex numbers count as one element, with their absolute
    value. Accumulated in float64; differences of elements of 64 bits are taken in NumPy's ``longdouble``.

    Attributes:
        element_count: elements of the tensor.
        changed_count: those that differ: in any bit, or in value if the dtypes differ.
        relative_l2: ‖after - before‖ / ‖before‖; infinite if all was zero and is not any more. ``None``, as the next
            two, where bytes are no numbers (packed floats, bits), or no element is finite.
        max_abs: the largest absolute difference.
        cosine: of the angle between both; ``None`` if either is zero.
        nonfinite_before: elements that were NaN or infinite.
        nonfinite_after: those that are now.
    """

    element_count: int
    changed_count: int
    relative_l2: float | None
    max_abs: float | None
    cosine: float | None
    nonfinite_before: int = 0
    nonfinite_after: int = 0


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """A tensor that differs.

    Attributes:
        name: its name in the item.
        before: what it was; ``None`` if it was added.
        after: what it is; ``None`` if it was removed.
        stored_bytes: what its chunks take in packs that the first commit does not have; itself if it is inline.
        measures: how far it has changed; ``None`` where that was not asked for, or the shape is another.
    """

    name: str
    before: Form | None
    after: Form | None
    stored_bytes: int
    measures: Measures | None = None

    @property
    def status(self) -> Status:
        """Whether it is there in both."""
        return "added" if self.before is None else "removed" if self.after is None else "changed"


@dataclass(frozen=True, slots=True)
class ValueDiff:
    """A value, or a part of one, that differs.

    Attributes:
        name: name of the entry.
        keys: keys and indices that lead to the part, from the outermost on.
        status: whether it is there in both.
        before: what it was; ``None`` if it was added.
        after: what it is; ``None`` if it was removed.
    """

    name: str
    keys: tuple[Plain, ...]
    status: Status
    before: Plain
    after: Plain


@dataclass(frozen=True, slots=True)
class ItemDiff:
    """An item of either commit.

    Attributes:
        name: its name.
        before: whether the first commit has it.
        after: whether the second has.
        tensors: those that differ, by name.
        values: those that differ, by name and path.
        identical_tensor_count: tensors that are the same in both.
        identical_value_count: entries of values that are.
        stored_bytes: what the second commit's chunks take that the first does not have, each counted once, and what
            is inline of what differs.
        ties_differ: whether other names are names of one tensor.
        is_same_tree: whether both commits name one tree. If nothing differs and they do not, entries stand in another
            order, or tensors are cut in other places.
        absent: why it cannot be looked into, though a commit has it (it was pruned there); empty if it can.
    """

    name: str
    before: bool
    after: bool
    tensors: tuple[TensorDiff, ...] = ()
    values: tuple[ValueDiff, ...] = ()
    identical_tensor_count: int = 0
    identical_value_count: int = 0
    stored_bytes: int = 0
    ties_differ: bool = False
    is_same_tree: bool = False
    absent: str = ""

    @property
    def status(self) -> Literal["added", "removed", "changed", "identical", "absent"]:
        """What became of it."""
        if not (self.before and self.after):
            return "added" if self.after else "removed"
        if self.absent:
            return "absent"
        return "changed" if self.tensors or self.values or self.ties_differ else "identical"


@dataclass(frozen=True, slots=True)
class CommitDiff:
    """Two commits.

    Attributes:
        before: the first.
        after: the second.
        header: step, branch, message and metadata that differ.
        items: items of either in which something was looked at, by name.
        stored_bytes: of all items, each chunk counted once.
    """

    before: CommitId
    after: CommitId
    header: tuple[ValueDiff, ...]
    items: tuple[ItemDiff, ...]
    stored_bytes: int
