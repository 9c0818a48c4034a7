"""Which store a command is about."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from store.errors import StoreNotFound
from store.layout import USUAL_NAME, is_store, store_below
from store.repository import Repository

DEFAULT: Final = Path(USUAL_NAME)
"""Where a store lies if nothing else is said, below the working directory."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where to look for the store.

    Attributes:
        given: what ``-C`` or ``MOONCLIP_STORE`` says, or ``None``.
    """

    given: Path | None

    def existing(self) -> Path:
        """The store that is given, that the working directory is in, or that lies in ``./checkpoints``.

        Raises:
            StoreNotFound: none is given, and there is none.
        """
        if self.given is not None:
            return self.given
        here = Path.cwd()
        for directory in (here, *here.parents):
            if is_store(directory):
                return directory
        if is_store(DEFAULT):
            return DEFAULT
        below = store_below(Path())
        there = "" if below is None else f"; there is one at ./{below}"
        raise StoreNotFound(
            f"no store here: {here} is not in one, and ./{DEFAULT} is none; name one with -C or MOONCLIP_STORE, or"
            f" make one with `moonclip init`{there}",
            path=str(here),
        )

    def new(self) -> Path:
        """Where a store is to be made."""
        return self.given or DEFAULT

    def existing_or_new(self) -> Path:
        """The store, or where it is to be made if there is none."""
        try:
            return self.existing()
        except StoreNotFound:
            return self.new()


def open_store(ctx: click.Context, *, writable: bool = False) -> Repository:
    """Open the store that a command is about, until the command ends.

    Args:
        ctx: the command's.
        writable: whether it is to be changed. If not, a store is read that a newer version made and only that one
            may write.

    Raises:
        StoreNotFound: there is none.
        Incompatible: it needs a newer version.
        ReadOnly: it is to be changed and cannot be from here.
    """
    location: Location = ctx.obj
    repo = Repository.open(location.existing(), read_only=not writable)
    ctx.with_resource(repo)
    if writable:
        repo.require_writable()
    return repo


def open_or_make_store(ctx: click.Context, branch: str) -> Repository:
    """Open the store that a command is to change, until the command ends; make it if there is none.

    Args:
        ctx: the command's.
        branch: first branch of a store that is made.

    Raises:
        Incompatible: it needs a newer version, or ``branch`` is no legal name.
        ReadOnly: it cannot be changed from here.
        OSError: it could not be made.
    """
    location: Location = ctx.obj
    root = location.existing_or_new()
    if is_store(root):
        return open_store(ctx, writable=True)
    repo = ctx.with_resource(Repository.init(root, branch=branch))
    click.echo(f"made a store at {root}", err=True)
    return repo
