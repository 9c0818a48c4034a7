"""``moonclip reset``: put a branch on another commit."""

import click

from store.errors import NotFound
from store.ids import short
from store.naming.refnames import branch_name

from .location import open_store
from .refs import complete_branch, complete_revision


@click.command()
@click.argument("revision", shell_complete=complete_revision)
@click.option(
    "--branch", "given", metavar="NAME", help="Which; the current one if not given.", shell_complete=complete_branch
)
@click.pass_context
def reset(ctx: click.Context, revision: str, given: str | None) -> None:
    """Put a branch on REVISION, to go on from there.

    What it held stays in its reflog, and `moonclip reset BRANCH@{1}` takes this back. A run that is saving on the
    branch at the time finds it elsewhere: its next save goes to a branch of its own, which the error names.
    """
    repo = open_store(ctx, writable=True)
    branch = given if given is not None else repo.refs.head()
    held = repo.refs.read(branch_name(branch))
    if held is None:
        raise NotFound(f"no branch {branch!r}; `moonclip branch {branch} {revision}` makes it there", branch=branch)
    commit = repo.resolve(revision, branch)
    repo.set_ref(branch_name(branch), held, commit, "reset", f"to {revision}")
    click.echo(f"branch {branch} is at {short(commit)}, was at {short(held)}")
