"""``moonclip dedup``: what models would take, before they are imported."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from store.disk.files import Files
from store.errors import Incompatible, MoonclipError, StoreNotFound
from store.ids import CommitId, from_hex, short
from store.naming.refnames import BRANCHES
from store.parallel import Threads, default_thread_count
from store.repository import Repository

from ..exchange.ranges import Ranges
from ..exchange.readings import reading_ahead
from ..exchange.sources import Source, given_in
from ..families.expected import Forecast, total
from ..families.folders import models_in
from .location import open_store
from .output import echo_json, json_option
from .progress import progress_bar
from .refs import read_names
from .text import columns, counted, printable, share, size, told_of

_PATH = click.Path(exists=True, readable=False, path_type=Path)  # what cannot be read is left out


@click.command()
@click.argument("paths", nargs=-1, required=True, type=_PATH, metavar="DIR...")
@click.option("--dry-run", is_flag=True, help="Tell what they would take. There is no other way: `import` stores them.")
@json_option
@click.pass_context
def dedup(ctx: click.Context, paths: tuple[Path, ...], *, dry_run: bool, as_json: bool) -> None:
    """Tell what models would take if they were imported, one after another.

    A DIR is a model's directory or file, or a folder of such directories, at any depth. Each is compared with what the
    store holds, if there is a store, and with those before it. What is identical is counted by its hash, for which all
    of it is read; what else it would take is told from samples, with the base that an import would find. Nothing is
    written.
    """
    if not dry_run:
        raise click.UsageError("only with --dry-run: to store the models, use `moonclip import`", ctx)
    models, left_out = models_in(paths)
    with _opened(ctx) as (repo, threads):
        forecasts = _forecast(models, left_out, repo, threads)
        branches = {} if repo is None else read_names(repo.refs).by_kind.get(BRANCHES, {})
    if not forecasts:
        raise Incompatible("; ".join(f"{name}: {why}" for name, why in left_out.items()))
    if as_json:
        told = {"models": [_as_json(each) for each in forecasts], "left_out": left_out}
        echo_json(told | total(forecasts)._asdict())
        return
    for line in _lines(forecasts, branches):
        click.echo(printable(line))
    for name, why in left_out.items():
        click.echo(printable(f"left out {name}: {why}"), err=True)


def _forecast(
    models: Sequence[Path], left_out: dict[str, str], repo: Repository | None, threads: Threads
) -> list[Forecast]:
    """What each of some models would take. What cannot be imported is left out, unless it is all there is."""
    from ..families.forecast import Forecaster  # which needs NumPy: help on commands does not

    forecaster, forecasts = Forecaster(repo, threads), list[Forecast]()
    with progress_bar() as progress:
        for number, path in enumerate(models):
            if progress is not None:
                progress("models", number, len(models))
            try:
                given = given_in([Source(path)], Ranges(Files()), threads)
                with reading_ahead(given.files, threads.count):
                    forecasts.append(forecaster.add(str(path), given.items))
            except (MoonclipError, OSError) as error:
                if len(models) == 1:
                    raise
                left_out[str(path)] = error.message if isinstance(error, MoonclipError) else told_of(error)
    return forecasts


@contextmanager
def _opened(ctx: click.Context) -> Iterator[tuple[Repository | None, Threads]]:
    """The store, if there is one, and threads. One that was named has to be there."""
    repo = _store(ctx)
    if repo is not None:
        yield repo, repo.threads
        return
    threads = Threads(default_thread_count())
    try:
        yield None, threads
    finally:
        threads.close()


def _store(ctx: click.Context) -> Repository | None:
    try:
        return open_store(ctx)
    except StoreNotFound:
        if ctx.obj.given is not None:
            raise
        return None


def _as_json(forecast: Forecast) -> dict[str, Any]:
    return {"path": forecast.name, "base": forecast.base, **forecast.bytes._asdict()}


def _lines(forecasts: Sequence[Forecast], branches: Mapping[CommitId, Sequence[str]]) -> list[str]:
    common = os.path.commonpath([Path(each.name).absolute().parent for each in forecasts] or [Path.cwd()])
    names = {each.name: os.path.relpath(Path(each.name).absolute(), common) for each in forecasts}
    rows = [["model", "raw", "identical", "would add", "of raw", "base"]]
    for each in forecasts:
        raw_bytes, shared_bytes, added_bytes = each.bytes
        sizes = (size(raw_bytes), size(shared_bytes), size(added_bytes), share(added_bytes, raw_bytes))
        rows.append([names[each.name], *sizes, _base(each.base, names, branches)])
    raw_bytes, _, added_bytes = total(forecasts)
    times = f"raw is {raw_bytes / added_bytes:.2f} times as much" if added_bytes else "there is nothing to store"
    held = f"{counted(len(forecasts), 'model')} of {size(raw_bytes)} would add {size(added_bytes)}; {times}"
    return [*columns(rows, right=range(1, 5)), "", held]


def _base(base: str | None, names: Mapping[str, str], branches: Mapping[CommitId, Sequence[str]]) -> str:
    """A model before it, a branch of the store, or a commit of it."""
    if base is None or base in names:
        return "-" if base is None else names[base]
    commit = CommitId(from_hex(base))
    return ", ".join(branches.get(commit, ())) or short(commit)
