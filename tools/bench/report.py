"""What a bench found: a table for people, JSON for programs, and bars that were met or not."""

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from .plots import PLOTS, Panel, draw
from .workloads import CACHE

_FILE_WIDTH: Final = 140
"""Columns where the output is no terminal: what is kept should not be wrapped for a narrow one."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure that has to be reached.

    Attributes:
        what: the figure's name.
        value: what was measured.
        limit: what it is held to.
        at_most: whether the limit is an upper one.
    """

    what: str
    value: float
    limit: float
    at_most: bool = True

    @property
    def met(self) -> bool:
        """Whether the figure is on the right side of its limit."""
        return self.value <= self.limit if self.at_most else self.value >= self.limit


@dataclass(frozen=True, slots=True)
class Grid:
    """One more table.

    Attributes:
        title: over it.
        columns: its head.
        rows: its cells, as text.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Bench:
    """The outcome of one bench.

    Attributes:
        name: as on the command line.
        title: over the table.
        columns: its head.
        rows: its cells, as text.
        bars: what was to be reached.
        figures: everything measured, for the JSON file.
        notes: sentences below the tables.
        more: further tables.
        panels: figures that are drawn for the documentation.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    bars: Sequence[Bar]
    figures: Mapping[str, Any]
    notes: Sequence[str] = ()
    more: Sequence[Grid] = ()
    panels: Sequence[Panel] = ()

    @property
    def passed(self) -> bool:
        """Whether all bars are met."""
        return all(bar.met for bar in self.bars)

    def show(self) -> None:
        """Print the tables, the notes and the bars."""
        console = Console(highlight=False, width=None if sys.stdout.isatty() else _FILE_WIDTH)
        for grid in (Grid(self.title, self.columns, self.rows), *self.more):
            console.print(_table(grid))
        for note in self.notes:
            console.print(note, style="dim")
        for bar in self.bars:
            sign, relation = ("[green]✓[/]" if bar.met else "[red]✗[/]"), ("≤" if bar.at_most else "≥")
            console.print(f"{sign} {bar.what}: {bar.value:.3f} (bar: {relation} {bar.limit})")

    def keep(self) -> None:
        """Write the JSON file, and draw what is to be drawn."""
        path = CACHE / "results" / f"{self.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        bars = [{**asdict(bar), "met": bar.met} for bar in self.bars]
        path.write_text(json.dumps({"machine": _machine(), "bars": bars, "figures": self.figures}, indent=1) + "\n")
        if self.panels:
            draw(PLOTS / f"{self.name}.png", self.title, self.panels)


def _machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cpu": platform.machine(),
        "cpu_count": os.cpu_count(),
        "kernel": platform.release(),
    }


def _table(grid: Grid) -> Table:
    table = Table(title=grid.title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for position, column in enumerate(grid.columns):
        table.add_column(column, justify="right" if position else "left")
    for row in grid.rows:
        table.add_row(*row)
    return table
