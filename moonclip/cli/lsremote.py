"""``moonclip ls-remote``: what refs a remote has."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from store.disk.files import Files
from store.errors import StoreNotFound
from store.ids import CommitId
from store.layout import Layout

from .location import Location, open_store
from .output import echo_json_list, json_option
from .text import columns, printable
from .transfers import complete_remote, connection_options, described_remote, open_remote_called

if TYPE_CHECKING:
    from store.remotes.names import RefKey

    Refs = Sequence[tuple[RefKey, CommitId]]


@click.command("ls-remote")
@click.argument("remote_or_url", metavar="[REMOTE|URL]", required=False, shell_complete=complete_remote)
@connection_options
@json_option
@click.pass_context
def ls_remote(
    ctx: click.Context,
    remote_or_url: str | None,
    *,
    endpoint_url: str | None,
    region: str | None,
    path_style: bool,
    as_json: bool,
) -> None:
    """List the refs of a remote.

    Of a URL no store is needed; the options are for URLs. Without an argument, asks origin, or the only remote there
    is. Where a server cannot compare and swap, each store has refs of its own there, under by/ and its id.
    """
    is_configured = remote_or_url is None or remote_or_url in _known(ctx.obj)
    if is_configured and (endpoint_url is not None or region is not None or path_style):
        raise click.UsageError("--endpoint-url, --region and --path-style go with a URL: a remote has its own")
    if is_configured or remote_or_url is None:
        remote = open_remote_called(ctx, open_store(ctx), remote_or_url)
        refs: Refs = [(key, ref.commit) for key, ref in remote.refs().items() if ref.commit is not None]
    else:
        refs = _refs_at(ctx, remote_or_url, endpoint_url, region, path_style=path_style)
    named = sorted((_name(key), key, commit) for key, commit in refs)
    if as_json:
        echo_json_list({"ref": key.name, "store": key.store, "commit": commit.hex()} for _, key, commit in named)
        return
    for line in columns([commit.hex(), printable(name)] for name, _, commit in named):
        click.echo(line)


def _known(location: Location) -> Iterable[str]:
    """Remotes of the store, if there is one."""
    from store.remotes.configured import remotes

    try:
        return remotes(Layout(location.existing()), Files())
    except StoreNotFound:
        return ()


def _refs_at(ctx: click.Context, url: str, endpoint_url: str | None, region: str | None, *, path_style: bool) -> "Refs":
    from store.remotes.listing import listed_refs
    from store.remotes.storages.clients import open_storage

    storage = open_storage(described_remote("origin", url, endpoint_url, region, path_style=path_style))
    ctx.call_on_close(storage.close)
    return list(listed_refs(storage))


def _name(key: "RefKey") -> str:
    return key.name if key.store is None else f"by/{key.store}/{key.name}"
