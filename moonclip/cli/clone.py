"""``moonclip clone``: a store made from a remote."""

from pathlib import Path

import click

from store.ids import short
from store.naming.refnames import HEAD

from .location import Location
from .output import echo_json, json_option
from .text import printable
from .transfers import DEFAULT_REMOTE, connection_options, described_remote, transferring


@click.command()
@click.argument("url")
@click.argument("directory", required=False, metavar="[DIR]", type=click.Path(path_type=Path))
@click.option("-b", "--branch", metavar="NAME", help="The current branch of the clone; else main, or the newest.")
@click.option("--item", "items", multiple=True, metavar="NAME", help="Fetch only this item of each commit.")
@click.option("--depth", type=click.IntRange(min=1), metavar="COUNT", help="Content of so many newest commits only.")
@click.option("--lazy", is_flag=True, help="Fetch history only; tensors are fetched when they are asked for.")
@connection_options
@json_option
@click.pass_context
def clone(
    ctx: click.Context,
    url: str,
    directory: Path | None,
    *,
    branch: str | None,
    items: tuple[str, ...],
    depth: int | None,
    lazy: bool,
    endpoint_url: str | None,
    region: str | None,
    path_style: bool,
    as_json: bool,
) -> None:
    """Make a store from a remote.

    URL is s3://bucket/prefix, file:///directory or a path; the remote is called origin then. The store lies in DIR, or
    where -C says, or in ./checkpoints. History always comes whole. What --item and --depth leave out is marked as
    absent, and `moonclip fetch` gets it later; a lazy clone also gets what it is asked for. After an interruption the
    same command goes on.
    """
    location: Location = ctx.obj
    path = directory or location.new()
    with transferring(ctx, "the same command") as progress:
        from store.remotes.fetching.clone import clone as make

        config = described_remote(DEFAULT_REMOTE, url, endpoint_url, region, path_style=path_style, lazy=lazy)
        repo = make(config, path, branch=branch, items=items or None, depth=depth, lazy=lazy, progress=progress)
    ctx.with_resource(repo)
    head, tip = repo.refs.head(), repo.resolve(HEAD)
    if as_json:
        echo_json({"path": str(path.absolute()), "branch": head, "commit": tip.hex()})
        return
    click.echo(f"cloned into {path.absolute()}, on branch {printable(head)}, at {short(tip)}")
