"""``moonclip remote show``: what refs a remote has, and how far the branches here have gone from them."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from store.history.distance import Distance, distance
from store.ids import CommitId, short
from store.naming.refnames import BRANCHES, describe
from store.repository import Repository

from .location import open_store
from .output import echo_json, json_option
from .text import columns, counted, printable
from .transfers import complete_remote, open_remote_called, settings

if TYPE_CHECKING:
    from store.remotes.configured import RemoteConfig
    from store.remotes.names import RefKey


@dataclass(frozen=True, slots=True)
class _Ref:
    """A ref of the remote, beside the one of the same name here.

    Attributes:
        key: the ref there.
        there: what it holds.
        here: what the local one holds, ``None`` if there is none.
        apart: how far the two are apart; ``None`` if there is nothing to compare.
        is_known: whether the commit that it holds there is here.
        is_own: whether only this store moves it.
    """

    key: "RefKey"
    there: CommitId
    here: CommitId | None
    apart: Distance | None
    is_known: bool
    is_own: bool

    def row(self) -> list[str]:
        """For people."""
        whose = "" if self.key.store is None else f"by {'this store' if self.is_own else self.key.store[:8]}"
        return [f"  {printable(describe(self.key.name))}", short(self.there), whose, self._state()]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "ref": self.key.name,
            "store": self.key.store,
            "commit": self.there.hex(),
            "is_here": self.is_known,
            "ahead": self.apart and self.apart.ahead_count,
            "behind": self.apart and self.apart.behind_count,
        }

    def _state(self) -> str:
        if not self.is_known:
            return "not fetched yet"
        if self.here is None:
            return f"no such {'branch' if self.key.name.startswith(BRANCHES) else 'tag'} here"
        if self.apart is None:
            return "as here" if self.here == self.there else f"on {short(self.here)} here"
        ahead_count, behind_count = self.apart
        words = [f"{counted(ahead_count, 'commit')} ahead"] if ahead_count else []
        words += [f"{counted(behind_count, 'commit')} behind"] if behind_count else []
        return f"here {', '.join(words)}" if words else "as here"


@click.command("show")
@click.argument("name", required=False, shell_complete=complete_remote)
@json_option
@click.pass_context
def show_remote(ctx: click.Context, name: str | None, *, as_json: bool) -> None:
    """Show what a remote has.

    That is its refs, and how far the branches here have gone from them. NAME is origin, or the only one there is.
    Fetches nothing.
    """
    from store.remotes.configured import remote_config

    repo = open_store(ctx)
    remote = open_remote_called(ctx, repo, name)
    config = remote_config(repo.layout, repo.files, remote.name)
    found = [
        _compared(repo, key, ref.commit, is_own=key.store == remote.store_id)
        for key, ref in sorted(remote.refs().items(), key=lambda each: (each[0].name, each[0].store or ""))
        if ref.commit is not None
    ]
    if as_json:
        echo_json({**asdict(config), "refs": [ref.as_json() for ref in found]})
        return
    for line in _lines(config, found):
        click.echo(line)


def _compared(repo: Repository, key: "RefKey", there: CommitId, *, is_own: bool) -> _Ref:
    here = repo.refs.read(key.name)
    is_known = repo.lookup.commit(there) is not None
    is_comparable = is_known and here is not None and key.name.startswith(f"{BRANCHES}/")
    apart = distance(repo.lookup, here, there) if is_comparable and here is not None else None
    return _Ref(key, there, here, apart, is_known, is_own)


def _lines(config: "RemoteConfig", found: list[_Ref]) -> Iterator[str]:
    yield f"{click.style(printable(config.name), bold=True)}  {', '.join((printable(config.url), *settings(config)))}"
    if not found:
        yield "  nothing was pushed to it yet"
    yield from columns([ref.row() for ref in found])
