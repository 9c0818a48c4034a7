"""All that the demo shows."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from .act import Outcome
from .job import Event, Job

MB: Final = 1_000_000
_LEVELS: Final = "▁▂▃▄▅▆▇█"
_BAR_WIDTH: Final = 20
_INDENT: Final = 3


class Screen:
    """Prints to the terminal, and keeps the order of what child processes print.

    Args:
        store: directory of the demo's store.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._console = Console(highlight=False)
        self._act_count = 0

    def opening(self, step_count: int) -> None:
        """What is about to be seen."""
        self._console.print(
            Panel(
                "A byte-level transformer of 6.3 M parameters learns to write Python from the sources of the standard"
                f" library: {step_count} steps of AdamW on one core. It is killed, resumed and branched, and what all"
                " that takes on disk is counted.",
                title="Moonclip",
                border_style="cyan",
            )
        )

    def act(self, title: str, subtitle: str = "") -> None:
        """Begin the next part."""
        self._act_count += 1
        self._console.print(Text.assemble("\n", (f"{self._act_count}  {title}", "bold cyan")))
        if subtitle:
            self._say(subtitle, "dim")

    def watch(self, job: Job, outcome: Outcome, events: Iterable[Event]) -> None:
        """Show a run as it goes on; what is left is one line."""
        columns = (
            TextColumn("   step"),
            MofNCompleteColumn(),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )
        with Progress(*columns, console=self._console, transient=True) as progress:
            task = progress.add_task("starting", total=job.stop_step)
            for _ in events:
                done = max(outcome.losses, default=outcome.start_step - 1) + 1
                progress.update(task, completed=done, description=_so_far(outcome))
        self._say(f"steps {outcome.start_step} to {max(outcome.losses, default=0)}: {_so_far(outcome)}")
        if outcome.saves:
            blocked_ms = median(save.blocked_ns for save in outcome.saves) / 1e6
            waited_ms = median(save.waited_ns for save in outcome.saves) / 1e6
            self._say(
                f"median save: training stood still for {blocked_ms:.0f} ms to copy, {waited_ms:.0f} ms for the save"
                " before"
            )

    def death(self, outcome: Outcome) -> None:
        """How the killed run ended."""
        if outcome.dying is None:
            self._say(f"it should have died while saving, but ended with {outcome.exit_code}", "red")
            return
        self._say(
            f"killed by signal {-outcome.exit_code}, with {outcome.dying.written_bytes / MB:.0f} MB of step"
            f" {outcome.dying.step} on disk and no commit"
            " yet: the worker outlives it, and finishes what it was given",
            "yellow",
        )

    def moonclip(self, *arguments: str) -> bool:
        """Run the command line as a person would, and show what it prints; whether it succeeded."""
        self._console.print(f"\n   $ moonclip {' '.join(arguments)}", style="bold")
        finished = subprocess.run(self._command(*arguments), env=self._environment(), check=False)
        return finished.returncode == 0

    def proof(self, reference: Outcome, killed: Outcome, resumed: Outcome) -> bool:
        """Compare the run that was killed and resumed with the uninterrupted one; whether they are the same."""
        again = len(killed.losses.keys() & resumed.losses.keys())
        self._say(f"{again} steps had to be taken again: those after the last commit")
        same_losses = all(reference.losses.get(step) == loss for step, loss in resumed.losses.items())
        differing = [
            name
            for name in reference.digests.keys() | resumed.digests.keys()
            if reference.digests.get(name) != resumed.digests.get(name)
        ]
        if differing or not reference.digests or not same_losses:
            self._say(f"✗ not the uninterrupted run: {len(differing)} tensors differ", "red")
            return False
        self._say(
            f"✓ bit for bit the uninterrupted run: the SHA-256 of all {len(reference.digests)} tensors of model and"
            f" optimizer, and all {len(resumed.losses)} losses",
            "green",
        )
        return True

    def losses(self, outcomes: Mapping[str, Outcome]) -> None:
        """Losses side by side, and each as a curve."""
        steps = sorted({step for outcome in outcomes.values() for step in outcome.losses if step % 30 == 0})
        last = max(step for outcome in outcomes.values() for step in outcome.losses)
        extent = _extent(outcomes.values())
        table = Table(title="Losses, nats per byte", title_justify="left", box=None, padding=(0, 1))
        table.add_column("run")
        for step in (*steps, last):
            table.add_column(f"step {step}", justify="right")
        table.add_column("every 5 steps")
        for name, outcome in outcomes.items():
            cells = [f"{outcome.losses[step]:.3f}" if step in outcome.losses else "" for step in (*steps, last)]
            table.add_row(name, *cells, _curve(outcome.losses, last, extent))
        self._console.print("\n", table)

    def sizes(self) -> None:
        """Where the bytes went that were saved."""
        finished = subprocess.run(self._command("stats", "--json"), stdout=subprocess.PIPE, check=True)
        stats: dict[str, int] = json.loads(finished.stdout)
        raw_bytes = stats["tensor_bytes"]
        stored_bytes = stats["stored_bytes"]
        table = Table(title="Bytes", title_justify="left", box=None, padding=(0, 1), show_header=False)
        table.add_column()
        table.add_column(justify="right")
        table.add_column(justify="right")
        table.add_column()
        rows = (
            (f"raw, in {stats['commit_count']} commits", raw_bytes, "white"),
            ("shared with what is stored (dedup)", stats["shared_bytes"], "blue"),
            (f"saved by {stats['delta_count']} delta objects", stats["delta_saved_bytes"], "magenta"),
            ("saved by compressing the others", stats["compression_saved_bytes"], "cyan"),
            ("stored", stored_bytes, "green"),
        )
        for label, size_bytes, colour in rows:
            share = size_bytes / raw_bytes
            bar = f"[{colour}]{'█' * round(_BAR_WIDTH * share)}[/]"
            table.add_row(label, f"{size_bytes / MB:,.1f} MB", f"{share:.1%}", bar)
        self._console.print("\n", table)
        lines = (
            f"{raw_bytes / stored_bytes:.2f} bytes of state for each byte stored, with trees and commits; lossless.",
            "This run changes every weight at every step and shares little but its tied",
            "weights: frozen layers, or fine-tunes of one base, share far more.",
        )
        self._console.print("\n".join(f" {line}" for line in lines), style="dim")

    def closing(self, seconds: float, revision: str) -> None:
        """Where to look further."""
        command = f".venv/bin/moonclip -C {self._store} show {revision}"
        self._console.print(f"\n{seconds:.0f} s in all. Look around:\n  [bold]{command}[/]")

    def _say(self, text: str, style: str | None = None) -> None:
        """Print below an act's title, also what takes more than one line."""
        self._console.print(Padding.indent(text, _INDENT), style=style)

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "moonclip", "-C", str(self._store), *arguments]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "FORCE_COLOR": "1"} if self._console.is_terminal else dict(os.environ)


def _so_far(outcome: Outcome) -> str:
    if not outcome.losses:
        return "starting"
    saves = f", {len(outcome.saves)} saves" if outcome.saves else ""
    return f"loss {outcome.losses[max(outcome.losses)]:.3f}{saves}"


def _extent(outcomes: Iterable[Outcome]) -> tuple[float, float]:
    losses = [loss for outcome in outcomes for loss in outcome.losses.values()]
    return min(losses), max(losses)


def _curve(losses: Mapping[int, float], last: int, extent: tuple[float, float]) -> str:
    """Means of each five steps as bars, on one scale for all runs."""
    lowest, highest = extent
    bars = []
    for start in range(0, last + 1, 5):
        window = [losses[step] for step in range(start, start + 5) if step in losses]
        if window:
            height = (sum(window) / len(window) - lowest) / (highest - lowest)
            bars.append(_LEVELS[round(height * (len(_LEVELS) - 1))])
        else:
            bars.append(" ")
    return "".join(bars)
