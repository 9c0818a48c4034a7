"""``moonclip tag``: names for single commits."""

import click

from store.errors import NotFound
from store.ids import short
from store.naming.refnames import HEAD, TAGS, RefName, short_name, tag_name
from store.repository import Repository

from .commits import summary
from .location import open_store
from .output import echo_json_list, json_option
from .refs import complete_revision, complete_tag
from .text import columns


@click.command()
@click.argument("name", required=False, shell_complete=complete_tag)
@click.argument("revision", required=False, shell_complete=complete_revision)
@click.option("-d", "--delete", is_flag=True, help="Delete the tag.")
@click.option("-f", "--force", is_flag=True, help="Move the tag if it exists.")
@json_option
@click.pass_context
def tag(
    ctx: click.Context, name: str | None, revision: str | None, *, delete: bool, force: bool, as_json: bool
) -> None:
    """List, put or delete tags.

    With NAME, puts the tag on REVISION, or on HEAD.
    """
    if name is None and (delete or force):
        raise click.UsageError("give the name of a tag")
    if delete and (force or revision is not None):
        raise click.UsageError("-d takes the name of one tag")
    if as_json and name is not None:
        raise click.UsageError("--json is for the list of tags")
    repo = open_store(ctx, writable=name is not None)
    if name is None:
        _list(repo, as_json=as_json)
    elif delete:
        _delete(repo, name)
    else:
        _put(repo, name, revision or HEAD, force=force)


def _list(repo: Repository, *, as_json: bool) -> None:
    tags = {short_name(RefName(ref)): commit for ref, commit in repo.refs.list(f"{TAGS}/").items()}
    if as_json:
        echo_json_list({"name": name, "commit": commit.hex()} for name, commit in tags.items())
        return
    rows = [[name, short(commit), summary(repo.commit(commit))] for name, commit in tags.items()]
    for line in columns(rows):
        click.echo(line)


def _put(repo: Repository, name: str, revision: str, *, force: bool) -> None:
    ref = tag_name(name)
    commit = repo.resolve(revision)
    repo.set_ref(ref, repo.refs.read(ref) if force else None, commit, "tag", f"put on {revision}")
    click.echo(f"tag {name} is on {short(commit)}")


def _delete(repo: Repository, name: str) -> None:
    ref = tag_name(name)
    if repo.refs.read(ref) is None:
        raise NotFound(f"no tag {name!r}; `moonclip tag` lists them", tag=name)
    held = repo.delete_ref(ref)
    click.echo(f"deleted tag {name}; `moonclip tag {name} {short(held)}` brings it back")
