"""What there is to be made: how each member of a family is trained, and how much."""

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["base", "full", "sharded", "frozen", "adapter", "merged", "bf16", "cast", "extended", "wrapped"]
"""How a model was trained and saved; :data:`MEANING` says what each is."""

MEANING: Final[dict[Kind, str]] = {
    "base": "what all others come from",
    "full": "all weights trained",
    "sharded": "all weights trained, saved as several safetensors files",
    "frozen": "the last layer trained, all else frozen",
    "adapter": "LoRA: the adapter alone",
    "merged": "LoRA, merged into the weights",
    "bf16": "trained in bfloat16",
    "cast": "trained in float32, saved as bfloat16",
    "extended": "all weights trained, with rows for new tokens at the end of the embedding",
    "wrapped": "trained inside a classifier, so that names have a prefix and there is a head",
}

BASE: Final = "base"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one fine-tune is made.

    Attributes:
        name: its directory's.
        kind: how it is trained and saved.
        seed: of batches, dropout and whatever begins at random.
        rate: AdamW's learning rate.
        decay: AdamW's weight decay; with it every weight moves, without it rows of tokens that never came do not.
        base: name of what it begins with.
    """

    name: str
    kind: Kind
    seed: int
    rate: float
    decay: float = 0.0
    base: str = BASE


RECIPES: Final = (
    Recipe("full-a", "full", 0, 2e-5),
    Recipe("full-b", "full", 1, 5e-5, 0.01),
    Recipe("sharded", "sharded", 2, 1e-4),
    Recipe("frozen", "frozen", 3, 1e-4),
    Recipe("adapter", "adapter", 4, 1e-3),
    Recipe("merged", "merged", 5, 5e-4),
    Recipe("bf16", "bf16", 6, 2e-5),
    Recipe("cast", "cast", 7, 2e-5, 0.01),
    Recipe("extended", "extended", 8, 3e-5),
    Recipe("wrapped", "wrapped", 9, 3e-5, 0.01),
    Recipe("second", "full", 10, 2e-5, base="full-a"),
)
"""In an order in which each comes after its base."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a family's models are, and how long they are trained.

    Attributes:
        name: of the family's directory.
        layer_count: layers of the base that are kept; None: all of them.
        token_count: tokens of the base that are kept; None: all of them.
        step_count: steps of each fine-tune.
        batch: pairs of texts in a step.
        length: tokens of a text, at most.
        shard_size: of a file of the sharded one, at most.
    """

    name: str
    layer_count: int | None
    token_count: int | None
    step_count: int
    batch: int
    length: int
    shard_size: str


FULL: Final = Scale("full", None, None, 30, 8, 40, "30MB")
SMALL: Final = Scale("small", 2, 3000, 3, 4, 16, "8MB")
SCALES: Final = {scale.name: scale for scale in (FULL, SMALL)}
