"""``moonclip init``: a new store."""

import click

from store.repository import DEFAULT_BRANCH, Repository

from .location import Location
from .output import echo_json, json_option


@click.command()
@click.option("-b", "--branch", default=DEFAULT_BRANCH, show_default=True, metavar="NAME", help="The first branch.")
@json_option
@click.pass_obj
def init(location: Location, branch: str, *, as_json: bool) -> None:
    """Make a store.

    It lies where -C says, or in ./checkpoints. Training scripts need not: the first save makes one.
    """
    path = location.new()
    Repository.init(path, branch=branch).close()
    if as_json:
        echo_json({"path": str(path.absolute()), "branch": branch})
    else:
        click.echo(f"made an empty store in {path.absolute()}")
