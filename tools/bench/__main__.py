"""``python -m tools.bench size`` and ``python -m tools.bench codec``."""

import sys

import click

from . import codec, size
from .report import Bench


@click.group()
def benches() -> None:
    """Measure, print a table, keep the figures as JSON under .cache/bench/results. Exit code 1 if a bar is missed."""


@benches.command("size")
def size_command() -> None:
    """Bytes stored for twelve saves of a run, at several distances, and for a fine-tune on its base."""
    _finish(size.measure())


@benches.command("codec")
def codec_command() -> None:
    """Bytes a second that one core encodes and decodes, beside what it copies."""
    _finish(codec.measure())


def _finish(bench: Bench) -> None:
    bench.show()
    bench.keep()
    sys.exit(0 if bench.passed else 1)


if __name__ == "__main__":
    benches(prog_name="python -m tools.bench")
