"""What refs call a commit, and the names that a shell can complete."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from store.disk.files import Files
from store.errors import MoonclipError
from store.ids import CommitId
from store.naming.refnames import BRANCHES, HEAD, REMOTES, TAGS, RefName, short_name
from store.naming.refs import RefStore

from .location import Location
from .text import printable


@dataclass(slots=True)
class RefNames:
    """Short names of all refs, by the commit they point at.

    Attributes:
        head: the current branch, or ``None`` if that cannot be read.
        by_kind: for each kind of ref, names by commit.
    """

    head: str | None
    by_kind: dict[str, dict[CommitId, list[str]]] = field(default_factory=dict)

    def of(self, commit: CommitId, kind: str) -> list[str]:
        """Names of one kind that point at a commit."""
        return self.by_kind.get(kind, {}).get(commit, [])

    def tips(self) -> list[CommitId]:
        """Every commit that a ref points at."""
        return [commit for names in self.by_kind.values() for commit in names]

    def as_json(self, commit: CommitId) -> dict[str, list[str]]:
        """What points at a commit, for programs."""
        return {kind: self.of(commit, kind) for kind in (BRANCHES, TAGS, REMOTES)}

    def decoration(self, commit: CommitId) -> str:
        """``"(HEAD -> main, tag: best)"``, coloured; empty if nothing points at the commit."""
        branches = self.of(commit, BRANCHES)
        words = [click.style(f"{HEAD} -> {name}", fg="cyan", bold=True) for name in branches if name == self.head]
        words += [click.style(f"tag: {name}", fg="yellow", bold=True) for name in self.of(commit, TAGS)]
        words += [click.style(name, fg="green", bold=True) for name in branches if name != self.head]
        words += [click.style(name, fg="red", bold=True) for name in self.of(commit, REMOTES)]
        return f"({', '.join(words)})" if words else ""


def read_names(refs: RefStore) -> RefNames:
    """Read all refs. One that is damaged is left out with a warning: it is no reason to show nothing."""
    names = RefNames(_head_of(refs))
    for name in refs.names():
        try:
            commit = refs.read(name)
        except MoonclipError as error:
            click.echo(f"warning: left out: {printable(str(error))}", err=True)
            continue
        if commit is not None:
            kind = name.partition("/")[0]
            names.by_kind.setdefault(kind, {}).setdefault(commit, []).append(short_name(name))
    return names


def complete_revision(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Branches, tags and remote branches that begin so."""
    return [CompletionItem(name) for name in (HEAD, *_completions(ctx)) if name.startswith(incomplete)]


def complete_branch(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Branches that begin so."""
    return [CompletionItem(name) for name in _completions(ctx, BRANCHES) if name.startswith(incomplete)]


def complete_tag(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Tags that begin so."""
    return [CompletionItem(name) for name in _completions(ctx, TAGS) if name.startswith(incomplete)]


def _completions(ctx: click.Context, kind: str = "") -> Iterator[str]:
    """Short names of refs, without opening the store's index. A shell has no use for errors."""
    given: Path | None = ctx.find_root().params.get("given")
    try:
        refs = RefStore(Location(given).existing(), Files())
        yield from dict.fromkeys(short_name(RefName(name)) for name in refs.names(f"{kind}/" if kind else ""))
    except (MoonclipError, OSError):
        return


def _head_of(refs: RefStore) -> str | None:
    try:
        return refs.head()
    except MoonclipError:
        return None
