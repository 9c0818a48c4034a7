"""``python -m tools.finetunes [full|small]``: makes a family, and lists it."""

import click

from . import family, small_family
from .recipes import FULL, SCALES, SMALL

_MAKERS = {FULL.name: family, SMALL.name: small_family}


@click.command()
@click.argument("scale", type=click.Choice(list(SCALES)), default=FULL.name)
def main(scale: str) -> None:
    """Make a family of real fine-tunes, unless it is there, and list it."""
    for member in _MAKERS[scale]().members:
        size = sum((member.path / file).stat().st_size for file in member.files())
        click.echo(f"{size / 1_000_000:7.1f} MB  {member.description}\n            {member.path}")


if __name__ == "__main__":
    main(prog_name="python -m tools.finetunes")
