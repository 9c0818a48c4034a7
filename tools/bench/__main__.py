"""``python -m tools.bench save|cold|load|memory|size|codec|scale|gc|repack|remote|ranks|family``, or ``all``."""

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from tools import finetunes
from tools.s3 import SERVERS

from . import codec, cold, collecting, family, load, memory, ranks, remote, repacking, save, scale, servers, size
from .keepers import KEEPERS
from .peers import PEERS, Peer
from .report import Bench
from .workloads import WORKLOADS

_rounds = click.option("--rounds", default=2, show_default=True, help="Processes of each library.")
_workload = click.option("--workload", type=click.Choice(list(WORKLOADS)), default="dense", show_default=True)


def _peers(names: Sequence[str]) -> Callable[..., Any]:
    default = ",".join(names)
    return click.option("--peers", default=default, show_default=True, help="Which libraries, separated by commas.")


@click.group()
def benches() -> None:
    """Measure, print a table, keep the figures as JSON under .cache/bench/results. Exit code 1 if a bar is missed."""


@benches.command("save")
@_workload
@_peers(save.ALL)
@_rounds
def save_command(workload: str, peers: str, rounds: int) -> None:
    """What saves cost a training run, in time, processor time, memory and bytes."""
    _finish(save.measure(workload, _named(peers), rounds))


@benches.command("cold")
@_workload
@_peers(cold.DEFAULT)
@_rounds
def cold_command(workload: str, peers: str, rounds: int) -> None:
    """The first saves of a process on a machine where the kernels were never compiled."""
    _finish(cold.measure(workload, _named(peers), rounds))


@benches.command("load")
@_workload
@_peers(load.ALL)
@_rounds
def load_command(workload: str, peers: str, rounds: int) -> None:
    """How long loads into live tensors take, of a full save and of one at the end of a chain."""
    _finish(load.measure(workload, _named(peers), rounds))


@benches.command("memory")
@_peers(memory.DEFAULT)
@click.option("--saves", default=memory.SAVE_COUNT, show_default=True, type=click.IntRange(min=memory.LOOK_COUNT))
def memory_command(peers: str, saves: int) -> None:
    """Whether two hundred saves need more memory than twenty."""
    _finish(memory.measure(_named(peers), saves))


@benches.command("size")
@click.option("--workload", "names", type=click.Choice(size.ALL), multiple=True, default=size.ALL, show_default=True)
def size_command(names: tuple[str, ...]) -> None:
    """Bytes stored for twelve saves of a run, at several distances, and for a fine-tune on its base."""
    _finish(size.measure(names))


@benches.command("codec")
def codec_command() -> None:
    """Bytes a second that one core encodes and decodes, beside what it copies."""
    _finish(codec.measure())


@benches.command("scale")
def scale_command() -> None:
    """What a save, listing, describing and opening cost at 10,000 commits and a million objects, beside 10 commits."""
    _finish(scale.measure())


@benches.command("gc")
def gc_command() -> None:
    """How fast gc finds what has to stay among a million objects, and how long others wait for it."""
    _finish(collecting.measure())


@benches.command("repack")
def repack_command() -> None:
    """How much smaller repacking makes a base with fine-tunes and branches, and how fast their tips load then."""
    _finish(repacking.measure())


@benches.command("remote")
@click.option("--server", type=click.Choice([servers.AUTO, *SERVERS]), default=servers.AUTO, show_default=True)
@click.option("--rounds", default=remote.ROUND_COUNT, show_default=True, help="Turns of each way.")
def remote_command(server: str, rounds: int) -> None:
    """How fast a gigabyte of history is pushed and cloned, beside boto3 with a file of that length."""
    _finish(remote.measure(server, rounds))


@benches.command("ranks")
@click.option("--rounds", default=ranks.ROUND_COUNT, show_default=True, help="Runs of each number of ranks.")
def ranks_command(rounds: int) -> None:
    """How long four ranks take to save what one process saves, and how long that blocks them."""
    _finish(ranks.measure(rounds))


@benches.command("family")
@_peers(family.ALL)
@click.option("--rounds", default=family.ROUND_COUNT, show_default=True, help="Turns of each library.")
def family_command(peers: str, rounds: int) -> None:
    """How many bytes a model and its fine-tunes take, and how fast they go in and come out again, byte for byte."""
    _finish(family.measure(finetunes.family(), _named(peers, KEEPERS), rounds))


@benches.command("all")
def all_command() -> None:
    """Everything, as ``make bench`` does."""
    outcomes = [_reported(measured) for measured in _EVERYTHING]
    sys.exit(0 if all(outcomes) else 1)


_EVERYTHING: Final[tuple[Callable[[], Bench], ...]] = (
    lambda: save.measure("dense", save.ALL, 2),
    lambda: save.measure("tiny", save.FEW, 1),
    lambda: cold.measure("dense", cold.DEFAULT, 1),
    lambda: load.measure("dense", load.ALL, 1),
    lambda: memory.measure(memory.DEFAULT),
    size.measure,
    codec.measure,
    scale.measure,
    collecting.measure,
    repacking.measure,
    remote.measure,
    ranks.measure,
    lambda: family.measure(finetunes.family()),
)


def _named(peers: str, known: Mapping[str, Peer] = PEERS) -> list[str]:
    names = [name.strip() for name in peers.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name!r} is none of {', '.join(known)}")
    return names


def _finish(bench: Bench) -> None:
    sys.exit(0 if _reported(lambda: bench) else 1)


def _reported(measured: Callable[[], Bench]) -> bool:
    """Show and keep what a bench finds; whether its bars are met."""
    bench = measured()
    bench.show()
    bench.keep()
    return bench.passed


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what was begun is removed
    benches(prog_name="python -m tools.bench")
