"""Pictures of what a bench found, for the documentation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .figures import Spread

PLOTS: Final = Path("docs/plots")

_OURS_COLOUR: Final = "#2b6cb0"
_THEIR_COLOUR: Final = "#b8c2cc"
_PANEL_INCHES: Final = (3.2, 0.34)
"""Width of a panel, and height of a bar in it."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A figure by library.

    Attributes:
        title: what it is, with its unit.
        spreads: by library's label; ours begin with ``moonclip-store``.
    """

    title: str
    spreads: Mapping[str, Spread]


def draw(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Draw panels side by side: a bar for each median, a line from least to most."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    width, height = _PANEL_INCHES
    size = (2 + width * len(panels), 1.2 + height * max(len(panel.spreads) for panel in panels))
    figure, axes = plt.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for axis, panel in zip(axes[0], panels, strict=True):
        _fill(axis, panel)
    axes[0][0].invert_yaxis()
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


def _fill(axis: Any, panel: Panel) -> None:
    labels, spreads = list(panel.spreads), list(panel.spreads.values())
    middles = [spread.median for spread in spreads]
    below = [spread.median - spread.least for spread in spreads]
    above = [spread.most - spread.median for spread in spreads]
    colours = [_OURS_COLOUR if label.startswith("moonclip-store") else _THEIR_COLOUR for label in labels]
    axis.barh(labels, middles, xerr=[below, above], color=colours, ecolor="#4a5568", capsize=2)
    axis.set_title(panel.title, fontsize=9, loc="left")
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
