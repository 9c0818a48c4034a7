"""``moonclip branch`` and ``moonclip switch``: lines of history."""

from collections.abc import Sequence

import click

from store.errors import Conflict, NotFound
from store.ids import CommitId, short
from store.naming.refnames import BRANCHES, HEAD, REMOTES, branch_name, short_name
from store.naming.renames import RENAME, told
from store.repository import Repository

from .commits import summary
from .location import open_store
from .output import echo_json_list, json_option
from .refs import complete_branch, complete_revision
from .text import columns, printable


@click.command()
@click.argument("name", required=False, shell_complete=complete_branch)
@click.argument("revision", required=False, shell_complete=complete_revision)
@click.option("-d", "--delete", is_flag=True, help="Delete the branch. Its commits stay while a reflog names them.")
@click.option("-m", "--move", is_flag=True, help="Rename branch NAME to what is given in place of REVISION.")
@click.option("-r", "--remotes", "only_remote", is_flag=True, help="List branches as remotes had them when last asked.")
@click.option("-a", "--all", "every", is_flag=True, help="List both.")
@json_option
@click.pass_context
def branch(
    ctx: click.Context,
    name: str | None,
    revision: str | None,
    *,
    delete: bool,
    move: bool,
    only_remote: bool,
    every: bool,
    as_json: bool,
) -> None:
    """List, make, rename or delete branches.

    With NAME, makes the branch at REVISION, or at HEAD. `branch -m OLD NEW` renames one, `branch -m NEW` the current
    one; a script that saves on it under the old name makes that anew.
    """
    if (as_json or only_remote or every) and name is not None:
        raise click.UsageError("--json, -r and -a are for the list of branches")
    if delete and (name is None or revision is not None or move):
        raise click.UsageError("-d takes the name of one branch")
    if move and name is None:
        raise click.UsageError("-m takes the new name of the current branch, or the old name of one and its new name")
    repo = open_store(ctx, writable=name is not None)
    if name is None:
        kinds = [kind for kind, is_asked in ((BRANCHES, not only_remote), (REMOTES, only_remote or every)) if is_asked]
        _list(repo, kinds, as_json=as_json)
    elif delete:
        _delete(repo, name)
    elif move:
        _rename(repo, *((repo.refs.head(), name) if revision is None else (name, revision)))
    else:
        at = revision or HEAD
        commit = repo.resolve(at)
        repo.set_ref(branch_name(name), None, commit, "branch", f"made at {at}")
        click.echo(f"branch {name} is at {short(commit)}")


@click.command()
@click.argument("name", shell_complete=complete_branch)
@click.pass_context
def switch(ctx: click.Context, name: str) -> None:
    """Make a branch the current one.

    NAME is then what HEAD means, and what scripts that open the store from now on save on, unless they say otherwise.
    """
    repo = open_store(ctx, writable=True)
    commit = _tip(repo, name)
    repo.refs.set_head(name)
    click.echo(f"on branch {name}, at {short(commit)}")


def _list(repo: Repository, kinds: Sequence[str], *, as_json: bool) -> None:
    """Of several kinds, those that are not branches of the store's own are called by their full names, as in git."""
    current = branch_name(repo.refs.head())
    tips = {ref: commit for kind in kinds for ref, commit in repo.refs.list(f"{kind}/").items()}
    named = {ref: ref if len(kinds) > 1 and not ref.startswith(f"{BRANCHES}/") else short_name(ref) for ref in tips}
    if as_json:
        echo_json_list(
            {"name": named[ref], "commit": commit.hex(), "current": ref == current} for ref, commit in tips.items()
        )
        return
    rows = [
        [f"{'*' if ref == current else ' '} {printable(named[ref])}", *_tip_cells(repo, commit)]
        for ref, commit in tips.items()
    ]
    for line in columns(rows):
        click.echo(line)


def _tip_cells(repo: Repository, commit: CommitId) -> tuple[str, str]:
    return short(commit), summary(repo.commit(commit))


def _delete(repo: Repository, name: str) -> None:
    _tip(repo, name)
    if name == repo.refs.head():
        raise Conflict(f"{name!r} is the current branch; `moonclip switch` to another one first", branch=name)
    held = repo.delete_ref(branch_name(name))
    click.echo(f"deleted branch {name}; `moonclip branch {name} {short(held)}` brings it back")


def _rename(repo: Repository, old: str, new: str) -> None:
    """Made under the new name before the old one goes: a crash in between leaves both."""
    commit = _tip(repo, old)
    repo.set_ref(branch_name(new), None, commit, RENAME, told(old))
    if old == repo.refs.head():
        repo.refs.set_head(new, f"renamed from {old}")
    repo.delete_ref(branch_name(old), RENAME)
    click.echo(f"branch {old} is now {new}, at {short(commit)}; `moonclip reflog {old}` still tells what it was")


def _tip(repo: Repository, name: str) -> CommitId:
    tip = repo.refs.read(branch_name(name))
    if tip is None:
        known = ", ".join(short_name(ref) for ref in repo.refs.names(f"{BRANCHES}/")) or "none"
        raise NotFound(f"no branch {name!r}; there are: {known}", branch=name)
    return tip
