"""What a person asked to be committed."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from store.naming.tags import Better
from store.saving.saver import SaveRequest

from ..state.policy import Policy
from ..state.values import plain_metadata
from .binding import Binding
from .jobs import SaveFuture


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person asked to be committed.

    Attributes:
        items: by name.
        tag: name of a tag to put on the commit.
        overwrite: whether that tag may be moved, or when.
        step: training step.
        metadata: values by name.
        message: what to say of the commit.
        future: what the caller is given.
    """

    items: Mapping[str, Any]
    tag: str | None = None
    overwrite: bool | Better = False
    step: int | None = None
    metadata: Mapping[str, Any] | None = None
    message: str = ""
    future: SaveFuture = field(default_factory=SaveFuture)

    def request(self, binding: Binding, policy: Policy) -> SaveRequest:
        """The commit to make, after what the bound branch holds now; without items.

        Args:
            binding: the branch.
            policy: whether unknown objects in metadata may be pickled.

        Raises:
            Incompatible: metadata that cannot be stored.
            TypeError: a step that is no whole number.
        """
        return SaveRequest(
            (),
            branch=binding.branch,
            parent=binding.tip,
            left=binding.left,
            step=None if self.step is None else operator.index(self.step),
            message=self.message,
            metadata=plain_metadata(self.metadata or {}, policy),
        )
