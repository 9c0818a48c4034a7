"""``moonclip pull``: a branch brought up to what the remote has."""

from typing import TYPE_CHECKING

import click

from store.history.distance import distance
from store.ids import short
from store.naming.refnames import remote_name
from store.repository import Repository

from .fetch import fetched_json, fetched_lines
from .location import open_store
from .output import echo_json, json_option
from .refs import complete_branch
from .text import counted, inline
from .transfers import complete_remote, hex_or_none, open_remote_called, transferring

if TYPE_CHECKING:
    from store.remotes.fetching.pull import Pulled


@click.command()
@click.argument("remote_name", metavar="[REMOTE]", required=False, shell_complete=complete_remote)
@click.argument("branch", required=False, shell_complete=complete_branch)
@json_option
@click.pass_context
def pull(ctx: click.Context, remote_name: str | None, branch: str | None, *, as_json: bool) -> None:
    """Fetch a branch, and move the one here forward.

    REMOTE is origin, or the only one there is; BRANCH is the current one. A branch that is ahead of the remote's stays
    where it is. So does one that went another way, and the exit code is 1: `moonclip merge --average` puts the two
    together, or what was fetched becomes a branch of its own.
    """
    with transferring(ctx, "`moonclip pull`") as progress:
        from store.remotes.fetching.pull import pull as update

        repo = open_store(ctx, writable=True)
        remote = open_remote_called(ctx, repo, remote_name)
        done = update(repo, remote, branch, progress=progress)
    if as_json:
        echo_json(
            {
                "branch": done.branch,
                "old": hex_or_none(done.old),
                "new": done.new.hex(),
                "fetched": fetched_json(done.fetched),
            }
        )
        return
    for line in fetched_lines(done.fetched):
        click.echo(line)
    click.echo(f"{inline(done.branch)} is {_where(repo, done)}")


def _where(repo: Repository, done: "Pulled") -> str:
    if done.old is None:
        return f"at {short(done.new)}, which is new here"
    if done.old != done.new:
        return f"at {short(done.new)}, was at {short(done.old)}"
    theirs = repo.refs.read(remote_name(done.fetched.remote, done.branch))
    ahead_count = 0 if theirs is None else distance(repo.lookup, done.new, theirs).ahead_count
    if not ahead_count:
        return f"up to date, at {short(done.new)}"
    return f"{counted(ahead_count, 'commit')} ahead of {inline(done.fetched.remote)}/{inline(done.branch)}"
