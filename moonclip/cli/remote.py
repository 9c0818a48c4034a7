"""``moonclip remote``: other places that hold this store's history."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from store.repository import Repository

from .location import open_store
from .output import echo_json_list, json_option
from .remoteshow import show_remote
from .text import columns, counted, printable
from .transfers import choose, complete_remote, connection_options, described_remote, settings, warn

if TYPE_CHECKING:
    from store.remotes.configured import RemoteConfig


@click.group(invoke_without_command=True)
@click.option("-v", "--verbose", is_flag=True, help="Show where they are, too.")
@json_option
@click.pass_context
def remote(ctx: click.Context, *, verbose: bool, as_json: bool) -> None:
    """List remotes, add or remove one, or show what it has.

    Credentials are never stored: they come from the environment, or from wherever boto3 finds them.
    """
    if ctx.invoked_subcommand is not None:
        if verbose or as_json:
            raise click.UsageError("-v and --json are for the list of remotes, when they stand here")
        return
    from store.remotes.configured import remotes

    repo = open_store(ctx)
    known = remotes(repo.layout, repo.files)
    if as_json:
        echo_json_list(asdict(config) for config in known.values())
        return
    for line in columns(_row(config, verbose=verbose) for config in known.values()):
        click.echo(line)


@remote.command()
@click.argument("name")
@click.argument("url")
@connection_options
@click.pass_context
def add(
    ctx: click.Context, name: str, url: str, *, endpoint_url: str | None, region: str | None, path_style: bool
) -> None:
    """Give the store a remote.

    URL is s3://bucket/prefix, file:///directory or a path. Nothing is asked of it yet. Credentials do not belong into
    it: they come from the environment.
    """
    from store.remotes.configured import add_remote

    repo = open_store(ctx, writable=True)
    config = described_remote(name, url, endpoint_url, region, path_style=path_style)
    add_remote(repo.layout, repo.files, config)
    click.echo(f"remote {printable(name)} is {printable(config.url)}")


@remote.command()
@click.argument("name", shell_complete=complete_remote)
@click.pass_context
def remove(ctx: click.Context, name: str) -> None:
    """Forget a remote, and what its branches were. What it has stays there."""
    from store.remotes.configured import remotes
    from store.remotes.forgetting import forget_remote

    repo = open_store(ctx, writable=True)
    choose(list(remotes(repo.layout, repo.files)), name)
    promised_count = _promised_count(repo, name)
    forget_remote(repo, name)
    click.echo(f"removed remote {printable(name)}")
    if promised_count:
        lack = "lacks" if promised_count == 1 else "lack"
        warn(f"{counted(promised_count, 'commit')} {lack} content here that only {name!r} was known to have")


remote.add_command(show_remote)


def _row(config: "RemoteConfig", *, verbose: bool) -> list[str]:
    return [printable(config.name), *([printable(config.url), ", ".join(settings(config))] if verbose else [])]


def _promised_count(repo: Repository, name: str) -> int:
    return sum(any(record.origin == name for record in records) for records in repo.absences.all().values())
