"""What push, fetch, pull, clone and the others that speak to a remote have in common."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from store.errors import MoonclipError, NotFound
from store.ids import CommitId, short
from store.repository import Repository

from .location import Location
from .progress import Progress, progress_bar
from .text import columns, inline, printable

if TYPE_CHECKING:
    from store.remotes.configured import RemoteConfig
    from store.remotes.refchanges import RefChange
    from store.remotes.remote import Remote

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_REMOTE: Final = "origin"
INTERRUPTED: Final = 130
"""What shells give for a command that Ctrl-C ended."""


def connection_options(command: F) -> F:
    """Add to a command the options that say how an S3 server is reached."""
    for option in (
        click.option("--path-style", is_flag=True, help="S3: the bucket is part of the path, not of the host's name."),
        click.option("--region", metavar="NAME", help="S3: the server's region."),
        click.option("--endpoint-url", metavar="URL", help="S3: the server, if it is not AWS's."),
    ):
        command = option(command)
    return command


def described_remote(
    name: str, url: str, endpoint_url: str | None, region: str | None, *, path_style: bool, lazy: bool = False
) -> "RemoteConfig":
    """What a person said of a remote, checked; a path that was typed in some working directory holds in any.

    Raises:
        Incompatible: a URL that none can be at, or that holds credentials.
    """
    from store.remotes.configured import RemoteConfig
    from store.remotes.storages.urls import check_endpoint, parse_url

    endpoint = None if endpoint_url is None else check_endpoint(endpoint_url)
    return RemoteConfig(name, parse_url(url).url, endpoint, region, path_style, lazy)


def settings(config: "RemoteConfig") -> Iterator[str]:
    """How a remote is reached, where that is not as usual."""
    if config.endpoint_url is not None:
        yield f"at {printable(config.endpoint_url)}"
    if config.region is not None:
        yield f"region {printable(config.region)}"
    if config.path_style:
        yield "path style"
    if config.lazy:
        yield "lazy"


def open_remote_called(ctx: click.Context, repo: Repository, name: str | None) -> "Remote":
    """Open a remote by its name until the command ends.

    Args:
        ctx: the command's.
        repo: the store.
        name: the remote; ``None`` for ``origin``, or the only one there is.

    Raises:
        NotFound: no remote of that name, or none at all, or several of which none is ``origin``.
    """
    from store.remotes.configured import remotes
    from store.remotes.remote import open_remote

    chosen = choose(list(remotes(repo.layout, repo.files)), name)
    return ctx.with_resource(open_remote(repo, chosen))


def choose(known: Sequence[str], name: str | None) -> str:
    """The remote that is meant.

    Raises:
        NotFound: it is not known, or nothing says which.
    """
    if name is None and (DEFAULT_REMOTE in known or len(known) == 1):
        return DEFAULT_REMOTE if DEFAULT_REMOTE in known else known[0]
    listed = ", ".join(map(printable, known))
    if not known:
        raise NotFound("this store has no remote; `moonclip remote add origin URL` gives it one", name=name)
    if name is None:
        raise NotFound(f"none of the remotes is called {DEFAULT_REMOTE!r}; name the one you mean: {listed}")
    if name not in known:
        raise NotFound(f"no remote {name!r}; there are: {listed}", name=name)
    return name


@contextmanager
def transferring(ctx: click.Context, again: str) -> Iterator[Progress | None]:
    """A bar while bytes are on their way; Ctrl-C ends the command with a word about what becomes of them.

    Args:
        ctx: the command's.
        again: what goes on with it, in words.
    """
    try:
        with progress_bar(in_bytes=True) as progress:
            yield progress
    except KeyboardInterrupt:
        click.echo(f"\ninterrupted; nothing is lost: {again} goes on from there", err=True)
        ctx.exit(INTERRUPTED)


def span(old: CommitId | None, new: CommitId | None, *, is_forced: bool = False) -> str:
    """``"3f2a9b1c..9bc1d2e3"``, as git writes it: with three dots if the one is no ancestor of the other."""
    if new is None:
        return ""
    if old is None or old == new:
        return short(new)
    return f"{short(old)}{'...' if is_forced else '..'}{short(new)}"


def change_lines(rows: Sequence[Sequence[str]], total: str) -> Iterator[str]:
    """Each ref on a line; what went over stands beside the only one, or below several."""
    if len(rows) == 1:
        yield from columns([[*rows[0], total] if total else rows[0]])
        return
    yield from columns(rows)
    if total:
        yield total


def change_json(change: "RefChange") -> dict[str, Any]:
    """A ref that moved, or did not, for programs."""
    return {
        "ref": change.name,
        "old": hex_or_none(change.old),
        "new": hex_or_none(change.new),
        "why": change.why,
        "reason": change.reason,
    }


def hex_or_none(commit: CommitId | None) -> str | None:
    """An id for programs."""
    return None if commit is None else commit.hex()


def warn(message: str) -> None:
    """Tell of something that a person should look at, beside what the command prints."""
    click.echo(f"warning: {inline(message)}", err=True)


def complete_remote(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Remotes that begin so. A shell has no use for errors."""
    from store.disk.files import Files
    from store.layout import Layout
    from store.remotes.configured import remotes

    given: Any = ctx.find_root().params.get("given")
    try:
        known = remotes(Layout(Location(given).existing()), Files())
    except (MoonclipError, OSError):
        return []
    return [CompletionItem(name) for name in known if name.startswith(incomplete)]
