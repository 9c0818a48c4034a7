"""Names that scripts of the Rust engine call, for what is called otherwise here. See docs/migration.md."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ..saving.jobs import SaveFuture
from ..specs import ItemSpec, Schema
from .givens import tensor_of

if TYPE_CHECKING:
    from ..ranks.recorder import RankRecorder
    from ..ranks.talk import Talk
    from ..saving.recording import Recorder

_OPTIONAL: Final = ("scheduler", "scaler")


class Aliases:
    """Other names, as methods of a manager."""

    _recorder: "Recorder | RankRecorder"
    _talk: "Talk | None"
    _schema: Schema
    save: Callable[..., SaveFuture]

    @property
    def rank(self) -> int:
        """Which of the ranks that save together this is; 0 if it is alone."""
        return 0 if self._talk is None else self._talk.group.rank

    @property
    def world_size(self) -> int:
        """How many ranks save together."""
        return 1 if self._talk is None else self._talk.group.world_size

    def last_queue_wait(self) -> float:
        """:attr:`last_wait_ns` in seconds."""
        return self._recorder.last_wait_ns / 1e9

    def save_raw(self, step: int, tensors: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> SaveFuture:
        """Save tensors by name, as the item ``"tensors"``; each may be given as ``(shape, dtype name, bytes)`` instead.

        Raises:
            Incompatible: one is neither. For what else, see :meth:`save`.
        """
        given = {name: tensor_of(each) for name, each in tensors.items()}
        return self.save(step=step, tensors=given, metadata=metadata)

    @property
    def _optional(self) -> frozenset[str]:
        """Items that a resume does without, with a warning, unless they are said to be required.

        Scripts of the other engine resume these although they never save them.
        """
        return frozenset(name for name in _OPTIONAL if not self._schema.specs.get(name, ItemSpec()).required)
