"""Fuzz every target for a while: ``python -m tools.fuzz [TARGET]... [--seconds 600]`` (``make fuzz``).

What a target finds is kept under ``.cache/fuzz/found``; the corpus, too, so that the next run goes on from there.
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from .environment import python_with_atheris
from .targets import TARGETS

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "fuzz"
_MAX_MEMORY_MB = 2048
_TIMEOUT_SECONDS = 60
_SPENT = re.compile(r"Done (\d+) runs in (\d+) second")
_SEEN = re.compile(r"^#(\d+)\s.* cov: (\d+)", re.MULTILINE)
_TAIL_BYTES = 6000


@dataclass
class Outcome:
    """What became of a target.

    Attributes:
        name: the target.
        run_count: inputs that were tried.
        covered_count: edges of our code that they went over.
        failure: the end of what it wrote, if it found something.
    """

    name: str
    run_count: int
    covered_count: int
    failure: str | None


def fuzz(name: str, python: Path, seconds: int) -> Outcome:
    """Fuzz a target."""
    corpus, found = CACHE / "corpus" / name, CACHE / "found" / name
    corpus.mkdir(parents=True, exist_ok=True)
    found.mkdir(parents=True, exist_ok=True)
    command = [str(python), "-m", "tools.fuzz.harness", name, str(corpus), TARGETS[name].watched]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    subprocess.run([*command, "--seeds"], cwd=ROOT, env=environment, check=True)
    limits = [f"-rss_limit_mb={_MAX_MEMORY_MB}", f"-timeout={_TIMEOUT_SECONDS}", f"-artifact_prefix={found}/"]
    finished = subprocess.run(
        [*command, f"-max_total_time={seconds}", "-print_final_stats=1", *limits],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    said = finished.stdout + finished.stderr
    spent, seen = _SPENT.search(said), _SEEN.findall(said)
    run_count = int(spent[1]) if spent else int(seen[-1][0]) if seen else 0
    failure = said[-_TAIL_BYTES:] if finished.returncode else None
    return Outcome(name, run_count, int(seen[-1][1]) if seen else 0, failure)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(TARGETS)))
@click.option("--seconds", default=600, show_default=True, help="How long it takes in all, but for preparations.")
@click.option("--jobs", default=2, show_default=True, help="Targets that are fuzzed at once.")
def main(names: tuple[str, ...], seconds: int, jobs: int) -> None:
    """Fuzz targets, all of them if none is named."""
    python = python_with_atheris(CACHE / "venv")
    chosen = sorted(names or TARGETS, key=lambda name: -TARGETS[name].share)
    total = sum(TARGETS[name].share for name in chosen)
    shares = {name: max(1, jobs * seconds * TARGETS[name].share // total) for name in chosen}
    with ThreadPoolExecutor(jobs) as threads:
        outcomes = list(threads.map(lambda name: fuzz(name, python, min(seconds, shares[name])), chosen))
    table = Table("target", "seconds", "inputs", "edges", "found")
    for outcome in outcomes:
        numbers = str(shares[outcome.name]), f"{outcome.run_count:,}", f"{outcome.covered_count:,}"
        table.add_row(outcome.name, *numbers, "nothing" if outcome.failure is None else "something: see below")
    console = Console()
    console.print(table)
    for outcome in outcomes:
        if outcome.failure is not None:
            console.print(f"\n{outcome.name}:\n{outcome.failure}", markup=False, highlight=False)
    sys.exit(any(outcome.failure is not None for outcome in outcomes))


if __name__ == "__main__":
    main()
