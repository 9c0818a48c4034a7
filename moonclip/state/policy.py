"""What decoding may do beyond building plain data: nothing, unless the caller opts in by name."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Policy:
    """What a caller trusts.

    Attributes:
        allow_pickle: unknown objects are pickled on save and unpickled on load. Unpickling *runs code*: only for
            commits whose author you trust.
        classes: dotted names (``"package.module.Class"``) that may be imported and, where there is no better way,
            pickled. Unpickling then finds these classes and no other.
    """

    allow_pickle: bool = False
    classes: tuple[str, ...] = ()


SAFE: Final = Policy()
"""Nothing is imported, nothing unpickled."""
